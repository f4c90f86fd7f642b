"""What the page shows of one workload: verdict, charts, table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd
from markupsafe import Markup

from bench.analysis.summary import MEMORY, Row, Spread, WorkloadSummary
from bench.analysis.timelines import POINTS, Panel, panels
from bench.analysis.wording import verdict
from bench.reporting.cells import Line, lines
from bench.reporting.charts.bars import Bar, bar_chart
from bench.reporting.charts.memory import MemoryBars, memory_chart
from bench.reporting.charts.timelines import timeline_chart

MOST_PANELS = 12
MEMORY_KINDS = ("peak_allocated_bytes", "peak_reserved_bytes", "device_memory_used_bytes")
MEMORY_CAPTION = (
    "Solid: most that tensors held (peak_allocated_bytes); lighter: most that PyTorch's allocator kept "
    "(peak_reserved_bytes); faint: most in use on the device (NVML: all processes, and CUDA's own part); the figures "
    "beside in that order. Dashed: mean of the solid bars; +: how far the fullest is above it. Faint: not ranked."
)
PROCESS_KINDS = ("host_peak_rss_bytes",)
PROCESS_CAPTION = (
    "Largest resident memory of each worker process (host_peak_rss_bytes), shared libraries included. Dashed: "
    "their mean. Faint: not ranked."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A column of the timeline as a chart. `top` ends its axis, None: a little above the largest reading."""

    column: str
    title: str
    unit: str
    meaning: str
    top: float | None = None


