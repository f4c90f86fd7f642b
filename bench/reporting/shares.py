"""What the page shows of a sweep of GPU 0's share: the answers, two charts, a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bench.analysis.balance import BalanceSummary
from bench.analysis.shares import SWEPT, ShareRow
from bench.analysis.wording import number
from bench.reporting.cells import NONE, REFERENCE, Cell, interval_cell
from bench.reporting.charts.shares import Curve, Level, Point, share_chart
from bench.reporting.sections import Chart
from bench.reporting.units import Scale, scale_of

HOW = "No sweep of GPU 0's share in this run; --sweeps load_balance measures one (several devices needed)."


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLine:
    """One row of the table as text."""

    label: str
    samples: Cell
    peaks: Cell
    imbalance: str
    throughput: Cell
    versus_dp: Cell
    largest_batch: str
    status: Cell
    why: tuple[str, ...]
    ranked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSection:
    """The sweep of one workload."""

    anchor: str
    summary: BalanceSummary
    charts: tuple[Chart, ...]
    lines: tuple[ShareLine, ...]


def share_section(index: int, summary: BalanceSummary) -> ShareSection:
    """The sweep as charts and text. A chart without a figure is left out."""
    prefix = f"b{index}"
    charts = (_peaks(summary, f"{prefix}-peaks"), _throughput(summary, f"{prefix}-rate"))
    scale = scale_of((value for row in summary.rows for value in row.peak_bytes), "bytes")
    return ShareSection(
        anchor=prefix,
        summary=summary,
        charts=tuple(chart for chart in charts if chart is not None),
        lines=tuple(_line(row, summary, scale) for row in summary.rows),
    )


def _swept(summary: BalanceSummary) -> list[tuple[float, ShareRow]]:
    return [(row.share, row) for row in summary.rows if row.strategy == SWEPT and row.share is not None]


def _peaks(summary: BalanceSummary, prefix: str) -> Chart | None:
    devices = range(summary.num_devices)
    measured = {device: _points(summary, device, lambda row: row.peak_bytes) for device in devices}
    foreseen = {device: _points(summary, device, lambda row: row.predicted_peak_bytes) for device in devices}
    curves = [Curve(label=f"device {device}", points=of, device_index=device) for device, of in measured.items() if of]
    curves += [
        Curve(label="predicted by auto", points=of, device_index=device, predicted=True)
        for device, of in foreseen.items()
        if of
    ]
    levels = [
        Level(label=f"{row.label}: fullest device", value=max(known))
        for row in summary.rows
        if row.strategy != SWEPT and (known := [peak for peak in row.peak_bytes if peak is not None])
    ]
    if not curves:
        return None
    title = "Peak memory against GPU 0's share"
    svg = share_chart(curves, levels, unit="bytes", title=f"{summary.workload}: {title}", prefix=prefix)
    caption = "peak_allocated_bytes of each device; the lower the highest line, the larger the batch that fits."
    return Chart(title=title, caption=caption, drawings=(Markup(svg),))


def _points(
    summary: BalanceSummary, device: int, read: Callable[[ShareRow], Sequence[float | None]]
) -> tuple[Point, ...]:
    values = [(share, read(row)) for share, row in _swept(summary)]
    found = [(share, of[device]) for share, of in values if device < len(of)]
    return tuple(Point(share=share, value=value) for share, value in found if value is not None)


def _throughput(summary: BalanceSummary, prefix: str) -> Chart | None:
    points = tuple(
        Point(share=share, value=rate.value, low=rate.low, high=rate.high)
        for share, row in _swept(summary)
        if (rate := row.samples_per_second)
    )
    levels = [
        Level(label=row.label, strategy=row.strategy, value=row.samples_per_second.value)
        for row in summary.rows
        if row.strategy != SWEPT and row.samples_per_second
    ]
    if not points:
        return None
    title = "Throughput against GPU 0's share"
    curves = [Curve(label=SWEPT, points=points)]
    svg = share_chart(curves, levels, unit="samples/s", title=f"{summary.workload}: {title}", prefix=prefix)
    emulated = "balanced_dp and dp are host replicas (emulated), only ddp is real: no ground for a choice. "
    caption = emulated if summary.device_type == "cpu" else ""
    caption += "Points: estimates; upright lines: 95 % intervals. Dashed: strategies without a share to choose."
    return Chart(title=title, caption=caption, drawings=(Markup(svg),))


def _line(row: ShareRow, summary: BalanceSummary, scale: Scale) -> ShareLine:
    peaks = " · ".join(NONE if peak is None else scale.number(peak) for peak in row.peak_bytes)
    share = "" if row.share is None else f"{100 * row.share:.1f} %"
    launches = len(row.samples_per_second.launches) if row.samples_per_second else 0
    ratio = interval_cell(row.versus_dp, launches, "{:.2f}".format, "×")
    return ShareLine(
        label=row.label,
        samples=Cell(value=" · ".join(map(str, row.chunk_sizes)) or NONE, detail=share),
        peaks=Cell(value=peaks or NONE, detail=scale.unit if peaks else ""),
        imbalance=NONE if row.imbalance is None else f"{100 * row.imbalance:.1f} %",
        throughput=interval_cell(row.samples_per_second, launches, number),
        versus_dp=Cell(value=REFERENCE) if row.label == summary.reference else ratio,
        largest_batch=NONE if row.largest_batch is None else f"{row.largest_batch:,}",
        status=Cell(value=row.status, detail=row.excluded if row.excluded and row.excluded != row.status else ""),
        why=tuple(part for part in (row.reason, row.balance) if part),
        ranked=row.excluded is None,
    )
