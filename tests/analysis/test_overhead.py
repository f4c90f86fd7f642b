"""Parallel overhead against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import bench
from bench import strategies
from bench.analysis.cases import CaseResult
from bench.analysis.intervals import Interval
from bench.analysis.overhead import STRATEGY_OPTIONS, difference_interval, parallel_overheads, run_overheads
from bench.recording.reader import read_run
from bench.schema import Estimate, NameValue
from tests.recording.made_up import made_case, made_launch, write_run


def result(strategy: str, num_devices: int, batch: int, seconds: float | None, **changes: Any) -> CaseResult:
    axes = {name: changes.pop(name) for name in ("settings", "precision", "devices") if name in changes}
    launch = made_launch(made_case(strategy, num_devices, batch, **axes), 0, 0, **changes)
    estimates = {}
    if seconds is not None:
        estimates["step_seconds", None] = Estimate(
            run_id=launch.run_id, case_id=launch.case_id, metric="step_seconds", value=seconds, launches=1, rounds=3
        )
    reason = None if seconds is not None else "planted"
    return CaseResult(launches=(launch,), status="ok" if seconds else "oom", reason=reason, estimates=estimates)


def test_difference_of_two_means_by_hand() -> None:
    # Means 0.16 and 0.11, variances of the means 0.0001 each: 2 degrees of freedom, t = 4.3027.
    found = difference_interval([0.15, 0.17], [0.10, 0.12])
    half = 4.302652729749462 * math.sqrt(0.0002)
    assert found.value == pytest.approx(0.05)
    assert (found.low, found.high) == (pytest.approx(0.05 - half), pytest.approx(0.05 + half))


def test_a_single_launch_has_no_interval_and_equal_launches_have_one_without_width() -> None:
    assert difference_interval([3.0], [1.0, 2.0]) == Interval(value=1.5)
    assert difference_interval([3.0, 3.0], [1.0, 1.0]) == Interval(value=2.0, low=2.0, high=2.0)
    with pytest.raises(ValueError, match="both sides"):
        difference_interval([], [1.0])


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (result("ddp", 2, 64, 0.15), 0.05),  # 32 a device
        (result("fsdp", 2, 64, 0.08), -0.02),
        # 16 of the micro-batch of 48 on the first device, 32 on the other: the largest chunk counts.
        (result("balanced_dp", 2, 48, 0.13, chunk_sizes=(16, 32), settings={"gpu0_bsz": "16"}), 0.03),
        (result("dp", 2, 64, 0.17, settings={"loss_on": "replica"}), 0.07),
        (result("single", 1, 64, 0.2), 0.0),
    ],
    ids=lambda value: value.axes.case_id if isinstance(value, CaseResult) else "",
)
def test_step_time_less_that_of_single_at_the_largest_chunk(case: CaseResult, expected: float) -> None:
    overhead = parallel_overheads([result("single", 1, 32, 0.1), case])[case.axes.case_id]
    assert overhead.reason is None and overhead.seconds is not None
    assert overhead.seconds.value == pytest.approx(expected)


def test_accumulation_is_the_same_on_both_sides() -> None:
    # Two micro-batches of 16 a device: single takes 32 in two micro-batches.
    case = result("ddp", 2, 64, 0.3, chunk_sizes=(16, 16), accumulation_steps=2)
    one_piece = result("single", 1, 32, 0.1)
    pieces = result("single", 1, 32, 0.12, accumulation_steps=2, case_id="pieces")
    overhead = parallel_overheads([one_piece, pieces, case])[case.axes.case_id]
    assert overhead.against == "pieces"
    assert overhead.seconds is not None and overhead.seconds.value == pytest.approx(0.18)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (result("single", 1, 64, 0.1), "no case of single at batch 32 with the same levers"),
        (result("single", 1, 32, 0.1, precision="fp32"), "no case of single at batch 32"),
        (result("single", 1, 32, 0.1, settings={"compile": "on"}), "no case of single at batch 32"),
        (result("single", 1, 32, 0.1, size="quick"), "no case of single at batch 32"),
        (result("single", 1, 32, 0.1, devices=(3,)), "a device of this one"),
        (result("single", 1, 32, None), "resnet50-single-1x-b32-bf16 has no step time: planted"),
    ],
)
def test_without_such_a_case_of_single_it_is_unknown_and_says_why(base: CaseResult, words: str) -> None:
    case = result("ddp", 2, 64, 0.15)
    overhead = parallel_overheads([base, case])[case.axes.case_id]
    assert overhead.seconds is None and words in str(overhead.reason)


def test_a_case_without_a_time_or_with_a_lever_of_its_own_is_unknown() -> None:
    base = result("single", 1, 32, 0.1)
    failed = result("ddp", 2, 64, None)
    lever = result("ddp", 2, 64, 0.15, settings={"compile": "on"})
    found = parallel_overheads([base, failed, lever])
    assert found[failed.axes.case_id].reason == "it has no step time: planted"
    assert "add 32 to --global-batch-size" in str(found[lever.axes.case_id].reason)


def test_launches_of_a_run_give_the_interval_and_load_has_it(tmp_path: Path) -> None:
    single, ddp, other = made_case("single", 1, 32), made_case("ddp", 2, 64), made_case("ddp", 2, 128)
    plan = [(single, [32 / 0.10, 32 / 0.12], []), (ddp, [64 / 0.15, 64 / 0.17], []), (other, [500.0, 510.0], [])]
    folder = write_run(tmp_path, plan)
    seconds = run_overheads(read_run(folder))[str(ddp)].seconds
    assert seconds is not None and seconds.value == pytest.approx(0.05)
    table = bench.load(tmp_path).set_index("case_id")
    names = [f"parallel_overhead_seconds{end}" for end in ("", "_low", "_high")]
    half = 4.302652729749462 * math.sqrt(0.0002)
    assert table.loc[str(ddp), names].tolist() == pytest.approx([0.05, 0.05 - half, 0.05 + half])
    assert table.loc[str(single), names].tolist() == [0.0, 0.0, 0.0]
    assert table.loc[str(other), names].isna().all()
    assert table[names[0]].dtype == "float64"


def test_every_option_of_a_strategy_is_told_from_a_lever() -> None:
    declared = {option.name for strategy in strategies.registry for option in strategy.options}
    assert declared <= STRATEGY_OPTIONS, "name the new options in STRATEGY_OPTIONS"
    assert NameValue(name="compile", value="on").name not in STRATEGY_OPTIONS
