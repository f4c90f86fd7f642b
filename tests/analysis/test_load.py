import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import bench
from bench.analysis.cases import case_results
from bench.analysis.summary import summarise
from bench.errors import ResultsError
from bench.recording.reader import read_run
from bench.recording.writer import RunWriter
from tests.recording import made_up
from tests.recording.made_up import METRICS, cpu_run, gpu_run, made_case, made_launch, made_run, sample, write_run


def row_of(table: pd.DataFrame, case_id: str) -> Any:
    found = table[table.case_id == case_id]
    assert len(found) == 1
    return found.iloc[0]


def test_one_row_per_timing_case_and_run(tmp_path: Path) -> None:
    gpu_run(tmp_path)
    cpu_run(tmp_path)
    table = bench.load(tmp_path)
    assert list(table.run_id.unique()) == ["20261130T000000Z-cd34", "20261129T233022Z-ab12"], "the newest first"
    assert len(table) == 4 + 12 and not table.case_id.str.contains("parity").any()
    assert table.attrs["problems"] == []
    ddp = row_of(table, "resnet50-ddp-4x-b256-bf16")
    assert ddp.samples_per_second_low < ddp.samples_per_second < ddp.samples_per_second_high
    assert (ddp.peak_allocated_bytes_max, ddp.peak_allocated_bytes_min) == (23 * 2**30, 20 * 2**30)
    assert ddp.peak_allocated_bytes_per_device == [value * 2**30 for value in (20.0, 21.0, 22.0, 23.0)]
    assert (ddp.status, ddp.launches, ddp.launches_ok, ddp.num_devices, ddp.settings) == ("ok", 6, 6, 4, "")
    assert (ddp.parity_error, ddp.parity_status) == (2e-7, "ok")
    assert row_of(table, "resnet50-dp-4x-b256-bf16-loss_on:replica").settings == "loss_on:replica"
    missed = row_of(table, "resnet50-fsdp1-4x-b256-bf16")
    assert missed.parity_status == "missed" and "9.0e-01 is above the limit of 1e-04" in missed.parity_reason
    oom = row_of(table, "resnet50-ddp-4x-b4096-bf16")
    assert oom.status == "oom" and "out of memory" in oom.reason and math.isnan(oom.step_seconds)
    emulated = row_of(table, "mnist_cnn-dp-2x-b64-fp32")
    assert bool(emulated.emulated) and emulated.host_peak_rss_bytes_per_device == [2**29, None]
    assert table.samples_per_second.dtype == "float64" and table.global_batch_size.dtype == "int64"


def test_a_crashed_run_has_its_estimates_too(tmp_path: Path) -> None:
    whole = bench.load(gpu_run(tmp_path / "a"))
    crashed = bench.load(gpu_run(tmp_path / "b", finish=False))
    pd.testing.assert_frame_equal(whole, crashed)


def test_problems_are_warned_of_and_listed(tmp_path: Path) -> None:
    folder = gpu_run(tmp_path)
    (folder / "estimates.parquet").write_bytes(b"")
    (tmp_path / "stray.txt").write_text("hello")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.parquet").write_text("hello")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = bench.load(tmp_path)
    assert len(table) == 12 and len(table.attrs["problems"]) == len(caught) == 3
    text = "\n".join(table.attrs["problems"])
    assert "stray.txt" in text and "broken" in text and "estimates.parquet" in text


def test_no_run_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ResultsError, match="no run in"):
            bench.load(folder)


