"""Horizontal bars with intervals: one figure a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from bench.reporting.charts.svg import COLOURS, INK, OTHER_COLOUR, drawing, printable, short_label
from bench.reporting.units import Scale, scale_of

_LONGEST_INTERVAL = 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: its length, the 95 % interval where there is one, and a dot for each point behind it.

    `remark` follows the label; a `faint` bar is not ranked.
    """

    label: str
    strategy: str
    value: float
    low: float | None = None
    high: float | None = None
    points: tuple[float, ...] = ()
    remark: str = ""
    faint: bool = False


def bar_chart(bars: Sequence[Bar], *, unit: str, title: str, prefix: str) -> str:
    """Horizontal bars from zero, as one `<svg>` element. `prefix` must be unique in the page."""
    scale = scale_of((end for bar in bars for end in (bar.value, *bar.points)), unit)
    height = 0.46 * len(bars) + 0.55
    with drawing(4.6, height, title=title, prefix=prefix) as made:
        axes = made.axes(0.03, 0.5 / height, 0.93, 1 - 0.52 / height)
        limit = _limit(bars, scale)
        _draw(axes, bars, scale, limit)
        _dress(axes, bars, scale, limit)
    return made.svg


def _limit(bars: Sequence[Bar], scale: Scale) -> float:
    """Where the axis ends: past every value, but not at the far end of an interval that would dwarf them all."""
    values = max((end for bar in bars for end in (bar.value, *bar.points)), default=1.0)
    ends = max((bar.high for bar in bars if bar.high is not None), default=0.0)
    return max(values, min(ends, _LONGEST_INTERVAL * values)) / scale.size or 1.0


def _draw_interval(axes: Axes, height: float, low: float, high: float, limit: float) -> None:
    """A line from end to end; one that leaves the chart ends in an arrow."""
    shown = min(high, limit)
    axes.plot([low, shown], [height] * 2, color=INK, linewidth=1.4)
    axes.plot([low], [height], color=INK, marker="|", markersize=7)
    axes.plot([shown], [height], color=INK, marker=">" if high > limit else "|", markersize=5 if high > limit else 7)


def _draw(axes: Axes, bars: Sequence[Bar], scale: Scale, limit: float) -> None:
    for row, bar in enumerate(bars):
        colour = COLOURS.get(bar.strategy, OTHER_COLOUR)
        axes.barh(row + 0.2, bar.value / scale.size, height=0.38, color=colour, alpha=0.35 if bar.faint else 0.9)
        if bar.low is not None and bar.high is not None:
            _draw_interval(axes, row + 0.2, bar.low / scale.size, bar.high / scale.size, limit)
        points = [point / scale.size for point in bar.points]
        axes.plot(points, [row + 0.32] * len(points), linestyle="none", marker="o", markersize=2.6, color=INK,
                  markeredgewidth=0, alpha=0.75)  # fmt: skip
        label = short_label(bar.label)
        across = axes.get_yaxis_transform()
        text = f"{label} · {printable(bar.remark)}" if bar.remark else label
        axes.text(0.0, row - 0.06, text, transform=across, ha="left", va="bottom", color=INK)
        axes.text(1.0, row - 0.06, scale.number(bar.value), transform=across, ha="right", va="bottom", color=INK)


def _dress(axes: Axes, bars: Sequence[Bar], scale: Scale, limit: float) -> None:
    axes.set_xlim(0, 1.03 * limit)
    axes.set_ylim(len(bars) - 0.4, -0.5)
    axes.set_yticks([])
    axes.set_xlabel(scale.unit, color=INK)
    axes.tick_params(axis="x", colors=INK, length=3)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "left")
        spine.set_color(INK)
