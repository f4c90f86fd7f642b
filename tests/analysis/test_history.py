"""Which runs a run is compared with, and what is read of them."""

import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from bench.analysis.history import find_baseline, read_record, with_readings
from bench.analysis.intervals import Reading
from bench.errors import ResultsError
from bench.recording.writer import RunWriter
from bench.schema import Run
from tests.recording.made_up import METRICS, START, made_case, made_launch, made_run, sample, write_run

RATES = [100.0, 101.0, 99.0]


def night(results: Path, number: int, *, finish: bool = True, **changes: object) -> Path:
    """The run of night `number`, of one case that takes 64 / 105 s in its fast rounds."""
    run: Run = made_run(run_id=f"night{number:02d}", started_at=START + timedelta(days=number))
    return write_run(results, [(made_case("ddp", 2, 64), RATES, [])], run=replace(run, **changes), finish=finish)  # type: ignore[arg-type]


def names(results: Path, base: str, head: Path) -> list[str]:
    return [record.folder.name for record in find_baseline(results, base, read_record(head)).runs]


def test_a_record_holds_the_compared_metric_of_every_case(tmp_path: Path) -> None:
    record = read_record(night(tmp_path, 0))
    (case,) = record.cases.values()
    assert (case.case_id, case.status, case.trusted, case.chunk_sizes) == (
        "resnet50-ddp-2x-b64-bf16",
        "ok",
        True,
        (32, 32),
    )
    assert case.value is not None and case.value.count == 3
    steps = [64 / (1.05 * rate) for rate in RATES]
    assert math.exp(case.value.mean) == pytest.approx(math.prod(steps) ** (1 / 3))
    (median,) = read_record(record.folder, "step_seconds").cases.values()
    assert median.value is not None and math.exp(median.value.mean) == pytest.approx(1.05 * math.exp(case.value.mean))


def test_what_each_launch_says_is_read_with_the_pace_beside_it(tmp_path: Path) -> None:
    case = made_case("ddp", 2, 64)
    writer = RunWriter(tmp_path, made_run(), METRICS)
    for index, (step, pace) in enumerate(((0.5, 0.01), (0.6, 0.02), (0.7, None))):
        launch = made_launch(case, index, index)
        note = None if pace else "no memory"
        rows = [sample(launch, "step_p10_seconds", step), sample(launch, "machine_pace_seconds", pace, note=note)]
        writer.add(launch, rows)
    (read,) = with_readings(read_record(writer.folder)).cases.values()
    assert read.readings == (
        Reading(value=0.5, pace=0.01), Reading(value=0.6, pace=0.02), Reading(value=0.7, pace=None)
    )  # fmt: skip


def test_a_run_that_was_stopped_is_read_from_its_parts(tmp_path: Path) -> None:
    whole, stopped = read_record(night(tmp_path, 0)), read_record(night(tmp_path, 1, finish=False))
    (a,), (b,) = whole.cases.values(), stopped.cases.values()
    assert a.value is not None and b.value is not None
    assert (b.value.mean, b.value.variance) == pytest.approx((a.value.mean, a.value.variance))


def test_a_window_holds_comparable_runs_before_the_judged_one(tmp_path: Path) -> None:
    folders = [night(tmp_path, number) for number in range(4)]
    night(tmp_path, 4, fingerprint="another machine")
    head, later = night(tmp_path, 5), night(tmp_path, 6)
    assert names(tmp_path, "last:3", head) == ["night03", "night02", "night01"]
    assert names(tmp_path, "last", head) == ["night03", "night02", "night01", "night00"]
    assert names(tmp_path, "last:1", folders[0]) == [], "there is none before the first"
    assert names(tmp_path, "latest", head) == [later.name]
    assert names(tmp_path, "night04", head) == ["night04"], "named, it is given, comparable or not"
    assert names(tmp_path, str(folders[2]), head) == ["night02"]
    assert find_baseline(tmp_path, "last:3", read_record(head)).words == "the last 3 comparable runs"


def test_a_folder_of_runs_is_a_baseline_of_all_that_are_comparable(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    head = night(here, 0)
    night(elsewhere, 5)
    night(elsewhere, 1, fingerprint="another machine")
    night(elsewhere, 2)
    assert names(here, str(elsewhere), head) == ["night05", "night02"], "a folder is not asked for its age"


def test_runs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    night(tmp_path, 0)
    (night(tmp_path, 1) / "run.parquet").write_bytes(b"PAR1 broken")
    broken = night(tmp_path, 2)
    for table in ("launches", "samples", "estimates"):
        (broken / f"{table}.parquet").write_bytes(b"")
    baseline = find_baseline(tmp_path, "last:9", read_record(night(tmp_path, 3)))
    assert [record.folder.name for record in baseline.runs] == ["night00"]
    assert baseline.left_out[0] == "night02: none of the cases has a figure of step_p10_seconds there"
    assert baseline.left_out[1].startswith("night01: its environment cannot be read")


@pytest.mark.parametrize("base", ["last:0", "nonsense", "last:x"])
def test_no_such_baseline(tmp_path: Path, base: str) -> None:
    head = read_record(night(tmp_path, 0))
    with pytest.raises(ResultsError, match="last:0 is a window without|no run 'nonsense'|last:x is no window"):
        find_baseline(tmp_path, base, head)
