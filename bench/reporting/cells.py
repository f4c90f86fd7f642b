"""The comparison as text, cell by cell: the page and the terminal print the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.analysis.cases import Parity
from bench.analysis.estimates import TOO_FEW
from bench.analysis.intervals import Interval
from bench.analysis.spreads import Ratio, Spread
from bench.analysis.summary import EMULATED, SAME_PER_DEVICE, Row, WorkloadSummary
from bench.analysis.wording import ends_text, is_wide
from bench.reporting.units import Scale, scale_of

NONE = "–"
REFERENCE = "reference"
"""In place of a ratio: the case that the others are compared with."""
LAUNCHES = "launches "
USE = {"cuda": "utilization_percent", "cpu": "cpu_percent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure and, smaller, what qualifies it: `detail` its interval or reason, `extra` one thing more.

    hint: what is too doubtful to stand in the cell, shown where the mouse rests.
    """

    value: str = NONE
    detail: str = ""
    extra: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.value} ({self.detail})" if self.detail else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of the comparison as text.

    marks: emulated, oversubscribed, fastest, fastest so far; why: the reason of its status, and doubts.
    """

    label: str
    marks: tuple[str, ...]
    devices: str
    batch: str
    precision: str
    throughput: Cell
    step: Cell
    versus_single: Cell
    versus_dp: Cell
    memory: Cell
    use: Cell
    parity: Cell
    status: Cell
    why: tuple[str, ...]
    ranked: bool


def lines(summary: WorkloadSummary) -> list[Line]:
    """Every case of the workload as text; times and memory in one unit each."""
    seconds = scale_of((row.step.value for row in summary.rows if row.step), "s")
    memory = scale_of((value for row in summary.rows for value in row.memory), "bytes")
    return [_line(row, summary, seconds, memory) for row in summary.rows]


def _line(row: Row, summary: WorkloadSummary, seconds: Scale, memory: Scale) -> Line:
    result = row.result
    leads = row is summary.fastest and len(summary.ranked) > 1
    marks = {
        "fastest": leads and not summary.rivals,
        "fastest so far": leads and bool(summary.rivals),
        "emulated": result.emulated,
        "oversubscribed": result.oversubscribed,
    }
    axes = result.axes
    batch = str(axes.global_batch_size)
    return Line(
        label=row.label,
        marks=tuple(mark for mark, holds in marks.items() if holds),
        devices=str(axes.num_devices),
        batch=f"{batch} in {axes.accumulation_steps}" if axes.accumulation_steps > 1 else batch,
        precision=axes.precision,
        throughput=_spread(row.throughput, Scale(size=1.0, unit="")),
        step=replace(_spread(row.step, seconds), extra=""),  # its launches are those of the throughput
        versus_single=_ratio(row, summary, lambda of: of.versus_single),
        versus_dp=_ratio(row, summary, lambda of: of.versus_dp),
        memory=_memory(row.memory, memory),
        use=_use(result.per_device(USE["cuda" if axes.device_type == "cuda" else "cpu"])),
        parity=_parity(row.parity),
        status=Cell(value=result.status, detail=_unranked(row)),
        # That there are too few launches stands in the cells.
        why=tuple(part for part in (result.reason, *row.notes) if part and part != TOO_FEW),
        ranked=row.excluded is None,
    )


def _unranked(row: Row) -> str:
    """Why it is not ranked, where neither its status nor a mark says so."""
    told = row.excluded in (None, row.result.status, "emulated", "oversubscribed")
    return "" if told else f"not ranked: {row.excluded}"


def _spread(spread: Spread | None, scale: Scale) -> Cell:
    if spread is None:
        return Cell()
    cell = interval_cell(spread, len(spread.launches), scale.number)
    value = scale.text(spread.value).strip()
    if spread.low is None or spread.high is None:
        return replace(cell, value=value, detail=TOO_FEW)
    return replace(
        cell, value=value, extra=f"{LAUNCHES}{scale.number(spread.smallest)} to {scale.number(spread.largest)}"
    )


def _ratio(row: Row, summary: WorkloadSummary, read: Callable[[Row], Ratio | None]) -> Cell:
    ratio = read(row)
    if ratio is None:
        compared = any(other.against == row.title for each in summary.rows if (other := read(each)))
        return Cell(value=REFERENCE if compared else NONE)
    launches = len(row.throughput.launches) if row.throughput else 0
    basis = ratio.basis if ratio.basis in (SAME_PER_DEVICE, EMULATED) else ""
    cell = interval_cell(ratio.interval, launches, "{:.2f}".format, "×")
    # Emulated replicas are no ground for a verdict.
    word = "" if ratio.basis == EMULATED or row.excluded else f" {ratio.verdict}"
    return replace(cell, value=f"{cell.value}{word}", extra=basis)


def interval_cell(
    interval: Interval | Spread | None, launches: int, text: Callable[[float], str], unit: str = ""
) -> Cell:
    """A figure with its interval over `launches`; one so wide that it tells nothing is a hint only."""
    if interval is None:
        return Cell()
    value = text(interval.value) + unit
    if interval.low is None or interval.high is None:
        return Cell(value=value)
    wide = is_wide(interval.low, interval.high)
    hint = f"95 % interval {text(interval.low)} to {text(interval.high)}" if wide else ""
    return Cell(value=value, detail=ends_text(interval.low, interval.high, launches, text), hint=hint)


def _memory(values: tuple[float | None, ...], scale: Scale) -> Cell:
    known = [value for value in values if value is not None]
    if not known:
        return Cell()
    least = f"least {scale.number(min(known))}" if len(known) > 1 else ""
    uneven = len(known) > 1 and scale.number(max(known)) != scale.number(min(known))
    return Cell(
        value=scale.text(max(known)),
        detail=least,
        extra=f"fullest: device {values.index(max(known))}" if uneven else "",
    )


def _use(values: Sequence[float | None]) -> Cell:
    """From the least busy device to the busiest."""
    known = [value for value in values if value is not None]
    if not known:
        return Cell()
    least, most = f"{min(known):.0f}", f"{max(known):.0f}"
    if least == most:
        return Cell(value=f"{most} %")
    return Cell(value=f"{least} to {most} %", detail=f"least: device {values.index(min(known))}")


def _parity(parity: Parity) -> Cell:
    reduced = parity.reduced_precision_error
    detail = [parity.status or ""] + ([f"own precision {reduced:.1e}"] if reduced is not None else [])
    value = NONE if parity.error is None else "0" if parity.error == 0 else f"{parity.error:.1e}"
    return Cell(
        value=value, detail=", ".join(part for part in detail if part), extra="in float64" if parity.double else ""
    )
