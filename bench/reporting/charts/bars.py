"""Horizontal bars with intervals: one figure a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from bench.reporting.charts.svg import COLOURS, INK, LABEL_LINE, OTHER_COLOUR, draw_label, drawing, label_lines
from bench.reporting.units import Scale, scale_of

_LONGEST_INTERVAL = 1.6
_AIR, _BAR, _GAP = 0.05, 0.175, 0.1  # inches: above a bar, the bar, below it
_LABEL_WIDTH = 56  # characters; the value stands beside


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
    labels = [label_lines(bar.label, bar.remark, _LABEL_WIDTH) for bar in bars]
    content = sum(LABEL_LINE * len(label) + _AIR + _BAR + _GAP for label in labels)
    height = content + 0.52
    with drawing(4.6, height, title=title, prefix=prefix) as made:
        axes = made.axes(0.03, 0.5 / height, 0.93, content / height)
        limit = _limit(bars, scale)
        top = 0.0
        for bar, label in zip(bars, labels, strict=True):
            top = _draw(axes, bar, label, top, scale, limit)
        _dress(axes, content, scale, limit)
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


def _draw(axes: Axes, bar: Bar, label: Sequence[str], top: float, scale: Scale, limit: float) -> float:
    """Draw a bar below its label, `top` inches from the top. Returns where the next begins."""
    middle = draw_label(axes, label, scale.number(bar.value), top) + _AIR + _BAR / 2
    colour = COLOURS.get(bar.strategy, OTHER_COLOUR)
    axes.barh(middle, bar.value / scale.size, height=_BAR, color=colour, alpha=0.35 if bar.faint else 0.9)
    if bar.low is not None and bar.high is not None:
        _draw_interval(axes, middle, bar.low / scale.size, bar.high / scale.size, limit)
    points = [point / scale.size for point in bar.points]
    axes.plot(points, [middle + 0.3 * _BAR] * len(points), linestyle="none", marker="o", markersize=2.6, color=INK,
              markeredgewidth=0, alpha=0.75)  # fmt: skip
    return middle + _BAR / 2 + _GAP


def _dress(axes: Axes, content: float, scale: Scale, limit: float) -> None:
    axes.set_xlim(0, 1.03 * limit)
    axes.set_ylim(content, 0)
    axes.set_yticks([])
    axes.set_xlabel(scale.unit, color=INK)
    axes.tick_params(axis="x", colors=INK, length=3)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "left")
        spine.set_color(INK)
