"""What the page shows of how the strategies scale: the findings, a chart and a table for each batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from bench.analysis.curves import Curve as Scaled
from bench.analysis.curves import CurvePoint, fraction_ends, percent
from bench.analysis.scaling import ScalingSummary
from bench.analysis.summary import Row
from bench.analysis.wording import number
from bench.reporting.cells import NONE, REFERENCE, Cell, interval_cell
from bench.reporting.charts.scaling import Curve, Ideal, Point, scaling_chart
from bench.reporting.sections import Chart

HOW = (
    "No scaling in this run: it takes a strategy on two or more numbers of devices, beside single at the same global "
    "batch or batch per device; --sweeps scaling measures that (several devices needed)."
)
FITTED_POINTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLine:
    """One row of the table as text."""

    label: str
    mark: str
    devices: str
    batch: str
    throughput: Cell
    speedup: Cell
    efficiency: Cell
    own: Cell
    serial: Cell
    status: Cell
    why: tuple[str, ...]
    ranked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSection:
    """One workload at one batch: global (strong) or per device (weak)."""

    anchor: str
    summary: ScalingSummary
    charts: tuple[Chart, ...]
    lines: tuple[ScalingLine, ...]


def scaling_section(index: int, summary: ScalingSummary) -> ScalingSection:
    """The curves as chart and text. A chart without a figure is left out."""
    chart = _chart(summary, f"s{index}")
    return ScalingSection(
        anchor=f"s{index}",
        summary=summary,
        charts=() if chart is None else (chart,),
        lines=(*(_baseline(row) for row in summary.baselines), *_lines(summary)),
    )


def _chart(summary: ScalingSummary, prefix: str) -> Chart | None:
    strong = summary.kind == "strong"
    curves = [
        Curve(label=curve.label, strategy=curve.strategy, points=points, fitted=_fitted(curve))
        for curve in summary.curves
        if (points := tuple(_points(curve, strong)))
    ]
    if not curves:
        return None
    most = summary.most_devices
    title, unit = ("Speed-up over single", "times") if strong else ("Efficiency against single", "%")
    ends = ((1, 1.0), (most, float(most))) if strong else ((1, 100.0), (most, 100.0))
    ideal = Ideal(label="ideal: n times on n devices" if strong else "ideal: 100 %", ends=ends)
    spoken = f"{summary.workload}, {summary.setting}: {title}"
    svg = scaling_chart(curves, ideal, unit=unit, title=spoken, prefix=prefix)
    same = "at the same global batch" if strong else "at the same batch per device"
    caption = f"Against single on one device, {same}. Upright lines: 95 % intervals, with an arrow where they go on. "
    caption += "Faint, or in a ring: not ranked."
    return Chart(title=title, caption=caption, drawings=(Markup(svg),))


def _points(curve: Scaled, strong: bool) -> Iterator[Point]:
    for point in curve.points:
        found, size = (point.speedup, 1.0) if strong else (point.efficiency, 100.0)
        if found is not None:
            low, high = (None if end is None else size * end for end in (found.low, found.high))
            faint = point.row.excluded is not None
            yield Point(count=point.count, value=size * found.value, low=low, high=high, faint=faint)


def _fitted(curve: Scaled) -> tuple[tuple[float, float], ...]:
    if curve.fit is None:
        return ()
    first, last = curve.fit.counts[0], curve.fit.counts[-1]
    counts = [first + (last - first) * step / FITTED_POINTS for step in range(FITTED_POINTS + 1)]
    return tuple((count, curve.fit.speedup(count)) for count in counts)


def _baseline(row: Row) -> ScalingLine:
    reference = Cell(value=REFERENCE if row.excluded is None else NONE)
    launches = len(row.throughput.launches) if row.throughput else 0
    return ScalingLine(
        label=row.label,
        mark="",
        devices="1",
        batch=str(row.result.axes.global_batch_size),
        throughput=interval_cell(row.throughput, launches, number),
        speedup=reference,
        efficiency=reference,
        own=Cell(),
        serial=Cell(),
        status=_status(row),
        why=(row.result.reason,) if row.result.reason else (),
        ranked=row.excluded is None,
    )


def _lines(summary: ScalingSummary) -> Iterator[ScalingLine]:
    for curve in summary.curves:
        alone = any(point.own is not None for point in curve.points)
        for point in curve.points:
            yield _line(curve, point, is_own=alone and point.count == 1)


def _line(curve: Scaled, point: CurvePoint, *, is_own: bool) -> ScalingLine:
    row, launches = point.row, point.launches
    return ScalingLine(
        label=curve.label,
        mark=row.excluded if row.excluded in ("emulated", "oversubscribed") else "",
        devices=str(point.count),
        batch=str(row.result.axes.global_batch_size),
        throughput=interval_cell(row.throughput, launches, number),
        speedup=interval_cell(point.speedup, launches, "{:.2f}".format, "×"),
        efficiency=interval_cell(point.efficiency, launches, percent, " %"),
        own=Cell(value=REFERENCE) if is_own else interval_cell(point.own, launches, percent, " %"),
        serial=_serial(point),
        status=_status(row),
        why=(row.result.reason,) if row.result.reason else (),
        ranked=row.excluded is None,
    )


def _serial(point: CurvePoint) -> Cell:
    if point.serial is None:
        return Cell()
    return Cell(value=f"{percent(point.serial.value)} %", detail=fraction_ends(point.serial, point.launches))


def _status(row: Row) -> Cell:
    told = row.excluded in (None, row.result.status, "emulated", "oversubscribed")
    return Cell(value=row.result.status, detail="" if told else f"not ranked: {row.excluded}")
