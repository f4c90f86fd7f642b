"""Writing a run and reading it back, whole, crashed, damaged, older and newer."""

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.analysis.estimates import estimate
from bench.errors import ResultsError
from bench.recording.columns import TABLE_KEY, VERSION_KEY, arrow_schema
from bench.recording.files import check_writable, write_atomically
from bench.recording.reader import find_run, read_run, runs
from bench.recording.writer import RunWriter
from tests.recording.made_up import (
    METRICS,
    NASTY,
    START,
    cpu_run,
    gpu_run,
    made_case,
    made_launch,
    made_run,
    timed,
    timeline,
)

CASE = made_case("ddp", 2, 64, workload=NASTY)


def two_launches(results: Path) -> RunWriter:
    writer = RunWriter(results, made_run(), METRICS)
    for index in range(2):
        launch = made_launch(CASE, index, index)
        writer.add(launch, timed(launch, 100.0 + index, [1.0, 2.0]), timeline(launch, seconds=0.5))
    return writer


def test_parts_are_on_the_disk_at_once_and_named_by_position(tmp_path: Path) -> None:
    folder = two_launches(tmp_path).folder
    names = sorted(path.name for path in (folder / "parts").iterdir())
    assert names == [
        f"{table}-0000{index}.parquet" for table in ("launches", "samples", "timeline") for index in (0, 1)
    ]
    data = read_run(folder)
    assert data.problems == ()
    assert data.run == made_run()
    assert [launch.launch for launch in data.launches] == [0, 1]
    assert data.launches[0] == made_launch(CASE, 0, 0)
    assert len(data.samples) == 2 * 9 and len(data.estimates) == 0
    assert data.metrics["step_seconds"].unit == "s"


def test_finish_compacts_and_keeps_every_row(tmp_path: Path) -> None:
    writer = two_launches(tmp_path)
    before = read_run(writer.folder)
    found = estimate(before.samples, before.launches, METRICS)
    writer.finish(found, START + timedelta(minutes=1))
    assert sorted(path.name for path in writer.folder.iterdir()) == [
        "estimates.parquet", "launches.parquet", "run.parquet", "samples.parquet", "timeline.parquet",
    ]  # fmt: skip
    after = read_run(writer.folder)
    assert after.problems == ()
    assert after.launches == before.launches
    assert after.samples.equals(before.samples)
    assert len(after.estimates) == len(found)
    assert after.run.finished_at == START + timedelta(minutes=1)
    assert pq.read_schema(writer.folder / "samples.parquet").metadata[VERSION_KEY] == b"1"


def test_parts_and_compacted_files_mix_without_doubling(tmp_path: Path) -> None:
    writer = two_launches(tmp_path)
    shutil.copytree(writer.folder / "parts", tmp_path / "kept")
    expected = read_run(writer.folder)
    writer.finish([], START)
    shutil.copytree(tmp_path / "kept", writer.folder / "parts")
    data = read_run(writer.folder)
    assert data.launches == expected.launches and len(data.samples) == len(expected.samples)


def test_refusals(tmp_path: Path) -> None:
    writer = two_launches(tmp_path)
    with pytest.raises(ResultsError, match="exists; choose another --run-id"):
        RunWriter(tmp_path, made_run(), METRICS)
    with pytest.raises(ResultsError, match="two launches claim position 1"):
        writer.add(made_launch(CASE, 5, 1), [])
    for name in ("../escape", "a/b", "", ".hidden", "latest", NASTY):
        with pytest.raises(ResultsError, match="cannot name a folder"):
            RunWriter(tmp_path, made_run(run_id=name), METRICS)


@pytest.mark.parametrize("content", [b"", b"just text\n", b"PAR1 and then nothing", None], ids=repr)
def test_a_damaged_file_is_named_and_the_rest_loads(tmp_path: Path, content: bytes | None) -> None:
    folder = two_launches(tmp_path).folder
    part = folder / "parts" / "samples-00001.parquet"
    part.write_bytes(part.read_bytes()[:-100] if content is None else content)
    data = read_run(folder)
    assert len(data.problems) == 1 and str(part) in data.problems[0] and "set aside" in data.problems[0]
    assert len(data.launches) == 2 and len(data.samples) == 9


def test_a_flipped_byte_does_not_pass_as_a_number(tmp_path: Path) -> None:
    folder = two_launches(tmp_path).folder
    part = folder / "parts" / "samples-00000.parquet"
    content = bytearray(part.read_bytes())
    column = pq.ParquetFile(part).metadata.row_group(0).column(6)
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    part.write_bytes(bytes(content))
    data = read_run(folder)
    assert len(data.problems) == 1 and len(data.samples) == 9


