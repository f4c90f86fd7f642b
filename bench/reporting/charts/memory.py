"""Memory device by device: each case's devices side by side, so that the fullest shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes

from bench.reporting.charts.svg import COLOURS, INK, LABEL_LINE, OTHER_COLOUR, draw_label, drawing, label_lines
from bench.reporting.units import Scale, scale_of

_WIDTH = 4.6
_AIR, _DEVICE, _GAP = 0.05, 0.135, 0.1  # inches
_BARS = 0.62  # of the width; the figures stand beside
_LABEL_WIDTH, _BESIDE_WIDTH = 62, 17  # characters: of a line, and what those beside take of it
_SHADES = (0.9, 0.45, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBars:
    """One case. `figures`: bytes per device, by kind; a later kind holds the one before it, so the bars are nested.

    None where a device has no such figure. The line across the devices is their mean of the first kind;
    `above_mean` is how far the fullest is beyond it, `full` how much of its memory the fullest device's allocator
    kept; both as a part of 1.
    """

    label: str
    strategy: str
    figures: tuple[tuple[float | None, ...], ...]
    remark: str = ""
    above_mean: float | None = None
    full: float | None = None
    faint: bool = False

    @property
    def num_devices(self) -> int:
        return max(map(len, self.figures), default=0)

    @property
    def beside(self) -> str:
        """How full, and how uneven, as text; empty where neither is known."""
        found = [] if self.full is None else [f"{100 * self.full:.0f} % full"]
        found += [] if self.above_mean is None else [f"+{100 * self.above_mean:.0f} %"]
        return " · ".join(found)

    def of_device(self, index: int) -> list[float | None]:
        """Every kind of figure of one device."""
        return [kind[index] if index < len(kind) else None for kind in self.figures]


def memory_chart(cases: Sequence[MemoryBars], *, title: str, prefix: str) -> str:
    """A block of bars a case, a bar a device, as one `<svg>` element."""
    scale = scale_of((value for case in cases for kind in case.figures for value in kind), "bytes")
    labels = [label_lines(case.label, case.remark, _LABEL_WIDTH - _BESIDE_WIDTH * bool(case.beside)) for case in cases]
    content = sum(
        LABEL_LINE * len(label) + _AIR + _DEVICE * case.num_devices + _GAP
        for case, label in zip(cases, labels, strict=True)
    )
    height = content + 0.5
    limit = max((value for case in cases for kind in case.figures for value in kind if value), default=1.0) / scale.size
    with drawing(_WIDTH, height, title=title, prefix=prefix) as made:
        axes = made.axes(0.06, 0.45 / height, 0.92, content / height)
        axes.set_xlim(0, limit / _BARS)
        axes.set_ylim(content, 0)
        top = 0.0
        for case, label in zip(cases, labels, strict=True):
            top = draw_label(axes, label, case.beside, top) + _AIR
            _draw(axes, case, top, scale)
            top += _DEVICE * case.num_devices + _GAP
        _dress(axes, scale, limit)
    return made.svg


def _draw(axes: Axes, case: MemoryBars, top: float, scale: Scale) -> None:
    across = axes.get_yaxis_transform()
    colour, fade = COLOURS.get(case.strategy, OTHER_COLOUR), 0.5 if case.faint else 1.0
    for index in range(case.num_devices):
        middle = top + _DEVICE * (index + 0.5)
        figures = case.of_device(index)
        for value, shade in zip(figures, _SHADES, strict=False):
            if value is not None:
                axes.barh(
                    middle, value / scale.size, height=0.8 * _DEVICE, color=colour, alpha=shade * fade, linewidth=0
                )
        axes.text(-0.012, middle, str(index), transform=across, ha="right", va="center", color=INK, fontsize=7)
        text = " · ".join("–" if value is None else scale.number(value) for value in figures)
        axes.text(1.0, middle, text, transform=across, ha="right", va="center", color=INK, fontsize=7)
    first = [value for value in (case.figures[0] if case.figures else ()) if value is not None]
    if len(first) > 1:
        mean = fmean(first) / scale.size
        ends = [top, top + _DEVICE * case.num_devices]
        axes.plot([mean, mean], ends, color=INK, linewidth=1.0, linestyle=(0, (2, 1.5)))


def _dress(axes: Axes, scale: Scale, limit: float) -> None:
    axes.set_yticks([])
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= 1.02 * limit]
    axes.set_xticks(ticks)
    axes.set_xlabel(scale.unit, color=INK, loc="left")
    for tick in ticks:
        axes.axvline(tick, color=INK, alpha=0.12, linewidth=0.6, zorder=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "left")
