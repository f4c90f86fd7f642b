"""Charts as inline SVG: real text, the page's own colours, nothing that clashes with a second chart.

matplotlib draws; afterwards the SVG is parsed, so that only attributes are rewritten and
never the text that a user chose.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.reporting.units import Scale, scale_of

# Okabe and Ito's palette: told apart by every kind of colour vision, on white and on black.
COLOURS = {
    "single": "#999999",
    "dp": "#e69f00",
    "balanced_dp": "#d55e00",
    "ddp": "#0072b2",
    "fsdp": "#009e73",
    "fsdp1": "#56b4e9",
}
OTHER_COLOUR = "#cc79a7"

_INK = "#010203"  # stands for the page's text colour until the SVG is rewritten
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_UNPRINTABLE = re.compile("[^\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_LABEL = 54
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
    with matplotlib.rc_context(), warnings.catch_warnings():
        # The reader's browser draws the text; what glyphs matplotlib's own font lacks does not matter.
        warnings.simplefilter("ignore", UserWarning)
        matplotlib.rcParams["svg.fonttype"] = "none"
        matplotlib.rcParams["svg.hashsalt"] = prefix
        matplotlib.rcParams["text.parse_math"] = False
        matplotlib.rcParams["font.size"] = 9.0
        height = 0.46 * len(bars) + 0.55
        figure = Figure(figsize=(4.6, height))
        axes = figure.add_axes((0.03, 0.5 / height, 0.93, 1 - 0.52 / height))
        axes.patch.set_alpha(0.0)
        limit = _limit(bars, scale)
        _draw(axes, bars, scale, limit)
        _dress(axes, bars, scale, limit)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), title=_printable(title), prefix=prefix)


def _limit(bars: Sequence[Bar], scale: Scale) -> float:
    """Where the axis ends: past every value, but not at the far end of an interval that would dwarf them all."""
    values = max((end for bar in bars for end in (bar.value, *bar.points)), default=1.0)
    ends = max((bar.high for bar in bars if bar.high is not None), default=0.0)
    return max(values, min(ends, _LONGEST_INTERVAL * values)) / scale.size or 1.0


def _draw_interval(axes: Axes, height: float, low: float, high: float, limit: float) -> None:
    """A line from end to end; one that leaves the chart ends in an arrow."""
    shown = min(high, limit)
    axes.plot([low, shown], [height] * 2, color=_INK, linewidth=1.4)
    axes.plot([low], [height], color=_INK, marker="|", markersize=7)
    axes.plot([shown], [height], color=_INK, marker=">" if high > limit else "|", markersize=5 if high > limit else 7)


def _draw(axes: Axes, bars: Sequence[Bar], scale: Scale, limit: float) -> None:
    for row, bar in enumerate(bars):
        colour = COLOURS.get(bar.strategy, OTHER_COLOUR)
        axes.barh(row + 0.2, bar.value / scale.size, height=0.38, color=colour, alpha=0.35 if bar.faint else 0.9)
        if bar.low is not None and bar.high is not None:
            _draw_interval(axes, row + 0.2, bar.low / scale.size, bar.high / scale.size, limit)
        points = [point / scale.size for point in bar.points]
        axes.plot(points, [row + 0.32] * len(points), linestyle="none", marker="o", markersize=2.6, color=_INK,
                  markeredgewidth=0, alpha=0.75)  # fmt: skip
        label = _printable(bar.label)
        label = label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"
        across = axes.get_yaxis_transform()
        text = f"{label} · {_printable(bar.remark)}" if bar.remark else label
        axes.text(0.0, row - 0.06, text, transform=across, ha="left", va="bottom", color=_INK)
        axes.text(1.0, row - 0.06, scale.number(bar.value), transform=across, ha="right", va="bottom", color=_INK)


def _dress(axes: Axes, bars: Sequence[Bar], scale: Scale, limit: float) -> None:
    axes.set_xlim(0, 1.03 * limit)
    axes.set_ylim(len(bars) - 0.4, -0.5)
    axes.set_yticks([])
    axes.set_xlabel(scale.unit, color=_INK)
    axes.tick_params(axis="x", colors=_INK, length=3)
    axes.grid(axis="x", color=_INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "left")
        spine.set_color(_INK)


def _printable(text: str) -> str:
    """One line that XML can hold."""
    return " ".join(_UNPRINTABLE.sub("\ufffd", " ".join(text.split())).split())


def _inline(svg: str, *, title: str, prefix: str) -> str:
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            # The style sheet would hold for the whole page, the metadata name the drawing program.
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            element.set(name, _rewritten(name, value, prefix))
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": title, "stroke-linejoin": "round", "class": "chart"}
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _rewritten(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    if name.endswith("href") and value.startswith("#"):
        return f"#{prefix}-{value[1:]}"
    value = re.sub(r"url\(#", f"url(#{prefix}-", value)
    if name == "style":
        # The page's own font; matplotlib writes one `font`, or size and family apart.
        value = re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", value)
        value = re.sub(r"font-family: [^;]*(;\s*)?", "", value)
        # Text without a fill is black by default.
        value = value if "fill:" in value or "font-size" not in value else f"{value}; fill: {_INK}"
    return value.replace(_INK, "currentColor")
