"""The comparison as text, cell by cell: the page and the terminal print the same words."""

from __future__ import annotations

from dataclasses import dataclass

from bench.analysis.cases import Parity
from bench.analysis.estimates import TOO_FEW
from bench.analysis.intervals import Interval
from bench.analysis.summary import EMULATED, SAME_PER_DEVICE, Ratio, Row, Spread, WorkloadSummary
from bench.reporting.units import Scale, scale_of

NONE = "–"
LAUNCHES = "launches "


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure and, smaller, what qualifies it: `detail` its interval or reason, `extra` one thing more."""

    value: str = NONE
    detail: str = ""
    extra: str = ""

    def __str__(self) -> str:
        return f"{self.value} ({self.detail})" if self.detail else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of the comparison as text; `marks`: emulated, oversubscribed, fastest."""

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
    parity: Cell
    status: Cell
    ranked: bool
    notes: tuple[str, ...]


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
        step=_spread(row.step, seconds),
        versus_single=_ratio(row.versus_single),
        versus_dp=_ratio(row.versus_dp),
        memory=_memory(row.memory, memory),
        parity=_parity(row.parity),
        status=Cell(value=result.status, detail=result.reason or ""),
        ranked=row.excluded is None,
        notes=row.notes,
    )


def _spread(spread: Spread | None, scale: Scale) -> Cell:
    if spread is None:
        return Cell()
    value = scale.text(spread.value).strip()
    if spread.low is None or spread.high is None:
        return Cell(value=value, detail=TOO_FEW)
    launches = f"{LAUNCHES}{scale.number(spread.smallest)} to {scale.number(spread.largest)}"
    return Cell(value=value, detail=f"{scale.number(spread.low)} to {scale.number(spread.high)}", extra=launches)


def _ratio(ratio: Ratio | None) -> Cell:
    if ratio is None:
        return Cell()
    basis = ratio.basis if ratio.basis in (SAME_PER_DEVICE, EMULATED) else ""
    return Cell(value=f"{ratio.interval.value:.2f}×", detail=_ends(ratio.interval), extra=basis)


def _ends(interval: Interval) -> str:
    return "" if interval.low is None or interval.high is None else f"{interval.low:.2f} to {interval.high:.2f}"


def _memory(values: tuple[float | None, ...], scale: Scale) -> Cell:
    known = [value for value in values if value is not None]
    if not known:
        return Cell()
    least = f"least {scale.number(min(known))}" if len(known) > 1 else ""
    return Cell(value=scale.text(max(known)), detail=least)


def _parity(parity: Parity) -> Cell:
    reduced = parity.reduced_precision_error
    detail = [parity.status or ""] + ([f"own precision {reduced:.1e}"] if reduced is not None else [])
    value = NONE if parity.error is None else "0" if parity.error == 0 else f"{parity.error:.1e}"
    return Cell(value=value, detail=", ".join(part for part in detail if part))
