"""The driver's side of a timed launch, against made-up workers: warm-up, calibration, rounds, results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from bench.measuring.control import Message, Plain
from bench.measuring.launch import LaunchResult, RoundPlan, time_case
from bench.measuring.launcher import Launcher, LaunchError
from bench.measuring.steady import WarmupRule
from bench.measuring.stopping import StoppingRule
from bench.schema import DeviceTrace, Outcome
from tests.measuring.support import make_case, make_job

PLAN = RoundPlan(rounds=3, round_seconds=1.0, warmup=WarmupRule(least_rounds=4, max_rounds=6, max_seconds=1000.0))


class MadeUpWorkers:
    """Answers like two ranks whose rounds last as scripted, rank 1 a tenth less than rank 0 or the reverse."""

    def __init__(self, seconds: Iterable[float], devices: list[list[Plain]] | None = None) -> None:
        self._seconds = iter(seconds)
        self._devices = devices or [[{"device_index": 0}], [{"device_index": 1}]]
        self.commands: list[Message] = []
        self.fail_at: str | None = None

    def replies(self) -> list[Message]:
        return [{}, {}]

    def command(self, message: Message) -> list[Message]:
        self.commands.append(message)
        if message["op"] == self.fail_at:
            raise LaunchError(Outcome(status="error", reason="planted", rank=1, phase="here"))
        if message["op"] == "round":
            slowest = next(self._seconds)
            pair = [slowest, 0.9 * slowest]
            return [{"seconds": value} for value in (pair if len(self.commands) % 2 else pair[::-1])]
        if message["op"] == "traces":
            return [{"devices": listed} for listed in self._devices]
        return [{}, {}]

    @contextmanager
    def start(self, *_: Any) -> Iterator[MadeUpWorkers]:
        yield self

    def steps(self) -> list[Plain]:
        return [command["steps"] for command in self.commands if command["op"] == "round"]


def run(workers: MadeUpWorkers, plan: RoundPlan = PLAN) -> LaunchResult:
    return time_case(cast(Launcher, workers), make_job(make_case("ddp")), 2, plan)


def test_rounds_are_long_enough_and_as_slow_as_the_slowest_rank() -> None:
    # The second step takes 0.3 s: a round of at least 1 s has ceil(1 / 0.3) = 4 steps.
    workers = MadeUpWorkers([5.0, 0.3, 1.2, 1.2, 1.2, 1.2, 1.21, 1.22, 1.23])
    result = run(workers)
    assert result.outcome.status == "ok" and result.trace is not None
    assert workers.steps() == [1, 1, 4, 4, 4, 4, 4, 4, 4]
    assert result.trace.steps_per_round == 4
    assert result.trace.warmup_round_seconds == (5.0, 0.3, 1.2, 1.2, 1.2, 1.2)
    assert result.trace.round_seconds == (1.21, 1.22, 1.23)
    assert result.warmup_end == "steady: no trend in the last 4 rounds (0 %, p 1)" and result.steady is True
    assert result.rounds_end == "fixed by --rounds 3"


def test_peaks_are_reset_between_warm_up_and_the_measured_rounds() -> None:
    workers = MadeUpWorkers([5.0, 0.3] + [1.2] * 7)
    run(workers)
    assert [command["op"] for command in workers.commands] == [
        *["round"] * 6, "pace", "begin", *["round"] * 3, "traces", "pace", "finish"
    ]  # fmt: skip


def test_steps_longer_than_a_round_make_rounds_of_one_step() -> None:
    workers = MadeUpWorkers([9.0, 2.0, 2.1, 2.0, 2.0, 2.0, 2.0, 2.0])
    result = run(workers)
    assert result.trace is not None
    assert workers.steps() == [1] * 8
    # All rounds have one step, so the second one is compared too; the first carries one-off costs.
    assert result.trace.warmup_round_seconds == (9.0, 2.0, 2.1, 2.0, 2.0)


def test_warm_up_that_is_not_steady_ends_at_its_bound_with_a_reason() -> None:
    # The second round and five of 4 steps, each 0.2 s faster than the one before.
    workers = MadeUpWorkers([5.0, 0.3, 2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 1.0, 1.0])
    result = run(workers)
    assert result.trace is not None and result.trace.round_seconds == (1.0, 1.0, 1.0)
    # Of the last four, 1.8 to 1.2, S is -6; the slope -0.2 over 3 steps and the median 1.5 make -40 %.
    assert result.warmup_end == "not steady within 6 rounds (limit): a trend in the last 4 rounds (-40 %, p 0.089)"
    assert result.steady is False


def test_steps_are_counted_anew_and_all_rounds_are_kept() -> None:
    # 2 steps by the second round; but they take 0.1 s, so that a round of 1 s has 20.
    plan = replace(PLAN, warmup=WarmupRule(least_rounds=4, max_rounds=9))
    workers = MadeUpWorkers([5.0, 0.5] + [0.1] * 3 + [1.0] * 7)
    result = run(workers, plan)
    assert result.trace is not None and result.trace.steps_per_round == 20
    assert workers.steps() == [1, 1, 2, 2, 2] + [20] * 7
    assert result.trace.warmup_round_seconds == (5.0, 0.5, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0)


SEEKING = replace(PLAN, rounds=6, stopping=StoppingRule(max_rounds=9, max_seconds=1000.0))


def test_rounds_go_on_until_the_interval_is_narrow() -> None:
    # 1.2 and 1.26 among the first six, which lie at the ends up to the eighth; the second of nine from each end is 1.2.
    rounds = [1.2, 1.26, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2]
    result = run(MadeUpWorkers([5.0, 0.3] + [1.2] * 4 + rounds), SEEKING)
    assert result.trace is not None and result.trace.round_seconds == tuple(rounds)
    assert result.rounds_end == "interval within 0 % after 9 rounds"


def test_rounds_end_with_the_budget() -> None:
    # The second of nine from each end: 1.2 and 1.26, a half-width of 0.03 over the median 1.2.
    rounds = [1.2, 1.26, 1.26, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2]
    result = run(MadeUpWorkers([5.0, 0.3] + [1.2] * 4 + rounds), SEEKING)
    assert result.rounds_end == "budget of 9 rounds spent at 2.5 % after 9 rounds (target 1 %)"


def test_how_long_a_case_measures_depends_on_its_own_rounds_only() -> None:
    """The same rounds after a faster case, a slower one, and none: as many rounds, ended for the same reason."""
    own = [5.0, 0.3] + [1.2] * 4 + [1.2, 1.26] + [1.2] * 7
    faster, slower = ([0.5 * value for value in own], [3.0, 7.0] * 8)
    ends = []
    for others in ([], [faster], [slower], [slower, faster]):
        for seconds in others:
            run(MadeUpWorkers(seconds), SEEKING)
        ends.append(run(MadeUpWorkers(own), SEEKING))
    assert {(end.rounds_end, end.warmup_end) for end in ends} == {(ends[0].rounds_end, ends[0].warmup_end)}
    assert {len(end.trace.round_seconds) for end in ends if end.trace is not None} == {9}


def test_devices_keep_their_order_and_those_without_a_report_have_no_figures() -> None:
    figures: list[list[Plain]] = [[{"device_index": 1, "peak_allocated_bytes": 7}], []]
    result = run(MadeUpWorkers([5.0, 0.3] + [1.2] * 7, figures))
    assert result.trace is not None
    assert result.trace.devices == (
        DeviceTrace(device_index=0), DeviceTrace(device_index=1, peak_allocated_bytes=7)
    )  # fmt: skip


@pytest.mark.parametrize(("op", "known"), [("begin", (True, False, False)), ("traces", (True, True, False))])
def test_failure_keeps_the_parts_that_were_reached(op: str, known: tuple[bool, bool, bool]) -> None:
    workers = MadeUpWorkers([5.0, 0.3] + [1.2] * 7)
    workers.fail_at = op
    result = run(workers)
    assert result.outcome == Outcome(status="error", reason="planted", rank=1, phase="here")
    assert result.trace is None
    clock = result.clock
    parts = (clock.startup_seconds, clock.warmup_seconds, clock.measured_seconds)
    assert tuple(part is not None for part in parts) == known
    assert clock.teardown_seconds is None and clock.wall_seconds is not None
