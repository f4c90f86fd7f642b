"""The search for the largest global batch that a workload trains with each strategy, and its speed there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench import strategies
from bench.planning.options import LARGEST_BATCH
from bench.planning.plan import Plan
from bench.running.bisection import Bisection
from bench.running.searches import Ask
from bench.running.session import Finished
from bench.schema import MAX_BATCH, Case

STEP_DOWN = 0.05
MOST_STEPS_DOWN = 3
"""Where timing at the largest batch runs out of memory after all, it is tried at 5 % less, so many times."""
NO_LIMIT = (
    "the largest batch on CPU workers is not looked for without --memory-limit: it would fill this machine's memory; "
    "give each worker a limit, e.g. --memory-limit 1GiB"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxBatch:
    """Search, strategy by strategy, then time every strategy at its own largest batch.

    cases: one for each strategy, with its options and levers, at the batch to begin near.
    """

    workload: str
    cases: tuple[Case, ...]
    probes_each: int = 32
    seconds_each: float = 1800.0

    @property
    def name(self) -> str:
        return f"{MAX_BATCH}-{self.workload}"

    @property
    def most_probes(self) -> int:
        return self.probes_each * len(self.cases)

    def run(self, ask: Ask) -> None:
        if self.cases[0].device_type == "cpu" and ask.plan.memory_limit_bytes is None:
            for case in self.cases:
                ask.skip(case, NO_LIMIT)
            ask.say(NO_LIMIT)
            return
        found = [largest for case in self.cases if (largest := self._largest(ask, case)) is not None]
        self._time(ask, found)

    def _largest(self, ask: Ask, case: Case) -> Case | None:
        """The case at its largest batch, None where none trains, or that is not known."""
        num_samples = ask.num_samples(case)
        bisection = bisection_of(case, num_samples)
        if bisection is None:
            ask.probe(case)  # it is refused, and the row says why
            return None
        started, probes = time.monotonic(), 0
        while (batch := bisection.next()) is not None:
            if why := self._spent(probes, time.monotonic() - started):
                ask.skip(at(case, batch), why)
                break
            end = ask.probe(at(case, batch))
            probes += 1
            if end.row.status not in ("ok", "oom"):
                break
            bisection.add(batch, fits=end.row.status == "ok")
        if bisection.fits is not None and bisection.fits == bisection.most and bisection.settled:
            ask.probe(at(case, bisection.most + bisection.unit))  # refused for want of data, which the row says
        ask.say(said(case, bisection, probes))
        return None if bisection.fits is None else at(case, bisection.fits)

    def _spent(self, probes: int, seconds: float) -> str | None:
        if probes >= self.probes_each:
            return f"the search for the largest batch ends after {probes} probes"
        if seconds >= self.seconds_each:
            return f"the search for the largest batch ends after {seconds:.0f} s ({probes} probes)"
        return None

    def _time(self, ask: Ask, cases: Sequence[Case]) -> None:
        """Time each at its largest batch; at somewhat less where a timed launch needs more memory than three steps."""
        for step in range(MOST_STEPS_DOWN + 1):
            if not cases:
                return
            ended = ask.measure(cases)
            full = [case for case in cases if _ran_out(ended[case])]
            cases = [smaller for case in full if (smaller := step_down(case)) is not None]
            for case in full:
                trial = "it is timed at 5 % less" if step < MOST_STEPS_DOWN else "it is not timed any smaller"
                ask.say(f"{case}: trained for 3 steps, but a timed launch ran out of memory; {trial}")


def max_batch_searches(plan: Plan) -> list[MaxBatch]:
    """One search for each workload: every strategy of the comparison on all devices, `single` on one."""
    found = [MaxBatch(workload=name, cases=tuple(_ways(plan, name))) for name in plan.workloads]
    return [search for search in found if search.cases]


def _ways(plan: Plan, name: str) -> Iterator[Case]:
    """The comparison's cases on all devices, each once, whatever its batches: at the smallest of them."""
    seen = set()
    for case in sorted(plan.comparison(name), key=lambda case: case.global_batch_size):
        way = replace(case, global_batch_size=1)
        if (case.strategy == "single" or case.num_devices == len(plan.devices)) and way not in seen:
            seen.add(way)
            yield case


def unit_of(case: Case) -> int:
    """Batches are compared at multiples of this: every device takes as many samples of every micro-batch."""
    return case.num_devices * case.accumulation_steps


def bisection_of(case: Case, num_samples: int | None) -> Bisection | None:
    """Where to begin, near the case's batch, and where to end; None where no batch can be tried at all."""
    unit = unit_of(case)
    most = min(num_samples or 0, LARGEST_BATCH) // unit * unit
    least = next((batch for batch in _doublings(unit, most) if _can_split(at(case, batch))), None)
    if least is None or strategies.registry.get(case.strategy).unsupported(case) is not None:
        return None
    start = min(max(case.global_batch_size // unit * unit, least), most)
    return Bisection(unit=unit, start=start, least=least, most=most)


def _doublings(batch: int, most: int) -> Iterator[int]:
    while batch <= most:
        yield batch
        batch *= 2


def _can_split(case: Case) -> bool:
    try:
        strategies.registry.get(case.strategy).chunk_sizes(case)
    except ValueError:
        return False
    return True


def at(case: Case, batch: int) -> Case:
    """The case at another batch."""
    return replace(case, global_batch_size=batch)


def step_down(case: Case) -> Case | None:
    """The case at 5 % less, or one unit; None where that is nothing."""
    unit = unit_of(case)
    batch = case.global_batch_size - max(unit, int(case.global_batch_size * STEP_DOWN) // unit * unit)
    return at(case, batch) if batch > 0 else None


def _ran_out(launches: Sequence[Finished]) -> bool:
    return any(launch.row.status == "oom" for launch in launches)


def said(case: Case, bisection: Bisection, probes: int) -> str:
    """What was found of one strategy, in a line."""
    fits, large = bisection.fits, bisection.too_large
    name = str(at(case, fits or case.global_batch_size))
    count = f"{probes} probe{'' if probes == 1 else 's'}"
    if fits is None:
        ended = f"even {large} samples run out of memory" if large is not None else "no probe ended ok"
        return f"{name}: {ended} ({count})"
    if bisection.settled and large is not None:
        return f"{name}: {fits} is the largest global batch, {large} runs out of memory ({count})"
    return f"{name}: the largest global batch is {fits} or more, the search ended there ({count})"