GAUGES: Mapping[str, tuple[Gauge, ...]] = {
    "cuda": (
        Gauge(
            column="utilization_percent",
            title="Utilization over time",
            unit="%",
            meaning="Share of time in which any kernel ran, however small (NVML; a reading averages over up to 1 s): "
            "100 % does not mean a full GPU.",
            top=105.0,
        ),
        Gauge(
            column="power_watts",
            title="Power over time",
            unit="W",
            meaning="Power of each GPU (NVML; on most cards a reading averages over 1 s): it rises with the work done, "
            "where utilization only tells that there is some.",
        ),
    ),
    "cpu": (
        Gauge(
            column="cpu_percent",
            title="CPU use over time",
            unit="%",
            meaning="CPU time of each worker process over wall time; 100 % is one core. Host replicas (emulated) are "
            "one process, read at the first device.",
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One or several drawings with the words around them; `wide` takes the whole width."""

    title: str
    caption: str
    drawings: tuple[Markup, ...]
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the page shows of one workload; `absent`: what it cannot show, and what would make it."""

    anchor: str
    summary: WorkloadSummary
    verdict: str
    charts: tuple[Chart, ...]
    absent: tuple[str, ...]
    lines: tuple[Line, ...]


def workload_section(
    index: int, summary: WorkloadSummary, device_type: str, watched: Mapping[str, pd.DataFrame]
) -> Section:
    """`watched`: the readings of one launch a case, from `watched_launches`."""
    prefix = f"w{index}"
    gauges = GAUGES["cuda" if device_type == "cuda" else "cpu"]
    over_time = {gauge: _timeline(summary, gauge, watched, f"{prefix}-{gauge.column}") for gauge in gauges}
    charts = [
        _spread_chart(summary, lambda row: row.throughput, "Throughput", "samples/s", f"{prefix}-rate"),
        _spread_chart(summary, lambda row: row.step, "Time of one step", "s", f"{prefix}-step"),
        _memory_chart(summary, device_type, f"{prefix}-memory"),
        *over_time.values(),
    ]
    return Section(
        anchor=prefix,
        summary=summary,
        verdict=verdict(summary),
        charts=tuple(chart for chart in charts if chart is not None),
        absent=tuple(_absent(summary, gauge, watched) for gauge, chart in over_time.items() if chart is None),
        lines=tuple(lines(summary)),
    )


def memory_metric(device_type: str) -> str:
    """The metric that stands for memory: the allocator's peak on GPUs, that of the processes on CPU."""
    return MEMORY["cuda" if device_type == "cuda" else "cpu"]


def _spread_chart(
    summary: WorkloadSummary, read: Callable[[Row], Spread | None], title: str, unit: str, prefix: str
) -> Chart | None:
    found = [(row, spread) for row in summary.rows if (spread := read(row)) is not None]
    bars = [
        Bar(
            label=row.title, strategy=row.result.axes.strategy, value=spread.value, low=spread.low, high=spread.high,
            points=spread.launches, remark=row.excluded or "", faint=row.excluded is not None,
        )
        for row, spread in found
    ]  # fmt: skip
    if not bars:
        return None
    better = "longer is faster" if unit != "s" else "shorter is faster"
    line = "line: 95 % interval, with an arrow where it goes on"
    caption = f"Bar: estimate ({better}); {line}; dots: launches. Faint: not ranked."
    svg = bar_chart(bars, unit=unit, title=f"{summary.workload}: {title}", prefix=prefix)
    return Chart(title=title, caption=caption, drawings=(Markup(svg),))


def _memory_chart(summary: WorkloadSummary, device_type: str, prefix: str) -> Chart | None:
    on_gpus = device_type == "cuda"
    bars = []
    for row in summary.rows:
        figures = tuple(tuple(row.result.per_device(kind)) for kind in (MEMORY_KINDS if on_gpus else PROCESS_KINDS))
        if not on_gpus:  # a bar a process: replicas that share one have their figure at its first
            figures = tuple(tuple(value for value in kind if value is not None) for kind in figures)
        if any(figures):
            bars.append(
                MemoryBars(
                    label=row.title, strategy=row.result.axes.strategy, figures=figures, remark=row.excluded or "",
                    above_mean=_above_mean(figures[0]) if on_gpus else None, faint=row.excluded is not None,
                )
            )  # fmt: skip
    if not bars:
        return None
    title = "Memory by device" if on_gpus else "Memory of the worker processes"
    svg = memory_chart(bars, title=f"{summary.workload}: {title}", prefix=prefix)
    return Chart(title=title, caption=MEMORY_CAPTION if on_gpus else PROCESS_CAPTION, drawings=(Markup(svg),))


def _above_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) / fmean(known) - 1 if len(known) > 1 and len(known) == len(values) and fmean(known) else None


def _timeline(summary: WorkloadSummary, gauge: Gauge, watched: Mapping[str, pd.DataFrame], prefix: str) -> Chart | None:
    found = panels(watched, summary.rows, gauge.column)
    if not found:
        return None
    shown = found[:MOST_PANELS]
    top = gauge.top or 1.08 * max(value for panel in shown for line in panel.lines for value in line.values) or 1.0
    drawings = []
    for number, panel in enumerate(shown):
        spoken = f"{summary.workload}: {gauge.title}, {panel.title}, launch {panel.launch}"
        svg = timeline_chart(panel, unit=gauge.unit, top=top, title=spoken, prefix=f"{prefix}-{number}")
        drawings.append(Markup(svg))
    return Chart(title=gauge.title, caption=f"{gauge.meaning} {_reading(found)}", drawings=tuple(drawings), wide=True)


def _reading(found: Sequence[Panel]) -> str:
    """How to read the panels, and what was left out of them."""
    text = "One launch a case, a line a device. Shaded: the measured rounds. "
    text += f"At most {POINTS} points a line: means over equal spans of time."
    if len(found) > MOST_PANELS:
        text += f" The first {MOST_PANELS} of {len(found)} cases; the table timeline holds all."
    absent = Counter(why for panel in found[:MOST_PANELS] for why in panel.absent)
    listed = ", ".join(f"{count} ({why})" for why, count in absent.items())
    return f"{text} Devices without a line: {listed}." if listed else text


def _absent(summary: WorkloadSummary, gauge: Gauge, watched: Mapping[str, pd.DataFrame]) -> str:
    if any(row.result.axes.case_id in watched for row in summary.rows):
        return f"{gauge.title} is not shown: no device gave {gauge.column}; the checks say why."
    return (
        f"{gauge.title} is not shown: no launch was watched. Measure again with this version, which records a timeline."
    )
