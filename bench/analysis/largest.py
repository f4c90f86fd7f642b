"""The largest batch of each strategy, from the probes of a search; and its speed there, from the timed launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from bench.analysis.cases import worst
from bench.analysis.spreads import surely_above
from bench.analysis.summary import (
    OWN_LARGEST,
    STRATEGY_ORDER,
    Row,
    WorkloadSummary,
    strategy_label,
)
from bench.analysis.wording import number
from bench.recording.reader import RunData
from bench.schema import MAX_BATCH, Launch

_Key: TypeAlias = tuple[object, ...]
BALANCED = "balanced_dp"
UNFINISHED = "the search did not come to its end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A largest batch over that of a reference. at_least: it is a lower bound, since its own search found no limit."""

    value: float
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRow:
    """What a search found of one strategy.

    largest: samples of the largest global batch that trained, None where none did; exact: the next larger one
    (`unit` more) ran out of memory; confirmed: it trained twice; too_large: the smallest that ran out of memory;
    why: why there is no largest batch, or none that is exact; timed: the case at it, or at a little less where a timed
    launch ran out of memory there.
    """

    label: str
    strategy: str
    num_devices: int
    unit: int
    largest: int | None
    exact: bool
    confirmed: bool
    too_large: int | None
    probes: int
    why: str | None
    emulated: bool
    oversubscribed: bool
    versus_dp: Factor | None = None
    versus_ddp: Factor | None = None
    timed: Row | None = None

    @property
    def ranked(self) -> bool:
        """Whether its speed may be held against that of the others."""
        return self.timed is not None and self.timed.excluded in (None, OWN_LARGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSummary:
    """The largest batches of one workload, strategy by strategy, and what they say in words."""

    workload: str
    size_text: str
    device_type: str
    precision: str
    memory_limit_bytes: int | None
    rows: tuple[LargestRow, ...]
    sentences: tuple[str, ...] = ()


def largest_summaries(data: RunData, summaries: Sequence[WorkloadSummary]) -> tuple[LargestSummary, ...]:
    """One for each workload that was searched, in the run's order; empty without such a search.

    `summaries`: the run's comparison, whose rows hold what was timed.
    """
    groups: dict[_Key, dict[_Key, list[Launch]]] = defaultdict(lambda: defaultdict(list))
    for launch in data.launches:
        if launch.purpose == "search" and (launch.search or "").startswith(MAX_BATCH):
            groups[launch.workload, launch.size, launch.data, launch.precision][_way(launch)].append(launch)
    timed: dict[_Key, list[Row]] = defaultdict(list)
    for row in (row for summary in summaries for row in summary.rows):
        axes = row.result.axes
        key: _Key = (axes.workload, axes.size, axes.data, axes.precision, *_way(axes))
        timed[key].append(row)
    found = []
    for group, ways in groups.items():
        rows = [_row(launches, timed.get((*group, *way), ())) for way, launches in ways.items()]
        found.append(_summary(data, next(iter(ways.values()))[0], rows))
    return tuple(found)


def _way(launch: Launch) -> _Key:
    """All that a search holds fixed: the batch alone moves."""
    return (launch.strategy, launch.devices, launch.accumulation_steps, tuple(sorted(launch.settings)))


def _row(probes: Sequence[Launch], timed: Iterable[Row]) -> LargestRow:
    axes = probes[0]
    ends: dict[int, list[str]] = defaultdict(list)
    for probe in probes:
        ends[probe.global_batch_size].append(probe.status)
    too_large = min((batch for batch, of in ends.items() if "oom" in of), default=None)
    # A batch that was not tried another time has a row for that, which is no end of a probe.
    fitting = [
        batch
        for batch, of in ends.items()
        if {*of} - {"skipped"} == {"ok"} and (too_large is None or batch < too_large)
    ]
    largest, unit = max(fitting, default=None), axes.num_devices * axes.accumulation_steps
    exact = largest is not None and too_large is not None and too_large - largest == unit
    return LargestRow(
        label=strategy_label(axes.strategy, axes.settings),
        strategy=axes.strategy,
        num_devices=axes.num_devices,
        unit=unit,
        largest=largest,
        exact=exact,
        confirmed=largest is not None and ends[largest].count("ok") > 1,
        too_large=too_large,
        probes=sum(probe.status != "skipped" for probe in probes),
        why=None if exact else _why(probes, largest, too_large),
        emulated=axes.emulated,
        oversubscribed=axes.oversubscribed,
        timed=_timed(timed, largest),
    )


def _why(probes: Sequence[Launch], largest: int | None, too_large: int | None) -> str:
    """Why the search has no exact answer: how its last other end was, out of memory at its smallest, or cut short."""
    others = [(probe.status, probe.reason) for probe in probes if probe.status not in ("ok", "oom")]
    if others:
        status, reason = worst(others)
        return f"{status}: {reason or 'no reason recorded'}"
    if largest is None and too_large is not None:
        full = min((probe for probe in probes if probe.status == "oom"), key=lambda probe: probe.global_batch_size)
        return f"even {too_large} samples run out of memory: {full.reason or 'no reason recorded'}"
    return UNFINISHED


def _timed(rows: Iterable[Row], largest: int | None) -> Row | None:
    """The case at the largest batch; where that did not end ok, what the search timed at a little less."""
    if largest is None:
        return None
    at_most = [row for row in rows if row.result.axes.global_batch_size <= largest]
    exactly = [row for row in at_most if row.result.axes.global_batch_size == largest]
    known = [*exactly, *(row for row in at_most if row.result.at_own_largest)]
    ok = [row for row in known if row.result.status == "ok" and row.throughput]
    return max(ok, key=lambda row: row.result.axes.global_batch_size, default=next(iter(exactly), None))


def _summary(data: RunData, axes: Launch, rows: Sequence[LargestRow]) -> LargestSummary:
    rows = sorted(rows, key=_order)
    dp, ddp = (_reference(rows, name) for name in ("dp", "ddp"))
    rows = [replace(row, versus_dp=_factor(row, dp), versus_ddp=_factor(row, ddp)) for row in rows]
    return LargestSummary(
        workload=axes.workload,
        size_text=axes.size_text,
        device_type=axes.device_type,
        precision=axes.precision,
        memory_limit_bytes=data.run.memory_limit_bytes,
        rows=tuple(rows),
        sentences=tuple(_sentences(rows, dp, ddp)),
    )


def _order(row: LargestRow) -> tuple[object, ...]:
    known = STRATEGY_ORDER.index(row.strategy) if row.strategy in STRATEGY_ORDER else len(STRATEGY_ORDER)
    return (row.num_devices, known, row.strategy, row.label)


def _reference(rows: Sequence[LargestRow], strategy: str) -> LargestRow | None:
    """The strategy's row with the largest batch, among those whose limit was found."""
    found = [row for row in rows if row.strategy == strategy and row.exact]
    return max(found, key=lambda row: row.largest or 0, default=None)


def _factor(row: LargestRow, reference: LargestRow | None) -> Factor | None:
    if reference is None or row.label == reference.label or row.largest is None or not reference.largest:
        return None
    if row.num_devices != reference.num_devices or (row.too_large is not None and not row.exact):
        return None  # its own limit lies somewhere in between
    return Factor(value=row.largest / reference.largest, at_least=not row.exact)


def _sentences(rows: Sequence[LargestRow], dp: LargestRow | None, ddp: LargestRow | None) -> Iterator[str]:
    known = [row for row in rows if row.largest is not None and row.num_devices == max(of.num_devices for of in rows)]
    if not known:
        yield f"No largest batch is known: {'; '.join(dict.fromkeys(row.why or UNFINISHED for row in rows))}."
        return
    best = max(known, key=lambda row: row.largest or 0)
    alike = [row.label for row in known if row.largest == best.largest]
    bound = "" if best.exact else " or more"
    yield f"Largest global batch: {best.largest:,} samples{bound}, with {' and '.join(alike)}."
    for row in known:
        if row.strategy == BALANCED and row.versus_dp and dp:
            yield _balanced(row, row.versus_dp, dp)
    if unsettled := [row.label for row in known if row.exact and not row.confirmed]:
        yield f"Tried only once at its largest batch: {', '.join(unsettled)}."
    yield from _speeds(rows)


def _balanced(row: LargestRow, factor: Factor, dp: LargestRow) -> str:
    trains = f"trains {'at least ' if factor.at_least else ''}{factor.value:.2f} times"
    text = f"{row.label} {trains} the batch of {dp.label} ({row.largest:,} against {dp.largest:,})"
    if row.emulated:
        return f"{text}; both are host replicas in one process (emulated), which have no GPU 0 to relieve."
    return f"{text}: that is what giving GPU 0 fewer samples buys."


def _speeds(rows: Sequence[LargestRow]) -> Iterator[str]:
    """Which is fastest when each has its own largest batch, and whether that is sure."""
    ranked = [(row, row.timed.throughput) for row in rows if row.ranked and row.timed and row.timed.throughput]
    if not ranked:
        yield "No speed at a largest batch can be ranked."
        return
    ranked.sort(key=lambda item: -item[1].value)
    (best, rate), others = ranked[0], ranked[1:]
    near = [row.label for row, other in others if not surely_above(rate, other)]
    batch = best.timed.result.axes.global_batch_size if best.timed else 0
    what = f"{number(rate.value)} samples/s (global batch {batch:,})"
    if not others:
        yield f"Each at its own largest batch: only {best.label} can be ranked, at {what}."
    elif near:
        yield (
            f"Each at its own largest batch: no clear winner among {', '.join([best.label, *near])}; {best.label} was "
            f"fastest so far, at {what}; measure with more (--launches)."
        )
    else:
        yield f"Each at its own largest batch, {best.label} was the fastest of {len(ranked)}, at {what}."