def test_finish_keeps_a_part_that_it_cannot_read(tmp_path: Path) -> None:
    writer = two_launches(tmp_path)
    part = writer.folder / "parts" / "samples-00001.parquet"
    part.write_bytes(b"broken")
    writer.finish([], START)
    assert part.exists() and len(read_run(writer.folder).problems) == 1


def test_strangers_are_named_and_hidden_files_are_not(tmp_path: Path) -> None:
    folder = two_launches(tmp_path).folder
    (folder / "notes.txt").write_text("hello")
    (folder / "parts" / ".samples-00002.parquet.123.tmp").write_bytes(b"half")
    pq.write_table(pa.table({"case_id": ["x"]}), folder / "launches.parquet")
    problems = read_run(folder).problems
    assert len(problems) == 2
    assert "notes.txt: set aside, not a results file" in problems[0]
    assert "launches.parquet: set aside, not written by dpbench" in problems[1]


def rewrite(path: Path, table: pa.Table, **metadata: str) -> None:
    changed = {**table.schema.metadata, **{key.encode(): value.encode() for key, value in metadata.items()}}
    pq.write_table(table.replace_schema_metadata(changed), path)


def test_an_older_layout_gets_nulls_and_a_newer_column_is_noted(tmp_path: Path) -> None:
    folder = two_launches(tmp_path).folder
    old = folder / "parts" / "launches-00000.parquet"
    table = pq.read_table(old).drop_columns(["backend", "phase"])
    rewrite(old, table.append_column("colour", pa.array(["red"])))
    data = read_run(folder)
    assert data.launches[0].backend is None and data.launches[0].phase is None
    assert data.launches[1] == made_launch(CASE, 1, 1)
    assert data.problems == (f"{old}: left out unknown columns colour",)


def test_what_cannot_be_this_table_is_set_aside(tmp_path: Path) -> None:
    folder = two_launches(tmp_path).folder
    path = folder / "parts" / "launches-00000.parquet"
    table = pq.read_table(path)
    seen = []
    rewrite(path, table, dpbench_schema_version="99")
    seen.append(read_run(folder))
    rewrite(path, table, dpbench_table="samples")
    seen.append(read_run(folder))
    rewrite(path, table.set_column(3, "purpose", pa.array([[1]])))
    seen.append(read_run(folder))
    rewrite(path, table.drop_columns(["case_id"]))
    seen.append(read_run(folder))
    words = ["layout 99 is newer than the 1", "holds the table samples", "column purpose is not", "case_id is missing"]
    for data, text in zip(seen, words, strict=True):
        assert len(data.problems) == 1 and text in data.problems[0] and len(data.launches) == 1


def test_without_run_parquet_the_launches_tell_what_they_know(tmp_path: Path) -> None:
    folder = two_launches(tmp_path).folder
    (folder / "run.parquet").unlink()
    data = read_run(folder)
    assert (data.run.run_id, data.run.device_type) == (made_run().run_id, "cuda")
    assert not data.run.cpu_name and not data.run.devices
    assert "run.parquet: missing" in data.problems[0]


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="holds no readable run"):
        read_run(tmp_path)
    with pytest.raises(ResultsError, match="is no folder"):
        read_run(tmp_path / "absent")


def test_finding_runs(tmp_path: Path) -> None:
    assert runs(tmp_path / "absent") == []
    with pytest.raises(ResultsError, match="no run in .*; measure one"):
        find_run(tmp_path)
    older, newer = gpu_run(tmp_path), cpu_run(tmp_path)
    (tmp_path / "stray.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    os.utime(older)
    assert runs(tmp_path) == [newer, older]
    assert find_run(tmp_path, "latest") == newer
    assert find_run(tmp_path, older.name) == older
    assert find_run(tmp_path / "absent", str(older)) == older
    with pytest.raises(ResultsError, match=f"no run 'nope' in .*; there is: {newer.name}, {older.name}"):
        find_run(tmp_path, "nope")


def test_check_writable_tries(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder", what="the results", option="--results")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ResultsError, match="the results cannot be written to .*; choose .* may write with --results DIR"
    ):
        check_writable(tmp_path / "file", what="the results", option="--results")
    with pytest.raises(ResultsError, match="the report cannot be written to /proc/pages.* with --reports DIR"):
        check_writable(Path("/proc/pages"), what="the report", option="--reports")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fails(_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ResultsError, match="cannot write .*: No space left on device; free space"):
        write_atomically(path, fails)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_every_table_names_itself() -> None:
    assert arrow_schema("estimates").metadata[TABLE_KEY] == b"estimates"
