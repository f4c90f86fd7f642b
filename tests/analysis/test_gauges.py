"""What the watcher found becomes checks: named, counted, and each only once."""

from pathlib import Path
from typing import Any

import pytest

import bench
from bench.analysis.checks import checks
from bench.analysis.summary import summarise
from bench.recording.reader import read_run
from bench.recording.writer import RunWriter
from tests.recording.made_up import METRICS, made_case, made_launch, made_run, sample, timed

SHORT = "too short: read over 0.4 s, and the GPU averages over up to 1 s"


def run(results: Path, samples: dict[str, list[Any]], launches: int = 2, **changes: Any) -> Path:
    """Launches of one case on two devices; `samples`: for a metric (value, note) device by device."""
    writer = RunWriter(results, made_run(), METRICS)
    for index in range(launches):
        launch = made_launch(made_case("ddp", 2, 64, precision="fp32"), index, index, **changes)
        rows = [
            sample(launch, name, value, device_index=device, note=note)
            for name, values in samples.items()
            for device, (value, note) in enumerate(values)
        ]
        writer.add(launch, timed(launch, 100.0) + rows)
    return writer.folder


def found(folder: Path) -> dict[str, tuple[str, ...]]:
    data = read_run(folder)
    listed = {check.title: check.seen for check in checks(data, summarise(data))}
    return {title: seen for title, seen in listed.items() if title.startswith("Watcher: ")}


def test_a_quiet_machine_raises_no_doubt(tmp_path: Path) -> None:
    quiet = {"other_processes": [(0.0, None)] * 2, "throttled_percent": [(0.0, None)] * 2,
             "utilization_percent": [(95.0, None)] * 2}  # fmt: skip
    assert found(run(tmp_path, quiet)) == {}


def test_other_processes_and_throttling_are_named_by_device(tmp_path: Path) -> None:
    samples = {
        "other_processes": [(0.0, None), (2.0, None)],
        "throttled_percent": [(40.0, "sw_power_cap"), (0.0, None)],
    }
    assert found(run(tmp_path, samples, launches=1)) == {
        "Watcher: other processes were on the GPU": ("resnet50: ddp, device 1: 2 at once",),
        "Watcher: clocks were held back": ("resnet50: ddp, device 0: at 40 % of the readings (sw_power_cap)",),
    }


def test_a_short_window_is_told_once_a_case(tmp_path: Path) -> None:
    samples = {"utilization_percent": [(90.0, SHORT)] * 2, "power_watts": [(300.0, SHORT)] * 2}
    assert found(run(tmp_path, samples)) == {"Watcher: averages over too short a time": (f"resnet50: ddp: {SHORT}",)}


def test_what_is_not_supported_is_told_once_a_reason(tmp_path: Path) -> None:
    lacking = [(None, "NVML: Not Supported")] * 2
    samples = {"utilization_percent": lacking, "sm_activity_percent": lacking, "power_watts": [(300.0, None)] * 2}
    (seen,) = found(run(tmp_path, samples)).values()
    assert seen == ("utilization_percent, sm_activity_percent: NVML: Not Supported (cases: 1, first resnet50: ddp)",)


def test_problems_of_the_watcher_are_counted_over_launches(tmp_path: Path) -> None:
    folder = run(tmp_path, {}, launches=3, watch_problems=("the watcher ended with status -9",))
    assert found(folder) == {
        "Watcher: what it could not read": (
            "the watcher ended with status -9 (launches: 3, first resnet50-ddp-2x-b64-fp32, launch 0)",
        )
    }


def test_load_has_the_energy_of_the_case_and_of_each_device(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    for index in range(2):
        launch = made_launch(made_case("ddp", 2, 64), index, index)
        rows = [sample(launch, "joules_per_sample", 1.0 + device, device_index=device) for device in range(2)]
        writer.add(launch, [*timed(launch, 100.0), *rows, sample(launch, "joules_per_sample", 3.0)])
    row = bench.load(tmp_path).iloc[0]
    assert [row.joules_per_sample, row.joules_per_sample_low] == pytest.approx([3.0, 3.0])
    assert row.joules_per_sample_per_device == [1.0, 2.0] and row.joules_per_sample_max == 2.0
    assert "utilization_percent" not in row.index and row.utilization_percent_per_device is None
