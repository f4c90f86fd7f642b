"""Checks of how steady the figures are: within a launch, between launches, and over their number."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median

from bench.analysis.checks.base import Check, Seen, by_reason
from bench.analysis.estimates import TOO_FEW
from bench.analysis.intervals import t_quantile
from bench.analysis.spreads import Spread
from bench.analysis.summary import STEP, Row
from bench.schema import UNTIMED, Launch
from bench.series import drift

LEAST_LAUNCHES = 3
LEAST_ROUNDS = 5
WIDE = 0.10
"""Half-width of an interval, relative to the estimate, from which it is called wide."""
APART = 1.25
"""How far the slowest launch of a case may be from the fastest."""
STALLED = 1.10
"""Mean over median of the rounds of a launch, from which a part of them took much longer."""
MOST_RANKED = 300
"""Rounds of a launch that are looked at for a drift; of more, every second or third."""
TARGET_OPTION = "--interval-target"
"""Where nobody asked for a target, how wide the interval over launches is says more than a launch's own rounds."""
STARVED = 0.85
"""Least share of its CPU threads that a worker which waits for nobody should get."""


def of_launches(seen: Seen) -> Iterator[Check]:
    """What happened within launches."""
    timed = [launch for launch in seen.data.launches if launch.purpose not in UNTIMED and launch.status == "ok"]
    yield Check(
        title="Warm-up that did not become steady",
        seen=_named(seen, ((launch, launch.warmup_end) for launch in timed if launch.steady is False)),
        remedy="end other work on the machine; where steps are long, --preset standard waits longer",
    )
    yield Check(
        title="Measured rounds that still moved",
        seen=tuple(_moving(seen, timed)),
        remedy="a longer warm-up: --preset standard; or look for what grows or heats up: memory, caches, clocks",
    )
    few = [
        (launch, "1 round" if launch.rounds == 1 else f"{launch.rounds} rounds")
        for launch in timed
        if (launch.rounds or LEAST_ROUNDS) < LEAST_ROUNDS
    ]
    yield Check(
        title=f"Fewer than {LEAST_ROUNDS} rounds in a launch",
        seen=_named(seen, few),
        remedy=f"leave out --rounds, or give at least {LEAST_ROUNDS}",
    )
    asked = any(word.startswith(TARGET_OPTION) for word in seen.data.run.arguments or ())
    missed = [(launch, launch.rounds_end) for launch in timed if (launch.rounds_end or "").startswith("budget")]
    yield Check(
        title=f"The target of {TARGET_OPTION} was not reached",
        seen=_named(seen, missed) if asked else (),
        remedy="a wider target, or --preset standard, whose launches may last longer",
    )
    yield Check(
        title="Some rounds took much longer than most",
        seen=_named(seen, _stalled(seen, timed)),
        remedy="the figures are medians and hide it: look for stalls (data, logging, other work) in the step itself",
    )


