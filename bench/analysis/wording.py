"""The findings of a run in words: what was fastest, and what there is to doubt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.analysis.estimates import TOO_FEW
from bench.analysis.gauges import watcher_checks
from bench.analysis.intervals import Interval
from bench.analysis.summary import EMULATED, PARITY_UNKNOWN, Ratio, Row, WorkloadSummary
from bench.recording.reader import RunData

NOT_OK, SKIPPED = "Did not end ok", "Skipped"
REASONS = (NOT_OK, SKIPPED)
"""Checks that hold what the table of cases leaves out, in the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A reason to distrust figures: what it is, and where it was seen."""

    title: str
    seen: tuple[str, ...]


def number(value: float) -> str:
    """Four significant digits with thousands separated, e.g. 1,234 or 82.60; powers of ten below 0.0001 only."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.4g}".removesuffix(".")


def is_wide(low: float, high: float) -> bool:
    """Whether an interval spans more than a factor of 10: it tells nothing, but its ends read like measured figures."""
    return high > 10 * low


def ends_text(low: float | None, high: float | None, launches: int, text: Callable[[float], str] = number) -> str:
    """An interval as text: its ends, or why they say nothing, e.g. `unknown (2 launches)`."""
    if low is None or high is None:
        return TOO_FEW
    return f"unknown ({launches} launches)" if is_wide(low, high) else f"{text(low)} to {text(high)}"


def times(interval: Interval, launches: int) -> str:
    """A ratio as text, e.g. `1.94 times (1.90 to 1.98)`; `launches`: how many are behind it."""
    text = f"{interval.value:.2f} times"
    if interval.low is None or interval.high is None:
        return f"{text} ({TOO_FEW} for an interval)"
    if is_wide(interval.low, interval.high):
        return f"{text} (interval unknown, {launches} launches)"
    return f"{text} ({ends_text(interval.low, interval.high, launches, '{:.2f}'.format)})"


def verdict(summary: WorkloadSummary) -> str:
    """One or two sentences: the fastest among the ranked cases, its factors, and whether its lead is sure."""
    best = summary.fastest
    if best is None or best.throughput is None:
        reasons = sorted({row.excluded for row in summary.rows if row.excluded})
        return f"Nothing can be ranked: every case is left out ({', '.join(reasons)})."
    axes = best.result.axes
    devices = "1 device" if axes.num_devices == 1 else f"{axes.num_devices} devices"
    count = len(summary.ranked)
    among = "the only case that can be ranked" if count == 1 else f"the fastest of the {count} ranked cases"
    setting = f"{devices}, global batch {axes.global_batch_size}, {axes.precision}"
    rivals = summary.rivals
    if rivals:
        listed = _listed([best.title, *(row.title for row in rivals)])
        text = f"No clear winner among {listed}: {_why_unclear(best)}; measure with more (--launches). "
        text += f"Fastest so far: {best.label} ({setting})"
    else:
        text = f"{best.label} ({setting}) was {among}"
    text += f" at {number(best.throughput.value)} samples/s"
    if factors := _factors(best):
        text += f": {factors}"
    if not summary.swept and all(row.result.axes.strategy != "single" for row in summary.rows):
        text += "; add single to --strategies for a baseline"
    return " ".join([f"{text}.", *_parity_doubts(best, summary)])


def _parity_doubts(best: Row, summary: WorkloadSummary) -> Iterator[str]:
    if not best.parity.known:
        yield "Whether it trains what one device trains is not known: no parity check."
    if unknown := [row.title for row in summary.rows if row.excluded == PARITY_UNKNOWN]:
        yield f"Left out, as their parity check did not end ok: {_listed(unknown)}."


def _factors(best: Row) -> str:
    found: Sequence[tuple[str, Ratio | None]] = (("single", best.versus_single), ("dp", best.versus_dp))
    sound = [(name, ratio) for name, ratio in found if ratio and ratio.basis != EMULATED]
    launches = len(best.throughput.launches) if best.throughput else 0
    return " and ".join(f"{times(ratio.interval, launches)} {name} at the {ratio.basis}" for name, ratio in sound)


