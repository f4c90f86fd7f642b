from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bench.errors import ResultsError
from bench.recording.columns import METRICS_KEY, TABLE_KEY, VERSION_KEY, arrow_schema, arrow_table, from_row, kinds
from bench.schema import TABLES, Estimate, Launch, NameValue, Run, Sample, TimelineRow
from tests.recording.made_up import METRICS, made_case, made_launch, made_run, sample

FILE = Path("results/r/launches.parquet")
LAUNCH = made_launch(made_case("ddp", 4, 256, settings={"bucket_cap_mb": "50"}), 0, 0)
ROWS: dict[str, Any] = {
    "run": made_run(),
    "launches": LAUNCH,
    "samples": sample(LAUNCH, "step_seconds", 0.5, round_index=0),
    "timeline": TimelineRow(
        run_id="r",
        case_id="c",
        launch=0,
        device_index=1,
        elapsed_seconds=0.5,
        measured=True,
        memory_used_bytes=2**40,
        unavailable=(NameValue(name="power_watts", value="NVML: Not Supported"),),
    ),
    "estimates": Estimate(run_id="r", case_id="c", metric="m", launches=0, rounds=0),
}


def test_types_units_and_meanings_come_from_the_dataclass() -> None:
    schema = arrow_schema("launches")
    assert schema.field("position").type == pa.int64()
    assert schema.field("wall_seconds").type == pa.float64()
    assert schema.field("emulated").type == pa.bool_()
    assert schema.field("started_at").type == pa.timestamp("us", tz="UTC")
    assert schema.field("devices").type == pa.list_(pa.int64())
    assert schema.field("settings").type.value_type.field("name").type == pa.string()
    assert schema.field("wall_seconds").metadata == {b"unit": b"s", b"meaning": b"whole launch"}
    assert schema.field("reason").nullable and not schema.field("status").nullable
    assert (schema.metadata[VERSION_KEY], schema.metadata[TABLE_KEY]) == (b"1", b"launches")
    assert METRICS_KEY not in schema.metadata
    assert b"step_seconds" in arrow_schema("samples", METRICS).metadata[METRICS_KEY]


@pytest.mark.parametrize("table", list(TABLES))
def test_a_row_comes_back_as_it_was(table: str) -> None:
    row = ROWS[table]
    stored = arrow_table(table, [row], metrics=METRICS, file=FILE).to_pylist()
    assert from_row(type(row), stored[0]) == row


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"world_size": 0.5}, "launches.world_size must be int"),
        ({"position": True}, "launches.position must be int"),
        ({"reason": 3}, "launches.reason must be str"),
        ({"status": None}, "launches.status must be str"),
        ({"chunk_sizes": (32, "auto")}, r"launches.chunk_sizes\[1\] must be int, got 'auto'"),
        ({"chunk_sizes": 32}, "launches.chunk_sizes must be a tuple of int"),
        ({"settings": ("x",)}, r"launches.settings\[0\] must be a NameValue"),
        ({"emulated": 1}, "launches.emulated must be bool"),
        ({"started_at": datetime(2026, 1, 1)}, "launches.started_at must be a time with its zone"),
        ({"position": 2**70}, "cannot hold"),
    ],
)
def test_a_wrong_type_is_refused_with_field_and_file(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ResultsError, match=where) as caught:
        arrow_table("launches", [LAUNCH, replace(LAUNCH, **changes)], file=FILE)
    assert str(FILE) in str(caught.value)


def test_a_whole_number_then_a_fraction_share_a_column_of_floats() -> None:
    values = [sample(LAUNCH, "m", value) for value in (0, 0.5, None)]
    table = arrow_table("samples", values, file=FILE)
    assert table.column("value").to_pylist() == [0.0, 0.5, None]


def test_undecodable_bytes_of_a_command_line_are_kept_readable() -> None:
    table = arrow_table("run", [made_run(command_line="pytest \udcff")], file=FILE)
    assert table.column("command_line").to_pylist() == ["pytest \\udcff"]


def test_missing_columns_are_null() -> None:
    run = from_row(Run, {"run_id": "r"})
    assert (run.run_id, run.devices, run.cuda_version, run.notes) == ("r", (), None, ())


def test_a_type_that_no_column_holds_is_refused() -> None:
    @dataclass
    class Mixed:
        value: int | str

    with pytest.raises(TypeError, match="more than one type"):
        kinds(Mixed)


def test_another_row_type_is_refused() -> None:
    with pytest.raises(ResultsError, match="launches must be a Launch, not Sample"):
        arrow_table("launches", [ROWS["samples"]], file=FILE)
    assert Launch is TABLES["launches"] and Sample is TABLES["samples"]
