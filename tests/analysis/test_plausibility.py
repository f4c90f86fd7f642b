"""What no hardware can do is named, with the arithmetic."""

from __future__ import annotations

from pathlib import Path

from bench.analysis.cases import CaseResult
from bench.analysis.checks import checks
from bench.analysis.plausibility import impossible
from bench.analysis.summary import summarise
from bench.recording.reader import read_run
from bench.recording.writer import RunWriter
from bench.schema import Estimate
from tests.recording.made_up import METRICS, made_case, made_launch, made_run, sample, timed

Figures = dict[str, tuple[float, float | None]]


def result(figures: Figures, devices: tuple[int, ...] = (0, 1)) -> CaseResult:
    """Each figure with the lower end of its interval."""
    launch = made_launch(made_case("ddp", len(devices), 128, devices=devices), 0, 0)
    estimates = {
        (name, None): Estimate(
            run_id=launch.run_id, case_id=launch.case_id, metric=name, value=value, low=low,
            high=None if low is None else 2 * value - low, launches=2, rounds=6,
        )
        for name, (value, low) in figures.items()
    }  # fmt: skip
    return CaseResult(launches=(launch,), status="ok", reason=None, estimates=estimates)


# 12.3 TFLOP in 0.01 s are 1,230 TFLOP/s, of 2 x 312.
STEP: Figures = {"model_flops_per_step": (12.3e12, None), "step_seconds": (0.01, 0.009)}
SHARE = 12.3 / (0.01 * 2 * 312)


def test_beyond_the_published_peak_is_impossible_with_the_arithmetic() -> None:
    (line,) = impossible([result({**STEP, "model_flops_utilization": (SHARE, None)})])
    start = "resnet50-ddp-2x-b128-bf16: 12.3 TFLOP a step / (0.01 s x 2 devices x 312 TFLOP/s) = 197 %"
    assert line.startswith(f"{start} of the published peak: impossible; ")
    assert "do not use this case" in line


def test_beyond_the_measured_product_only_by_the_lower_end_and_the_product_may_be_slow() -> None:
    (line,) = impossible([result({**STEP, "matmul_utilization": (SHARE, 1.5)})])
    assert "= 197 % of the matrix product measured in this run (at least 150 %): impossible" in line
    assert "the product that was slow" in line
    assert impossible([result({**STEP, "matmul_utilization": (SHARE, 0.99)})]) == ()
    assert impossible([result({**STEP, "matmul_utilization": (SHARE, None)})]) == ()


def test_what_hardware_can_do_and_what_is_unknown_leaves_nothing() -> None:
    fine: Figures = {**STEP, "model_flops_utilization": (1.0, 0.9), "matmul_utilization": (0.8, 0.7)}
    assert impossible([result(fine), result({})]) == ()


def test_a_device_that_is_listed_twice_is_one_device() -> None:
    (line,) = impossible([result({**STEP, "model_flops_utilization": (2 * SHARE, None)}, devices=(0, 0))])
    assert "/ (0.01 s x 1 device x 312 TFLOP/s) = 394 %" in line


def test_without_its_parts_the_share_stands_alone() -> None:
    (line,) = impossible([result({"model_flops_utilization": (1.5, None)})])
    assert line.startswith("resnet50-ddp-2x-b128-bf16: 150 % of the published peak: impossible")


def test_flops_that_could_not_be_counted_are_a_check_of_their_own(tmp_path: Path) -> None:
    case = made_case("ddp", 2, 64)
    writer = RunWriter(tmp_path, made_run(), METRICS)
    launch = made_launch(case, 0, 0)
    uncounted = sample(launch, "model_flops_per_step", None, note="planted: it took too long")
    writer.add(launch, [*timed(launch, 100.0), uncounted])
    data = read_run(writer.folder)
    (check,) = [check for check in checks(data, summarise(data)) if check.title.startswith("FLOPs not counted")]
    assert check.seen == ("resnet50: ddp: planted: it took too long",)