def test_the_worst_status_is_shown(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    case = made_case("ddp", 2, 64)
    for index, status in enumerate(("ok", "skipped", "timeout", "oom")):
        launch = made_launch(case, index, index, status=status, reason=None if status == "ok" else f"why {status}")
        writer.add(launch, made_up.timed(launch, 100.0) if status == "ok" else [])
    row = bench.load(tmp_path).iloc[0]
    assert (row.status, row.reason, row.launches, row.launches_ok) == ("timeout", "why timeout", 4, 1)
    assert row.samples_per_second == pytest.approx(100.0)


def test_parity_is_joined_at_fp32_and_at_the_own_precision(tmp_path: Path) -> None:
    timed_case = made_case("ddp", 2, 64, settings={"bucket_cap_mb": "5"})
    other = replace(timed_case, settings=())
    exact = replace(timed_case, precision="fp32")
    parity = [(exact, 1e-7), (timed_case, 3e-3), (replace(other, precision="fp32"), 0.5)]
    row = bench.load(write_run(tmp_path, [(timed_case, [100.0], [])], parity=parity)).iloc[0]
    assert (row.parity_error, row.parity_status, row.reduced_precision_error) == (1e-7, "ok", 3e-3)


@pytest.mark.parametrize(
    ("value", "note", "status"),
    [
        (math.nan, None, "missed"),
        (None, None, "missed"),
        (0.5, "lossy: powersgd", "no verdict"),
        (0.5, "no verdict: the forward draws random numbers; in float64", "no verdict"),
        (0.5, "x", "missed"),
    ],
)
def test_parity_without_a_number_is_a_miss_and_a_lossy_lever_has_no_verdict(
    tmp_path: Path, value: float | None, note: str | None, status: str
) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    case = made_case("ddp", 2, 64, precision="fp32")
    launch = made_launch(case, 0, 0)
    writer.add(launch, made_up.timed(launch, 100.0))
    check = made_launch(replace(case, purpose="parity", global_batch_size=8), 0, 1)
    writer.add(check, [sample(check, "parity_error", value, note=note)])
    (result,) = case_results(read_run(writer.folder))
    assert result.parity.status == status and result.parity.reason


def test_a_miss_without_a_number_has_the_reason_of_its_launch(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    case = made_case("ddp", 2, 64, precision="fp32")
    launch = made_launch(case, 0, 0)
    writer.add(launch, made_up.timed(launch, 100.0))
    parity_case = replace(case, purpose="parity", global_batch_size=8)
    check = made_launch(parity_case, 0, 1, status="error", reason="the loss is nan on one device too")
    writer.add(check, [sample(check, "parity_error", math.nan, note="in float64")])
    (result,) = case_results(read_run(writer.folder))
    assert (result.parity.status, result.parity.reason) == ("missed", "the loss is nan on one device too")


@pytest.mark.parametrize("status", ["ok?", "OK", ""])
def test_a_status_that_nobody_knows_is_not_ok(tmp_path: Path, status: str) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    launch = made_launch(made_case("ddp", 2, 64, precision="fp32"), 0, 0, status=status)
    writer.add(launch, made_up.timed(launch, 100.0))
    assert bench.load(writer.folder).iloc[0].status == (status or "unknown")
    assert summarise(read_run(writer.folder))[0].ranked == ()


def test_a_failed_parity_launch_gives_its_status(tmp_path: Path) -> None:
    case = made_case("ddp", 2, 64, precision="fp32")
    failed = [(replace(case, purpose="parity", global_batch_size=8), {"status": "error", "reason": "boom"})]
    (result,) = case_results(read_run(write_run(tmp_path, [(case, [1.0], [])], failed=failed)))
    assert (result.parity.error, result.parity.status, result.parity.reason) == (None, "error", "boom")


def test_a_missed_parity_launch_ended_as_an_error_and_keeps_its_figure(tmp_path: Path) -> None:
    case = made_case("ddp", 2, 64, precision="fp32")
    writer = RunWriter(tmp_path, made_run(), METRICS)
    launch = made_launch(case, 0, 0)
    writer.add(launch, made_up.timed(launch, 100.0))
    check = replace(case, purpose="parity", global_batch_size=4)
    checked = made_launch(check, 0, 1, status="error", phase="parity", reason="0.93 is too far")
    writer.add(checked, [sample(checked, "parity_error", 0.93)])
    row = bench.load(writer.folder).iloc[0]
    assert (row.parity_error, row.parity_status, row.parity_reason) == (0.93, "missed", "0.93 is too far")
    assert summarise(read_run(writer.folder))[0].ranked == ()
