"""The findings of a run in words: what was fastest, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bench.analysis.checks.base import listed
from bench.analysis.estimates import TOO_FEW
from bench.analysis.intervals import Interval
from bench.analysis.spreads import Ratio, versus
from bench.analysis.summary import EMULATED, OWN_LARGEST, PARITY_UNKNOWN, Row, WorkloadSummary
from bench.recording.reader import RunData


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
        if OWN_LARGEST in reasons:
            others = [reason for reason in reasons if reason != OWN_LARGEST]
            rest = f" (left out: {', '.join(others)})" if others else ""
            return f"Nothing ran at an equal batch, but each strategy at its own largest: another comparison{rest}."
        return f"Nothing can be ranked: every case is left out ({', '.join(reasons)})."
    axes = best.result.axes
    devices = "1 device" if axes.num_devices == 1 else f"{axes.num_devices} devices"
    count = len(summary.compared)
    at = " at that batch" if count < len(summary.ranked) else ""
    among = "the only case that can be ranked" if count == 1 else f"the fastest of the {count} ranked cases{at}"
    setting = f"{devices}, global batch {axes.global_batch_size}, {axes.precision}"
    rivals = summary.rivals
    if rivals:
        names = listed([best.title, *(row.title for row in rivals)])
        text = f"No clear winner among {names}: {_why_unclear(best, rivals)}; measure with more (--launches). "
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
        yield f"Left out, as their parity check did not end ok: {listed(unknown)}."


def _factors(best: Row) -> str:
    found: Sequence[tuple[str, Ratio | None]] = (("single", best.versus_single), ("dp", best.versus_dp))
    sound = [(name, ratio) for name, ratio in found if ratio and ratio.basis != EMULATED]
    launches = len(best.throughput.launches) if best.throughput else 0
    return " and ".join(f"{times(ratio.interval, launches)} {name} at the {ratio.basis}" for name, ratio in sound)


def _why_unclear(best: Row, rivals: Sequence[Row]) -> str:
    count = len(best.throughput.launches) if best.throughput else 0
    if count < 2:
        return f"{TOO_FEW} for an interval"
    if any(_says_nothing(versus(best.throughput, row.throughput)) for row in rivals):
        return f"{count} launches say too little of their ratios"
    return f"the intervals of their ratios over {count} launches include 1"


def _says_nothing(ratio: Interval | None) -> bool:
    return ratio is None or ratio.low is None or ratio.high is None or is_wide(ratio.low, ratio.high)


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


def one_line(text: str) -> str:
    """Without line breaks and what would steer a terminal: reasons come from models."""
    return "".join(char if char.isprintable() else " " for char in " ".join(text.split()))
