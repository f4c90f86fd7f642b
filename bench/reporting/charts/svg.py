"""Charts as inline SVG: real text, the page's own colours, nothing that clashes with a second chart.

matplotlib draws; afterwards the SVG is parsed, so that only attributes are rewritten and
never the text that a user chose.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by every kind of colour vision, on white and on black.
COLOURS = {
    "single": "#999999",
    "dp": "#e69f00",
    "balanced_dp": "#d55e00",
    "ddp": "#0072b2",
    "zero1": "#cc79a7",
    "fsdp": "#009e73",
    "fsdp1": "#56b4e9",
}
OTHER_COLOUR = "#882255"
DEVICE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
INK = "#010203"  # stands for the page's text colour until the SVG is rewritten

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_UNPRINTABLE = re.compile("[^\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_LABEL = 54
LABEL_LINE = 0.15
"""Inches that a line of a label takes."""


class Drawing:
    """A figure under way; `svg` holds it as one `<svg>` element after the block of `drawing`."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height))
        self.svg = ""

    def axes(self, left: float, bottom: float, width: float, height: float) -> Axes:
        """Axes without a background; lengths are parts of the figure."""
        axes = self.figure.add_axes((left, bottom, width, height))
        axes.patch.set_alpha(0.0)
        axes.tick_params(colors=INK, length=3)
        for spine in axes.spines.values():
            spine.set_color(INK)
        return axes


@contextmanager
def drawing(width: float, height: float, *, title: str, prefix: str) -> Iterator[Drawing]:
    """Draw in the block; sizes in inches. `title` is what is read aloud, `prefix` must be unique in the page."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # The reader's browser draws the text; what glyphs matplotlib's own font lacks does not matter.
        warnings.simplefilter("ignore", UserWarning)
        matplotlib.rcParams["svg.fonttype"] = "none"
        matplotlib.rcParams["svg.hashsalt"] = prefix
        matplotlib.rcParams["text.parse_math"] = False
        matplotlib.rcParams["font.size"] = 9.0
        made = Drawing(width, height)
        yield made
        buffer = io.StringIO()
        made.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    made.svg = inline(buffer.getvalue(), title=printable(title), prefix=prefix)


def device_style(index: int) -> dict[str, Any]:
    """How the line of a device looks; after the last colour they come again, dashed."""
    again, colour = divmod(index, len(DEVICE_COLOURS))
    return {"color": DEVICE_COLOURS[colour], "linestyle": ("-", "--", ":")[again % 3]}


def short_label(text: str, longest: int = _LONGEST_LABEL) -> str:
    """One line that XML can hold, cut where it is too long."""
    label = printable(text)
    return label if len(label) <= longest else label[: longest - 1] + "…"


def label_lines(label: str, remark: str, width: int) -> list[str]:
    """The label and the remark in one line of at most `width` characters, or in two; a longer label is cut."""
    first, *rest = textwrap.wrap(printable(label), width, break_on_hyphens=False) or [""]
    end = f" · {printable(remark)}" if remark else ""
    if not rest and len(first + end) <= width:
        return [first + end]
    return [first, (short_label(" ".join(rest), width - len(end)) + end).removeprefix(" · ")]


def printable(text: str) -> str:
    """One line that XML can hold."""
    return " ".join(_UNPRINTABLE.sub("\ufffd", " ".join(text.split())).split())


def draw_label(axes: Axes, lines: Sequence[str], beside: str, top: float) -> float:
    """Write a label `top` inches down axes whose y runs so, `beside` at its right. Returns where it ends, in inches."""
    across = axes.get_yaxis_transform()
    for number, line in enumerate(lines):
        axes.text(0.012, top + number * LABEL_LINE, line, transform=across, ha="left", va="top", color=INK)
    axes.text(1.0, top, beside, transform=across, ha="right", va="top", color=INK)
    return top + LABEL_LINE * len(lines)


def inline(svg: str, *, title: str, prefix: str) -> str:
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
    if name == "d":
        return re.sub(r"(\.\d\d)\d+", r"\1", value)  # a hundredth of a point; long lines are most of a page's size
    value = re.sub(r"url\(#", f"url(#{prefix}-", value)
    if name == "style":
        # The page's own font; matplotlib writes one `font`, or size and family apart.
        value = re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", value)
        value = re.sub(r"font-family: [^;]*(;\s*)?", "", value)
        # Text without a fill is black by default.
        value = value if "fill:" in value or "font-size" not in value else f"{value}; fill: {INK}"
    return value.replace(INK, "currentColor")
