"""One run against others: figures worked out by hand, changes of status, doubts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.comparing import CaseComparison, compare, counted
from bench.analysis.history import CaseRecord, RunRecord
from bench.analysis.intervals import Interval, LogMean, Reading, log_mean
from tests.recording.made_up import made_run

SPREAD = (0.0, 0.02, -0.02)
"""Logarithms of three launches: standard deviation 0.02, variance of the mean 0.0004 / 3."""


def case(
    seconds: float | None = 1.0, *, name: str = "ddp", spread: Sequence[float] = SPREAD, **changes: Any
) -> CaseRecord:
    value = None if seconds is None else log_mean([seconds * math.exp(part) for part in spread])
    given: dict[str, Any] = {"status": "ok", "reason": None, "trusted": True, "data_source": "noise",
                             "chunk_sizes": (4, 4)}  # fmt: skip
    return CaseRecord(case_id=name, value=value, **(given | changes))


def run(*cases: CaseRecord, name: str = "head") -> RunRecord:
    return RunRecord(folder=Path("/results") / name, run=made_run(run_id=name), cases={c.case_id: c for c in cases})


def only(head: CaseRecord, *base: CaseRecord) -> CaseComparison:
    found = compare(run(head), [run(record, name=f"base{index}") for index, record in enumerate(base)])
    (compared,) = found.cases
    return compared


def test_against_one_run_by_hand() -> None:
    # Welch: each variance of the mean 0.0004 / 3, equal, so 4 degrees of freedom: t 2.776445; half 2.776445 x 0.016330
    found = only(case(1.1), case(1.0))
    half = 2.776445105197793 * math.sqrt(2 * 0.0004 / 3)
    assert found.times_as_long is not None and found.times_as_long.low is not None
    assert found.times_as_long.value == pytest.approx(1.1)
    assert found.times_as_long.low == pytest.approx(1.1 * math.exp(-half))
    assert (found.verdict, found.base_runs, found.base_launches, found.head_launches) == ("slower", 1, 3, 3)
    assert found.is_regression(0.03) and not found.is_regression(0.06), "its near end is 5.1 % beyond"
    assert "the baseline is 1 run" in found.doubts[0]


def test_against_several_runs_their_own_spread_is_the_measure() -> None:
    # means 0, 0.1, -0.1: standard deviation 0.1; prediction: t(2) 4.302653 x 0.1 x sqrt(1 + 1/3) = 0.49683
    base = [case(math.exp(shift)) for shift in (0.0, 0.1, -0.1)]
    found = only(case(1.1), *base)
    assert found.times_as_long is not None and found.times_as_long.high is not None
    assert found.times_as_long.value == pytest.approx(1.1)
    assert found.times_as_long.high == pytest.approx(1.1 * math.exp(4.302652729749462 * 0.1 * math.sqrt(4 / 3)))
    assert (found.verdict, found.base_runs, found.base_launches) == ("unclear", 3, 9)
    assert only(case(1.1), case(1.0)).verdict == "slower", "a single run of them does not know how runs differ"


def test_equal_runs_leave_the_interval_of_the_launches() -> None:
    # the runs' means are equal, so their spread is 0; pooled: variance 0.0004 / 3 / 3, 6 degrees of freedom
    found = only(case(1.0), *[case(1.0)] * 3)
    among = math.sqrt(0.0004 / 3 + 0.0004 / 9)
    freedom = (0.0004 / 3 + 0.0004 / 9) ** 2 / ((0.0004 / 3) ** 2 / 2 + (0.0004 / 9) ** 2 / 6)
    assert math.floor(freedom) == 3
    assert found.times_as_long is not None and found.times_as_long.high is not None
    assert math.log(found.times_as_long.high) == pytest.approx(3.182446305283708 * among)


def test_one_launch_on_a_side_has_no_interval_and_is_no_regression() -> None:
    found = only(case(2.0, spread=[0.0]), case(1.0))
    assert found.times_as_long == Interval(value=pytest.approx(2.0))
    assert found.verdict == "unclear" and not found.is_regression(0.03)
    assert "too few launches for an interval: this run has 1; measure with --launches 6" in found.doubts[0]


def test_one_launch_a_night_against_three_nights_has_one() -> None:
    found = only(case(1.0, spread=[0.0]), *[case(math.exp(shift), spread=[0.0]) for shift in (0.0, 0.1, -0.1)])
    assert found.times_as_long is not None and found.times_as_long.low is not None


def test_a_case_that_fails_now_is_a_regression_whatever_its_speed() -> None:
    found = only(case(None, status="oom", reason="CUDA out of memory"), case(1.0))
    assert (found.change, found.is_regression(0.03)) == ("broken", True)
    assert found.reason == "oom: CUDA out of memory (before: ok)"


@pytest.mark.parametrize(
    ("head", "base", "change", "reason"),
    [
        (case(None, status="skipped", reason="no bf16"), case(1.0), "not compared", "skipped: no bf16 (before: ok)"),
        (case(None, status="error", reason="x"), case(None, status="error"), "not compared",
         "error: x (before: error)"),
        (case(1.0), case(None, status="error"), "mended", "ok now, error before"),
        (case(1.0, data_source="MNIST"), case(1.0), "not compared", "other data: noise before, MNIST now"),
        (case(1.0, trusted=False), case(1.0), "not compared", "emulated or oversubscribed: its speed means nothing"),
        (case(None), case(1.0), "not compared", "this run has no figure of the compared metric"),
        (case(1.0), case(None), "not compared", "the baseline has no figure of the compared metric"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_says_why(head: CaseRecord, base: CaseRecord, change: str, reason: str) -> None:
    found = only(head, base)
    assert (found.change, found.reason, found.times_as_long) == (change, reason, None)
    assert not found.is_regression(0.03)


def test_cases_of_one_side_only_are_told() -> None:
    found = compare(run(case(name="a"), case(name="b")), [run(case(name="b"), case(name="c"), name="base")])
    assert {item.case_id: item.change for item in found.cases} == {"a": "new", "b": "compared", "c": "gone"}
    assert counted(found) == {"new": 1, "unclear": 1, "gone": 1}


def test_a_run_against_itself_is_the_same_run_and_nothing_is_slower() -> None:
    noisy = run(case(1.0, spread=(0.0, 2.0, -2.0)), case(None, name="x", status="error", reason="y"))
    found = compare(noisy, [noisy])
    assert found.same_run and found.regressions(0.0) == ()
    assert [(item.change, item.verdict) for item in found.cases] == [("compared", "same"), ("not compared", None)]


def test_another_split_and_a_wide_interval_are_doubts() -> None:
    found = only(case(1.0, spread=(0.0, 0.3, -0.3), chunk_sizes=(2, 6)), case(1.0))
    assert any(doubt.startswith("wide interval: +-") and "--launches" in doubt for doubt in found.doubts)
    assert "samples per device differ: 4+4 before, 2+6 now" in found.doubts


def test_a_shift_of_all_cases_together() -> None:
    names = ("a", "b", "c")
    found = compare(run(*(case(1.2, name=n) for n in names)), [run(*(case(1.0, name=n) for n in names), name="base")])
    assert found.shift == pytest.approx(1.2)
    assert compare(run(case(1.2)), [run(case(1.0), name="base")]).shift is None, "one case is not all of them"


def test_a_slower_machine_is_told_and_allowed_for() -> None:
    """All times are 10 % longer, and so is the fixed piece of work beside them."""
    levels = (-0.02, 0.0, 0.02, 0.01)
    rest = (0.001, -0.001, -0.001, 0.001)

    def paced(factor: float) -> CaseRecord:
        times = [factor * math.exp(level + r) for level, r in zip(levels, rest, strict=True)]
        found = [Reading(value=time, pace=factor * math.exp(level)) for time, level in zip(times, levels, strict=True)]
        return replace(case(factor, spread=levels), readings=tuple(found))

    found = only(paced(1.1), paced(1.0))
    assert found.times_as_long is not None and found.base is not None and found.head is not None
    assert found.head / found.base == pytest.approx(1.1) and found.times_as_long.contains(1.0)
    assert found.pace == pytest.approx(1.1) and not found.is_regression(0.03)
    assert any(d.startswith("the machine was 10% slower now by its pace; that took +9") for d in found.doubts)
    assert any("what differs beyond the machine's pace from run to run" in doubt for doubt in found.doubts)
    blind = only(replace(paced(1.1), readings=()), replace(paced(1.0), readings=()))
    assert blind.pace is None and blind.is_regression(0.03), "without the pace it would be an alarm"
    (other,) = compare(run(paced(1.1)), [run(paced(1.0), name="base")], why_blind="torch is 3, and was 2").cases
    assert other.is_regression(0.03) and other.pace == pytest.approx(1.1)
    assert "the machine was 10% slower now by its pace; not allowed for: torch is 3, and was 2" in other.doubts


def test_runs_of_other_rounds_are_a_doubt() -> None:
    (doubt,) = [d for d in only(case(rounds=3), case(rounds=10)).doubts if d.startswith("rounds a launch differ")]
    assert "from 3 to 10" in doubt and "--rounds" in doubt


def test_what_an_estimate_keeps_gives_the_launches_back() -> None:
    from bench.analysis.intervals import log_mean_of, mean_interval

    values = [1.0, 1.1, 1.3, 0.9]
    kept = mean_interval(values)
    back, direct = log_mean_of(kept.value, kept.low, kept.high, 4), log_mean(values)
    assert (
        back is not None and back.variance == pytest.approx(direct.variance) and back.mean == pytest.approx(direct.mean)
    )
    assert log_mean_of(2.0, None, None, 1) == LogMean(mean=math.log(2.0), variance=None, count=1)
    assert log_mean_of(None, None, None, 0) is None