def _why_unclear(best: Row) -> str:
    count = len(best.throughput.launches) if best.throughput else 0
    if count < 2:
        return f"{TOO_FEW} for an interval"
    return f"the intervals of their ratios over {count} launches include 1"


def _listed(titles: Sequence[str]) -> str:
    shown = " / ".join(titles[:4])
    return f"{shown} and {len(titles) - 4} more" if len(titles) > 4 else shown


def banner(data: RunData) -> str | None:
    """What must be read before any figure of the run, on every screen; None where there is nothing to say."""
    if data.run.device_type == "cpu":
        emulated = sorted({launch.strategy for launch in data.launches if launch.emulated})
        what = f"; {' and '.join(emulated)}: host replicas (emulated), not ranked" if emulated else ""
        return f"CPU run: it shows the suite working, not GPU speed{what}."
    if any(launch.oversubscribed for launch in data.launches):
        return "Oversubscribed: a device was listed more than once; this shows the code working, not its speed."
    return None


def cpu_share(data: RunData) -> str | None:
    """What a device of a CPU run is, in one sentence; None on GPUs, and where no launch tells it.

    It is a fixed share of the cores, the same for `single` as for the others.
    """
    threads = {launch.threads_per_worker for launch in data.launches if launch.threads_per_worker is not None}
    if data.run.device_type != "cpu" or len(threads) != 1 or not data.run.cpu_cores:
        return None
    (count,) = threads
    cores = data.run.cpu_cores
    share = f"{count} {'thread' if count == 1 else 'threads'} of {cores} {'core' if cores == 1 else 'cores'}"
    what = "single" if any(launch.strategy == "single" for launch in data.launches) else "a device"
    return f"On a CPU a device is a fixed share of the cores, the cores over the run's devices: {what} here is {share}."


def _missing(data: RunData) -> list[str]:
    planned, done = data.run.planned_launches, len(data.launches)
    return [f"{done} of {planned} planned launches are recorded"] if planned is not None and done < planned else []


def checks(data: RunData, summaries: Iterable[WorkloadSummary]) -> tuple[Check, ...]:
    """Every reason to distrust a figure of the run, the gravest first; empty where there is none."""
    rows = [(f"{summary.workload}: {row.title}", row) for summary in summaries for row in summary.rows]
    found = {
        "Not read and set aside": list(data.problems),
        "The run has no recorded end: it was stopped, or still runs": [] if data.run.finished_at else [data.run.run_id],
        "Stopped early: launches are missing": _missing(data),
        "About the whole run": list(data.run.notes),
        "Parity missed: the weights are not those that one device trains": [
            f"{name}: {row.parity.reason}" for name, row in rows if row.parity.status == "missed"
        ],
        "Parity without a verdict": [
            f"{name}: {row.parity.reason}" for name, row in rows if row.parity.status == "no verdict"
        ],
        "Parity not known: its check did not end ok, or did not run": [
            f"{name}: {row.parity.reason or row.parity.status or 'not checked'}"
            for name, row in rows
            if row.result.status == "ok" and not row.parity.known
        ],
        "Parameters without a gradient: frozen, or not reached by the loss": _by_reason(
            (name, row.parity.untrained) for name, row in rows if row.result.status == "ok" and row.parity.untrained
        ),
        NOT_OK: _by_reason(
            (name, f"{row.result.status}, {row.result.reason or 'no reason recorded'}")
            for name, row in rows
            if row.result.status not in ("ok", "skipped")
        ),
        **watcher_checks(data.launches, rows),
        "Emulated by host replicas: correctness only, not ranked": [n for n, row in rows if row.result.emulated],
        "Oversubscribed, not ranked": [n for n, row in rows if row.result.oversubscribed],
        "Doubt about the figures": [f"{name}: {note}" for name, row in rows for note in row.notes],
        SKIPPED: _by_reason(
            (name, row.result.reason or "no reason recorded") for name, row in rows if row.result.status == "skipped"
        ),
    }
    return tuple(Check(title=title, seen=tuple(seen)) for title, seen in found.items() if seen)


def _by_reason(found: Iterable[tuple[str, str]]) -> list[str]:
    """A line a reason, whole: it may hold what to copy. With the cases that share it."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in found:
        names[reason].append(name)
    return [f"{_listed(of)}: {reason}" for reason, of in names.items()]
