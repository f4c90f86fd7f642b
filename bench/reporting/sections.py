"""What the page shows of one workload: verdict, charts, table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd
from markupsafe import Markup

from bench.analysis.spreads import Spread
from bench.analysis.summary import MEMORY, PARITY_UNKNOWN, Row, WorkloadSummary
from bench.analysis.timelines import POINTS, Panel, panels
from bench.analysis.wording import verdict
from bench.reporting.cells import Line, lines
from bench.reporting.charts.bars import Bar, bar_chart
from bench.reporting.charts.memory import MemoryBars, memory_chart
from bench.reporting.charts.timelines import timeline_chart
from bench.reporting.units import scale_of
from bench.schema import Device, Run

MOST_PANELS = 12
MEMORY_KINDS = ("peak_allocated_bytes", "peak_reserved_bytes", "device_memory_used_bytes")
MEMORY_CAPTION = (
    "Solid: most that tensors held (peak_allocated_bytes); lighter: most that PyTorch's allocator kept "
    "(peak_reserved_bytes); faint: most in use on the device (NVML: all processes, and CUDA's own part); the figures "
    "beside in that order. Dashed: mean of the solid bars; +: how far the fullest is above it. % full: what the "
    "allocator kept at most on the fullest device, as a part of what that device has. Faint rows: not ranked."
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
    """What the page shows of one workload.

    absent: what it cannot show, and what would make it; sure: no verdict over cases whose parity is not known.
    """

    anchor: str
    summary: WorkloadSummary
    verdict: str
    sure: bool
    charts: tuple[Chart, ...]
    absent: tuple[str, ...]
    lines: tuple[Line, ...]


def workload_section(index: int, summary: WorkloadSummary, run: Run, watched: Mapping[str, pd.DataFrame]) -> Section:
    """`watched`: the readings of one launch a case, from `watched_launches`."""
    prefix = f"w{index}"
    gauges = GAUGES["cuda" if run.device_type == "cuda" else "cpu"]
    over_time = {gauge: _timeline(summary, gauge, watched, f"{prefix}-{gauge.column}") for gauge in gauges}
    charts = [
        _spread_chart(summary, lambda row: row.throughput, "Throughput", "samples/s", f"{prefix}-rate"),
        _spread_chart(summary, lambda row: row.step, "Time of one step", "s", f"{prefix}-step"),
        _memory_chart(summary, run, f"{prefix}-memory"),
        *over_time.values(),
    ]
    return Section(
        anchor=prefix,
        summary=summary,
        verdict=verdict(summary),
        sure=_is_sure(summary),
        charts=tuple(chart for chart in charts if chart is not None),
        absent=tuple(_absent(summary, gauge, watched) for gauge, chart in over_time.items() if chart is None),
        lines=tuple(lines(summary)),
    )


def _is_sure(summary: WorkloadSummary) -> bool:
    best = summary.fastest
    return bool(best and best.parity.known and all(row.excluded != PARITY_UNKNOWN for row in summary.rows))


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


def _memory_chart(summary: WorkloadSummary, run: Run, prefix: str) -> Chart | None:
    on_gpus = run.device_type == "cuda"
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
                    full=_full(row, run.devices) if on_gpus else None,
                )
            )  # fmt: skip
    if not bars:
        return None
    title = "Memory by device" if on_gpus else "Memory of the worker processes"
    svg = memory_chart(bars, title=f"{summary.workload}: {title}", prefix=prefix)
    caption = f"{MEMORY_CAPTION} {_sizes(run.devices)}" if on_gpus else PROCESS_CAPTION
    return Chart(title=title, caption=caption, drawings=(Markup(svg),))


def _above_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) / fmean(known) - 1 if len(known) > 1 and len(known) == len(values) and fmean(known) else None


def _full(row: Row, devices: Sequence[Device]) -> float | None:
    """What the allocator kept of the fullest device's memory, as a part of 1; None where a figure is missing."""
    memory = {device.index: device.memory_bytes for device in devices}
    kept = row.result.per_device("peak_reserved_bytes")
    parts = [
        value / has
        for ordinal, value in zip(row.result.axes.devices, kept, strict=False)
        if value is not None and (has := memory.get(ordinal))
    ]
    # The places of an oversubscribed case share a device.
    known = parts and len(parts) == len(row.result.axes.devices) and not row.result.oversubscribed
    return max(parts) if known else None


def _sizes(devices: Sequence[Device]) -> str:
    known = {device.index: device.memory_bytes for device in devices if device.memory_bytes}
    if len(known) < len(devices) or not known:
        return "How much memory the devices have is not known."
    scale = scale_of(known.values(), "bytes")
    if len(set(known.values())) == 1:
        what = "The devices have" if len(known) > 1 else "The device has"
        return f"{what} {scale.text(max(known.values()))}{' each' if len(known) > 1 else ''}."
    listed = ", ".join(f"{scale.number(value)} (device {index})" for index, value in known.items())
    return f"The devices differ: they have {listed} {scale.unit}."


def _timeline(summary: WorkloadSummary, gauge: Gauge, watched: Mapping[str, pd.DataFrame], prefix: str) -> Chart | None:
    read = panels(watched, summary.rows, gauge.column)
    found = [panel for panel in read if panel.measured is not None]
    if not found:
        return None
    shown = found[:MOST_PANELS]
    top = gauge.top or 1.08 * max(value for panel in shown for line in panel.lines for value in line.values) or 1.0
    drawings = []
    for number, panel in enumerate(shown):
        spoken = f"{summary.workload}: {gauge.title}, {panel.title}, launch {panel.launch}"
        svg = timeline_chart(panel, unit=gauge.unit, top=top, title=spoken, prefix=f"{prefix}-{number}")
        drawings.append(Markup(svg))
    caption = f"{gauge.meaning} {_reading(found)}{_unmeasured(read)}"
    return Chart(title=gauge.title, caption=caption, drawings=tuple(drawings), wide=True)


def _reading(found: Sequence[Panel]) -> str:
    """How to read the panels, and what was left out of them."""
    text = "One launch a case, a line a device. Shaded: the measured rounds. "
    text += f"At most {POINTS} points a line: means over equal spans of time."
    if len(found) > MOST_PANELS:
        text += f" The first {MOST_PANELS} of {len(found)} cases; the table timeline holds all."
    absent = Counter(why for panel in found[:MOST_PANELS] for why in panel.absent)
    listed = ", ".join(f"{count} ({why})" for why, count in absent.items())
    return f"{text} Devices without a line: {listed}." if listed else text


def _unmeasured(read: Sequence[Panel]) -> str:
    titles = [panel.title for panel in read if panel.measured is None]
    return f" Without a panel, as no reading fell into a measured round: {'; '.join(titles)}." if titles else ""


def _absent(summary: WorkloadSummary, gauge: Gauge, watched: Mapping[str, pd.DataFrame]) -> str:
    if read := panels(watched, summary.rows, gauge.column):
        return f"{gauge.title} is not shown.{_unmeasured(read)}"
    if any(row.result.axes.case_id in watched for row in summary.rows):
        return f"{gauge.title} is not shown: no device gave {gauge.column}; the checks say why."
    return (
        f"{gauge.title} is not shown: no launch was watched. Measure again with this version, which records a timeline."
    )
