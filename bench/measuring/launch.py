"""One timed launch, seen from the driver: warm-up, calibration, measured rounds, results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from bench import strategies
from bench.measuring.control import Message
from bench.measuring.launcher import Launcher, LaunchError, Session, Task
from bench.measuring.pace import slowest
from bench.measuring.steady import WarmUp, WarmupEnd, WarmupRule
from bench.measuring.stopping import StoppingRule, rounds_end
from bench.measuring.tasks import Job, measure
from bench.measuring.traffic import with_traffic
from bench.schema import Case, DeviceTrace, Moment, Outcome, Trace
from bench.watching.watcher import Watched, Watcher

OK = Outcome(status="ok")
LOST_PEER = ("RuntimeError", "DistBackendError", "DistNetworkError")
"""What torch raises in ranks whose peer is gone, or does something else; in some places it aborts."""
STEPS_AFTER = 3
"""Steps at most that a worker takes between the measured rounds and its end."""
LOOK_SECONDS = 30.0
"""Least time of a second look; it ends at once where a step shows something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """How long a launch measures. `round_seconds` is the least length of a round.

    rounds: how many are measured; with a `stopping` rule the least number.
    """

    rounds: int
    round_seconds: float
    warmup: WarmupRule
    stopping: StoppingRule | None = None


@dataclass(slots=True, kw_only=True)
class Clock:
    """Parts of a launch's wall time (s); None for a part that was not reached."""

    started: float = field(default_factory=time.perf_counter)
    startup_seconds: float | None = None
    warmup_seconds: float | None = None
    measured_seconds: float | None = None
    teardown_seconds: float | None = None
    wall_seconds: float | None = None

    def lap(self) -> float:
        """Seconds since the last lap or the start, not counted by any other part."""
        now, known = time.perf_counter(), (self.startup_seconds, self.warmup_seconds, self.measured_seconds)
        return now - self.started - sum(part for part in known if part is not None)

    def stop(self) -> None:
        """The launch is over."""
        self.wall_seconds = time.perf_counter() - self.started
        if self.measured_seconds is not None:
            self.teardown_seconds = self.lap()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """How a launch ended, how long its parts took, and its trace when it ended well.

    `timeline` and `watch_problems` are there however it ended: what the watcher read of a
    timed launch, and what it could not.
    """

    outcome: Outcome
    clock: Clock
    trace: Trace | None = None
    warmup_end: str | None = None
    steady: bool | None = None
    rounds_end: str | None = None
    timeline: tuple[Moment, ...] = ()
    watch_problems: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far the rounds of a launch got. steps: with those of an unfinished round; seconds: without."""

    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Why the warm-up and the measured rounds of a launch ended."""

    warmup: WarmupEnd
    rounds: str


Drive: TypeAlias = Callable[[Session, Clock], "tuple[Trace, Ends | None]"]


class Watch:
    """The watching of one launch; without a watcher nothing is read."""

    def __init__(self, watcher: Watcher | None = None) -> None:
        self._watcher = watcher
        self.watched = Watched()

    @contextmanager
    def over(self, session: Session, case: Case, clock: Clock) -> Iterator[None]:
        """Watch from here to the end of the block, however it ends; the workers must still be there."""
        if self._watcher is None:
            yield
            return
        pids = [process.pid for process in session.processes]
        if len(pids) == 1:  # one process drives them all
            pids *= case.num_devices
        self._watcher.watch(case.devices, pids, started=clock.started)
        try:
            yield
        finally:
            self.watched = self._watcher.stop()

    def begin(self) -> None:
        """The measured rounds begin."""
        if self._watcher is not None:
            self._watcher.begin()

    def finish(self) -> None:
        """The measured rounds are over."""
        if self._watcher is not None:
            self._watcher.finish()


def run_launch(
    launcher: Launcher, task: Task, job: Job, world_size: int, drive: Drive, watch: Watch | None = None
) -> LaunchResult:
    """Start workers on `task`, let `drive` talk with them, and turn every end into an outcome."""
    clock, watch = Clock(), watch or Watch()
    try:
        with (
            launcher.start(task, job, world_size, job.timeout_seconds) as session,
            watch.over(session, job.case, clock),
        ):
            session.replies()
            clock.startup_seconds = clock.lap()
            trace, ends = drive(session, clock)
    except LaunchError as error:
        clock.stop()
        result = LaunchResult(outcome=error.outcome, clock=clock)
    else:
        clock.stop()
        trace = replace(trace, timeline=watch.watched.moments)
        result = LaunchResult(outcome=OK, clock=clock, trace=trace)
        if ends is not None:
            warmup = ends.warmup
            result = replace(result, warmup_end=warmup.text, steady=warmup.steady, rounds_end=ends.rounds)
    return replace(result, timeline=watch.watched.moments, watch_problems=watch.watched.problems)


