"""A figure against GPU 0's share of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from bench.reporting.charts.svg import COLOURS, INK, OTHER_COLOUR, device_style, drawing, short_label
from bench.reporting.units import Scale, scale_of

_DASHES = ((0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_WIDTH, _PLOT, _AXIS, _KEY = 4.6, 2.3, 0.5, 0.19  # inches; the key has a row for two entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value at one share (0 to 1) with its interval, where there is one."""

    share: float
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The points of one device (`device_index`), or of the whole case; `predicted` ones are not measured.

    Curves of the same label share an entry of the key.
    """

    label: str
    points: tuple[Point, ...]
    device_index: int | None = None
    predicted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What does not depend on the share: a line across, in the strategy's colour or in the text's own."""

    label: str
    value: float
    strategy: str | None = None


def share_chart(curves: Sequence[Curve], levels: Sequence[Level], *, unit: str, title: str, prefix: str) -> str:
    """Curves and levels over the share in percent, as one `<svg>` element; the key stands below."""
    values = [point.value for curve in curves for point in curve.points] + [level.value for level in levels]
    scale = scale_of(values, unit)
    entries = len({curve.label for curve in curves}) + len(levels)
    key = _KEY * ((entries + 1) // 2)
    height = _PLOT + _AXIS + key
    with drawing(_WIDTH, height, title=title, prefix=prefix) as made:
        axes = made.axes(0.11, (key + _AXIS) / height, 0.86, (_PLOT - 0.25) / height)
        for curve in curves:
            _draw(axes, curve, scale)
        for number, level in enumerate(levels):
            colour = INK if level.strategy is None else COLOURS.get(level.strategy, OTHER_COLOUR)
            dashes = _DASHES[number % len(_DASHES)]
            axes.axhline(level.value / scale.size, color=colour, linewidth=1.4, linestyle=dashes,
                         label=short_label(level.label, 40))  # fmt: skip
        axes.set_ylim(0, 1.08 * max(values, default=1.0) / scale.size or 1.0)
        _dress(axes, scale)
        drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        made.figure.legend(
            drawn.values(),
            drawn.keys(),
            loc="lower center",
            ncols=2,
            frameon=False,
            fontsize=8,
            labelcolor=INK,
            borderaxespad=0.0,
        )
    return made.svg


def _draw(axes: Axes, curve: Curve, scale: Scale) -> None:
    style = {"color": COLOURS["balanced_dp"]} if curve.device_index is None else device_style(curve.device_index)
    points = sorted(curve.points, key=lambda point: point.share)
    shares, values = [100 * point.share for point in points], [point.value / scale.size for point in points]
    hollow = {"linestyle": "none", "markerfacecolor": "none", "markersize": 8} if curve.predicted else {"markersize": 4}
    axes.plot(shares, values, marker="o", label=short_label(curve.label, 40), linewidth=1.4, **(style | hollow))
    for point in points:
        if point.low is not None and point.high is not None:
            axes.plot(
                [100 * point.share] * 2, [point.low / scale.size, point.high / scale.size], color=INK, linewidth=1.2
            )


def _dress(axes: Axes, scale: Scale) -> None:
    axes.set_xlabel("samples on GPU 0, % of the micro-batch", color=INK)
    axes.text(0.0, 1.02, scale.unit, transform=axes.transAxes, ha="left", va="bottom", color=INK)
    axes.grid(color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
