"""A figure against the number of devices, beside what would be ideal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bench.reporting.charts.svg import COLOURS, INK, OTHER_COLOUR, drawing, short_label

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WIDTH, _PLOT, _AXIS, _KEY = 4.6, 2.6, 0.5, 0.19  # inches; the key has a row for two entries
_BESIDE = 0.035
"""Curves stand so much of the axis beside one another, or their intervals would lie on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value at a number of devices with its interval, where there is one; a `faint` one is not ranked."""

    count: int
    value: float
    low: float | None = None
    high: float | None = None
    faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The points of one strategy. `fitted`: points of a law fitted to them, in growing order."""

    label: str
    strategy: str
    points: tuple[Point, ...]
    fitted: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """What no loss would give on the fewest and on the most devices."""

    label: str
    ends: tuple[tuple[int, float], tuple[int, float]]


def scaling_chart(curves: Sequence[Curve], ideal: Ideal, *, unit: str, title: str, prefix: str) -> str:
    """Curves over the number of devices as one `<svg>` element; the key stands below, the figures in its label."""
    entries = len(curves) + 1 + any(curve.fitted for curve in curves)
    key = _KEY * ((entries + 1) // 2)
    height = _PLOT + _AXIS + key
    top = _top(curves, ideal)
    with drawing(_WIDTH, height, title=spoken(title, curves, unit), prefix=prefix) as made:
        axes = made.axes(0.11, (key + _AXIS) / height, 0.86, (_PLOT - 0.25) / height)
        counts = [count for count, _ in ideal.ends]
        axes.plot(counts, [value for _, value in ideal.ends], color=INK, linewidth=1.1, linestyle=(0, (6, 2)),
                  label=ideal.label)  # fmt: skip
        for place, curve in enumerate(curves):
            aside = _BESIDE * (place - (len(curves) - 1) / 2) * (max(counts) - min(counts)) / max(len(curves), 3)
            _draw(axes, curve, _MARKERS[place % len(_MARKERS)], aside, top)
        if any(curve.fitted for curve in curves):
            axes.plot([], [], color=INK, linewidth=1.0, linestyle=":", label="dotted: Amdahl's law, fitted")
        axes.set_ylim(0, top)
        _dress(axes, unit)
        made.figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=2, frameon=False, fontsize=8,
                           labelcolor=INK, borderaxespad=0.0)  # fmt: skip
    return made.svg


def spoken(title: str, curves: Sequence[Curve], unit: str) -> str:
    """The chart in words, for those who cannot see it: every value at its number of devices."""
    said = [
        f"{curve.label}: " + ", ".join(f"{point.value:.3g} {unit} at {point.count}" for point in curve.points)
        for curve in curves
    ]
    return f"{title}, by devices. {'; '.join(said)}"


def _top(curves: Sequence[Curve], ideal: Ideal) -> float:
    """Above every value and the ideal, but not above the end of an interval that would dwarf them."""
    values = [value for _, value in ideal.ends] + [point.value for curve in curves for point in curve.points]
    ends = [point.high for curve in curves for point in curve.points if point.high is not None]
    largest = max(values)
    return 1.08 * max(largest, min(max(ends, default=0.0), 1.3 * largest))


def _draw(axes: Axes, curve: Curve, marker: str, aside: float, top: float) -> None:
    colour = COLOURS.get(curve.strategy, OTHER_COLOUR)
    points = sorted(curve.points, key=lambda point: point.count)
    faint = all(point.faint for point in points)
    if curve.fitted:
        axes.plot(*zip(*curve.fitted, strict=True), color=colour, linewidth=1.2, linestyle=":")
    axes.plot([point.count + aside for point in points], [point.value for point in points], color=colour, linewidth=1.4,
              alpha=0.4 if faint else 1.0, marker=marker, markersize=5, label=short_label(curve.label, 40))  # fmt: skip
    for point in points:
        if point.low is None or point.high is None:
            continue
        high = min(point.high, top)
        axes.plot(
            [point.count + aside] * 2, [point.low, high], color=colour, linewidth=1.2, alpha=0.4 if faint else 0.9
        )
        if high < point.high and math.isfinite(high):
            axes.plot([point.count + aside], [0.985 * top], color=colour, marker="^", markersize=4)
    hollow = [point for point in points if point.faint and not faint]
    axes.plot([point.count + aside for point in hollow], [point.value for point in hollow], color=colour, marker=marker,
              markersize=9, markerfacecolor="none", linestyle="none")  # fmt: skip


def _dress(axes: Axes, unit: str) -> None:
    axes.set_xlabel("devices", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.text(0.0, 1.02, unit, transform=axes.transAxes, ha="left", va="bottom", color=INK)
    axes.grid(color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