def time_case(
    launcher: Launcher, job: Job, world_size: int, plan: RoundPlan, watcher: Watcher | None = None
) -> LaunchResult:
    """Run one timed launch of a case, watched where there is a watcher.

    Where the strategy's ranks must agree, it looks at the first steps, at one after the rounds, and, where the launch
    failed, at every step of a second launch: none of them is timed.
    """
    watch, progress = Watch(watcher), Progress()

    def drive(session: Session, clock: Clock) -> tuple[Trace, Ends]:
        warmup, warm = _warm_up(session, plan, progress)
        # Outside of what begin and traces enclose: its CPU time and allocated memory do not count. What the allocator
        # keeps of it (some 100 MB on a GPU) is in the reserved memory, as far as the model does not take it.
        pace = [slowest(session.command({"op": "pace"}))]
        session.command({"op": "begin"})
        clock.warmup_seconds = clock.lap()
        watch.begin()
        rounds, enough = _measured_rounds(session, plan, warmup.steps, progress)
        watch.finish()
        traces = session.command({"op": "traces"})
        clock.measured_seconds = clock.lap()
        pace.append(slowest(session.command({"op": "pace"})))
        progress.steps += STEPS_AFTER
        traffic = session.command({"op": "finish", "traffic": True})
        workload = job.workload()
        trace = Trace(
            case=job.case,
            steps_per_round=warmup.steps,
            warmup_round_seconds=tuple(warmup.seconds),
            round_seconds=tuple(rounds),
            tokens_per_sample=workload.size.tokens_per_sample,
            epoch_samples=workload.epoch_samples,
            epoch_data=workload.epoch_data,
            pace_seconds=tuple(seconds for seconds in pace if seconds is not None),
            devices=with_traffic(device_traces(traces, job.case.num_devices), traffic),
        )
        return trace, Ends(warmup=warm, rounds=enough)

    result = run_launch(launcher, measure, job, world_size, drive, watch)
    if result.clock.startup_seconds is None or not may_have_parted(result.outcome, job.case):
        return result
    return _second_look(launcher, job, world_size, progress, result)


def may_have_parted(outcome: Outcome, case: Case) -> bool:
    """Whether a launch can have failed so because its ranks did different things: it hung, or lost a peer."""
    reason = outcome.reason or ""
    lost = outcome.status == "error" and (reason.startswith(LOST_PEER) or "SIGABRT" in reason)
    must_agree = case.num_devices > 1 and strategies.registry.get(case.strategy).ranks_must_agree
    return must_agree and (lost or outcome.status == "timeout")


def _second_look(
    launcher: Launcher, job: Job, world_size: int, progress: Progress, failed: LaunchResult
) -> LaunchResult:
    """Take the steps of a failed launch again, with every one looked at; `failed` as it is where nothing is found."""
    startup = failed.clock.startup_seconds or 0.0
    limit = min(job.timeout_seconds, LOOK_SECONDS + 2 * startup + 3 * progress.seconds)

    def drive(session: Session, clock: Clock) -> tuple[Trace, None]:
        for step in range(1, progress.steps + 1):
            _round(session, 1, f"step {step}", Progress())
        session.command({"op": "finish"})
        return Trace(case=job.case), None

    found = run_launch(
        launcher, measure, replace(job, looks=math.inf, timeout_seconds=limit), world_size, drive
    ).outcome
    if found.status != "skipped":
        return failed
    reason = f"{found.reason} (in {found.phase}; this launch, which did not look at it, ended: {failed.outcome.reason})"
    return replace(failed, outcome=replace(found, reason=reason))


def _round(session: Session, steps: int, phase: str, progress: Progress) -> float:
    """Seconds of one round: that of its slowest rank."""
    progress.steps += steps
    replies = session.command({"op": "round", "steps": steps, "phase": phase})
    seconds = max(float(reply["seconds"]) for reply in replies)  # type: ignore[arg-type]
    progress.seconds += seconds
    return seconds


def _warm_up(session: Session, plan: RoundPlan, progress: Progress) -> tuple[WarmUp, WarmupEnd]:
    """The warm-up's rounds with the steps per round that they led to, and why it ended."""
    warmup = WarmUp(plan.warmup, plan.round_seconds)
    end: WarmupEnd | None = None
    while end is None:
        end = warmup.add(_round(session, warmup.steps, "warm-up", progress))
    return warmup, end


def _measured_rounds(session: Session, plan: RoundPlan, steps: int, progress: Progress) -> tuple[list[float], str]:
    """Durations of the measured rounds (s), and why they ended."""
    rounds: list[float] = []
    while (end := rounds_end(rounds, plan.rounds, plan.stopping)) is None:
        rounds.append(_round(session, steps, f"round {len(rounds)}", progress))
    return rounds, end


def device_traces(replies: list[Message], num_devices: int) -> tuple[DeviceTrace, ...]:
    """One trace per device of the case; a device that no process reported for has no figures."""
    reported = [DeviceTrace(**device) for reply in replies for device in reply["devices"]]  # type: ignore[union-attr,arg-type]
    known = {trace.device_index: trace for trace in reported}
    return tuple(known.get(position, DeviceTrace(device_index=position)) for position in range(num_devices))
