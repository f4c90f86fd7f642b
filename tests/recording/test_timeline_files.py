"""The timeline: a part a launch, compacted, read apart from the rest of the run; and what older files lack."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.analysis.estimates import estimate
from bench.recording import reader
from bench.recording.columns import METRICS_KEY, arrow_schema
from bench.recording.reader import read_run, read_timeline
from bench.recording.writer import RunWriter
from bench.schema import NameValue, TimelineRow
from tests.recording.made_up import METRICS, START, made_case, made_launch, made_run, sample, timed, timeline

CASE = made_case("dp", 2, 64, device_type="cpu", size="quick", precision="fp32")


def three_launches(results: Path) -> RunWriter:
    """The first ends well, the second runs out of memory, the third is a skip that nobody watched."""
    writer = RunWriter(results, made_run(), METRICS)
    for index, status in enumerate(("ok", "oom", "skipped")):
        launch = made_launch(CASE, index, index, status=status, reason=None if status == "ok" else status)
        samples = timed(launch, 100.0) if status == "ok" else []
        writer.add(launch, samples, timeline(launch, seconds=1.0) if status != "skipped" else [])
    return writer


def test_a_part_a_launch_then_one_file_and_the_rows_stay(tmp_path: Path) -> None:
    writer = three_launches(tmp_path)
    parts = writer.folder / "parts"
    assert sorted(path.name for path in parts.glob("timeline-*")) == [
        "timeline-00000.parquet",
        "timeline-00001.parquet",
    ]
    before = read_timeline(writer.folder)
    assert set(before.columns) == set(TimelineRow.__dataclass_fields__)
    assert list(before.columns)[:4] == ["run_id", "case_id", "launch", "device_index"]
    assert len(before) == 2 * 11 * 2, "two watched launches, 11 readings, 2 devices"
    assert list(before["launch"].unique()) == [0, 1], "a launch that failed keeps what was watched"
    writer.finish([], START)
    assert not parts.exists() and (writer.folder / "timeline.parquet").exists()
    after = read_timeline(writer.folder)
    pd.testing.assert_frame_equal(before, after)
    assert after.attrs["problems"] == [] and read_run(writer.folder).problems == ()


def test_gauges_come_back_as_they_were_with_nulls_and_reasons(tmp_path: Path) -> None:
    found = read_timeline(three_launches(tmp_path).folder)
    first, second = found.iloc[0], found.iloc[1]
    assert (first["device_index"], first["elapsed_seconds"], first["measured"]) == (0, 0.0, False)
    assert first["cpu_percent"] == pytest.approx(8.5) and first["host_rss_bytes"] == round(2**28 * 0.085)
    assert (
        pd.isna(first["utilization_percent"]) and pd.isna(second["cpu_percent"]) and pd.isna(second["host_rss_bytes"])
    )
    assert found["host_rss_bytes"].dtype == "Int64"
    assert second["unavailable"] == [{"name": "cpu_percent", "value": "shares one process with the first device"}]


def test_read_run_leaves_the_timeline_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = three_launches(tmp_path).folder
    opened: list[str] = []
    original = reader._read_file

    def read(path: Path, *rest: Any) -> Any:
        opened.append(path.name)
        return original(path, *rest)

    monkeypatch.setattr(reader, "_read_file", read)
    read_run(folder)
    assert opened and not [name for name in opened if "timeline" in name]
    read_timeline(folder)
    assert "timeline-00000.parquet" in opened


def test_damaged_parts_are_named_and_the_rest_loads(tmp_path: Path) -> None:
    folder = three_launches(tmp_path).folder
    part = folder / "parts" / "timeline-00000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    found = read_timeline(folder)
    assert list(found["launch"].unique()) == [1]
    (problem,) = found.attrs["problems"]
    assert str(part) in problem and "set aside" in problem
    foreign = folder / "parts" / "timeline-00001.parquet"
    pq.write_table(pa.table({"case_id": ["x"]}), foreign)
    assert len(read_timeline(folder)) == 0 and len(read_timeline(folder).attrs["problems"]) == 2


def test_parts_and_compacted_files_mix_without_doubling(tmp_path: Path) -> None:
    writer = three_launches(tmp_path)
    kept = (writer.folder / "parts" / "timeline-00001.parquet").read_bytes()
    expected = read_timeline(writer.folder)
    writer.finish([], START)
    (writer.folder / "parts").mkdir()
    (writer.folder / "parts" / "timeline-00001.parquet").write_bytes(kept)
    pd.testing.assert_frame_equal(read_timeline(writer.folder), expected)


def test_a_run_that_is_older_than_the_table_has_an_empty_one(tmp_path: Path) -> None:
    writer = three_launches(tmp_path)
    writer.finish([], START)
    (writer.folder / "timeline.parquet").unlink()
    found = read_timeline(writer.folder)
    assert len(found) == 0 and set(found.columns) == set(TimelineRow.__dataclass_fields__)
    assert found.attrs["problems"] == [] and read_run(writer.folder).problems == ()


def test_a_gauge_that_came_later_is_null_in_older_files(tmp_path: Path) -> None:
    folder = three_launches(tmp_path).folder
    part = folder / "parts" / "timeline-00000.parquet"
    pq.write_table(pq.read_table(part).drop_columns(["host_rss_bytes", "unavailable"]), part)
    found = read_timeline(folder)
    assert found.attrs["problems"] == [] and len(found) == 44
    assert found["host_rss_bytes"].isna().sum() == 22 + 11, "the older part, and the replica that shares a process"


def test_devices_of_an_older_layout_lack_only_what_came_later(tmp_path: Path) -> None:
    folder = three_launches(tmp_path).folder
    path = folder / "run.parquet"
    table = pq.read_table(path)
    older = [
        [
            {k: v for k, v in d.items() if "memory_" not in k or k == "memory_bytes"}
            for d in table["devices"].to_pylist()[0]
        ]
    ]
    kind = arrow_schema("run").field("devices").type.value_type
    names = ("index", "name", "uuid", "memory_bytes", "capability")
    column = pa.array(older, pa.list_(pa.struct([kind.field(name) for name in names])))
    pq.write_table(table.set_column(table.column_names.index("devices"), "devices", column), path)
    data = read_run(folder)
    assert data.problems == () and data.run.devices == made_run().devices


def test_declarations_older_than_combine_keep_their_meaning(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    for index in range(2):
        launch = made_launch(CASE, index, index)
        rows = [
            sample(launch, "peak_allocated_bytes", 10.0 + index, device_index=0),
            sample(launch, "epoch_seconds", 4.0),
        ]
        writer.add(launch, rows)
    for part in (writer.folder / "parts").glob("samples-*"):
        table = pq.read_table(part)
        declared = json.loads(table.schema.metadata[METRICS_KEY])
        older = [{name: value for name, value in item.items() if name != "combine"} for item in declared]
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, METRICS_KEY: json.dumps(older)}), part)
    data = read_run(writer.folder)
    found = {item.metric: item.value for item in estimate(data.samples, data.launches, data.metrics.values())}
    assert found == {"peak_allocated_bytes": 11.0, "epoch_seconds": 4.0}


def test_a_wrong_gauge_is_refused_by_name(tmp_path: Path) -> None:
    writer = three_launches(tmp_path)
    launch = made_launch(CASE, 3, 3)
    rows = [replace(timeline(launch)[0], unavailable=(NameValue(name="cpu_percent", value="x"),), cpu_percent="3")]  # type: ignore[arg-type]
    with pytest.raises(reader.ResultsError, match="timeline.cpu_percent must be float, got '3'"):
        writer.add(launch, [], rows)
    assert len(read_run(writer.folder).launches) == 3, "the launch is written last"
