"""A gauge over the time of one launch, a line a device."""

from __future__ import annotations

from matplotlib.axes import Axes

from bench.analysis.timelines import Panel
from bench.reporting.charts.svg import INK, device_style, drawing, short_label

_WIDTH, _HEIGHT = 3.3, 1.45


def timeline_chart(panel: Panel, *, unit: str, top: float, title: str, prefix: str) -> str:
    """One panel as one `<svg>` element. `top` ends the vertical axis, so that panels can be compared."""
    with drawing(_WIDTH, _HEIGHT, title=title, prefix=prefix) as made:
        axes = made.axes(0.115, 0.14, 0.865, 0.64)
        # The last reading ends the launch; the margin keeps it and the shade whole.
        axes.set_xlim(0, 1.03 * (panel.seconds or 1.0))
        axes.set_ylim(0, top)
        if panel.measured is not None:
            axes.axvspan(*panel.measured, color=INK, alpha=0.09, linewidth=0)
        for line in panel.lines:
            dot = "o" if len(line.seconds) == 1 else None
            axes.plot(
                line.seconds, line.values, linewidth=1.1, marker=dot, markersize=3, **device_style(line.device_index)
            )
        _dress(axes, panel, unit)
    return made.svg


def _dress(axes: Axes, panel: Panel, unit: str) -> None:
    axes.set_title(short_label(panel.title, 44), loc="left", color=INK, fontsize=8.5, pad=14)
    axes.tick_params(labelsize=7.5)
    axes.locator_params(axis="y", nbins=3)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.text(
        0.0, 1.03, f"{unit} over seconds", transform=axes.transAxes, ha="left", va="bottom", color=INK, fontsize=7.5
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _key(axes, panel)


def _key(axes: Axes, panel: Panel) -> None:
    """The devices by number, above the lines: a piece of each line, then its number."""
    step = min(0.085, 0.8 / max(len(panel.lines), 1))
    for place, line in enumerate(panel.lines):
        left = 1.0 - step * (len(panel.lines) - place)
        style = device_style(line.device_index)
        axes.plot([left, left + 0.45 * step], [1.1, 1.1], transform=axes.transAxes, clip_on=False, linewidth=2, **style)
        axes.text(left + 0.55 * step, 1.1, str(line.device_index), transform=axes.transAxes, ha="left", va="center",
                  color=INK, fontsize=7)  # fmt: skip