def _moving(seen: Seen, timed: Sequence[Launch]) -> Iterator[str]:
    """Cases most of whose launches moved the same way: a single launch may seem to by chance."""
    rounds = _round_values(seen)
    of: dict[str, list[float]] = defaultdict(list)
    for launch in timed:
        values = rounds.get((str(launch.case_id), launch.launch), [])
        # Its time grows with the square of the rounds.
        found = drift(values[:: 1 + len(values) // MOST_RANKED])
        of[str(launch.case_id)].append(found.change if found is not None else 0.0)
    for case_id, changes in of.items():
        for moved in ([change for change in changes if change > 0], [change for change in changes if change < 0]):
            if len(moved) > max(1, len(changes) / 2):
                words = f"by {median(moved):+.0%} from first round to last in {len(moved)} of {len(changes)} launches"
                yield f"{seen.names.get(case_id, case_id)}: {words}"


def _stalled(seen: Seen, timed: Sequence[Launch]) -> Iterator[tuple[Launch, str]]:
    rounds = _round_values(seen)
    for launch in timed:
        values = rounds.get((str(launch.case_id), launch.launch), [])
        if len(values) >= LEAST_ROUNDS and fmean(values) > STALLED * median(values):
            yield launch, f"mean of the rounds {fmean(values) / median(values) - 1:.0%} above their median"


def _round_values(seen: Seen) -> Mapping[tuple[str, int | None], list[float]]:
    samples = seen.data.samples
    # Zero and infinite rounds come from files that were not ours; their launch has a doubt elsewhere.
    sound = samples["round_index"].notna() & (samples["value"] > 0) & (samples["value"] < math.inf)
    of_steps = samples[(samples["metric"] == STEP) & sound]
    found: dict[tuple[str, int | None], list[float]] = defaultdict(list)
    for case_id, launch, value in zip(of_steps["case_id"], of_steps["launch"], of_steps["value"], strict=True):
        found[case_id, launch].append(float(value))
    return found


def _named(seen: Seen, found: Iterable[tuple[Launch, str | None]]) -> tuple[str, ...]:
    """A line a case: its launches with the first one's words."""
    of: dict[str, list[tuple[Launch, str | None]]] = defaultdict(list)
    for launch, words in found:
        of[str(launch.case_id)].append((launch, words))
    lines = []
    for case_id, items in of.items():
        numbers = ", ".join(str(launch.launch) for launch, _ in items)
        which = f"launch {numbers}" if len(items) == 1 else f"launches {numbers}; launch {items[0][0].launch}"
        lines.append(f"{seen.names.get(case_id, case_id)}, {which}: {items[0][1]}")
    return tuple(lines)


def of_estimates(seen: Seen) -> Iterator[Check]:
    """What the figures of cases rest on."""
    steps = [(name, row, row.step) for name, row in seen.rows if row.step is not None]
    few = [
        (name, "1 launch: no interval" if len(step.launches) == 1 else f"{len(step.launches)} launches")
        for name, _, step in steps
        if len(step.launches) < LEAST_LAUNCHES
    ]
    yield Check(
        title="Too few launches for a useful interval",
        seen=_counted(few, len(steps)),
        remedy=f"--launches 6: at 2 an interval is {_width(2) / _width(6):.1f} times as wide for the same noise",
    )
    enough = [(name, row, step) for name, row, step in steps if len(step.launches) >= LEAST_LAUNCHES]
    yield Check(
        title=f"Wide interval: beyond +-{WIDE:.0%}",
        seen=tuple(
            f"{name}: +-{half:.0%} over {len(step.launches)} launches"
            for name, _, step in enough
            if (half := half_width(step)) is not None and half > WIDE
        ),
        remedy="more --launches (four times as many halve it), or a machine that does nothing else",
    )
    yield Check(
        title="Launches of one case lie far apart",
        seen=tuple(
            f"{name}: slowest launch {step.largest / step.smallest:.2f} times as long as the fastest"
            for name, _, step in steps
            if step.smallest > 0 and step.largest / step.smallest > APART
        ),
        remedy="other work on the machine, clocks or memory placement: end other work and measure again",
    )
    yield Check(
        title="Doubt about the figures",
        seen=tuple(f"{name}: {note}" for name, row in seen.rows for note in row.notes if note != TOO_FEW),
    )
    yield Check(
        title="Workers did not get the CPU time that they could use",
        seen=tuple(_starved(seen.rows)),
        remedy="other work on the machine takes it: end it, or raise the container's CPU limit",
    )


def _width(launches: int) -> float:
    """Half-width of an interval over so many launches, in standard deviations of one."""
    return t_quantile(launches - 1) / math.sqrt(launches)


def half_width(spread: Spread) -> float | None:
    """Half of an interval relative to its middle (0.1: +-10 %); None where there is no interval."""
    if spread.low is None or spread.high is None or spread.low <= 0:
        return None
    return math.sqrt(spread.high / spread.low) - 1


def _counted(found: Sequence[tuple[str, str]], total: int) -> tuple[str, ...]:
    """One line where it holds for every case of the run."""
    words = {text for _, text in found}
    if len(found) == total > 1 and len(words) == 1:
        return (f"every case: {words.pop()}",)
    return by_reason(found)


def _starved(rows: Sequence[tuple[str, Row]]) -> Iterator[str]:
    """Single workers only: one that waits for others in a collective rests meanwhile."""
    for name, row in rows:
        axes = row.result.axes
        threads = {launch.threads_per_worker for launch in row.result.launches if launch.threads_per_worker}
        alone = axes.device_type == "cpu" and axes.strategy == "single"
        got = next((value for value in row.result.per_device("cpu_percent") if value is not None), None)
        if alone and got is not None and len(threads) == 1:
            could = 100 * next(iter(threads))
            if got < STARVED * could:
                yield f"{name}: {got:.0f} % of {could} % ({could // 100} threads)"
