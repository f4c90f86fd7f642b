import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

from bench.reporting.charts.bars import Bar, bar_chart
from bench.reporting.charts.svg import COLOURS, LABEL_LINE, label_lines
from bench.reporting.units import scale_of
from tests.recording.made_up import NASTY

BARS = [
    Bar(label="ddp", strategy="ddp", value=0.010, low=0.009, high=0.011, points=(0.0095, 0.0105)),
    Bar(label=NASTY, strategy="mine", value=0.020, remark="emulated", faint=True),
    Bar(label="bell \x07 escape \x1b[31m \ufffe\n second $\\frac{1}{2}", strategy="dp", value=0.001),
]


def chart(prefix: str = "a") -> str:
    return bar_chart(BARS, unit="s", title=f"mnist: {NASTY}", prefix=prefix)


def test_text_is_text_and_harmless() -> None:
    svg = chart()
    root = ElementTree.fromstring(svg)
    texts = ["".join(item.itertext()) for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "ddp" in texts and "10.00" in texts and "ms" in texts
    assert any(text.startswith("<img src=x onerror=alert(1)></script>$x_1$ 模型") for text in texts)
    assert any("$\\frac{1}{2}" in text for text in texts)
    assert "<img" not in svg and "</script" not in svg and "\x1b" not in svg


def test_the_page_decides_on_colours_and_nothing_hides_it() -> None:
    svg = chart()
    assert "currentColor" in svg and "#010203" not in svg
    assert not re.search(r"fill: (#ffffff|white)", svg)
    assert "<style" not in svg and "metadata" not in svg and "DejaVu" not in svg
    assert COLOURS["ddp"] in svg


def test_two_charts_of_one_page_share_no_id_and_a_chart_is_reproducible() -> None:
    first, second = chart("w0-rate"), chart("w1-rate")
    ids = [re.findall(r' id="([^"]+)"', svg) for svg in (first, second)]
    assert len(ids[0]) == len(set(ids[0])) and not set(ids[0]) & set(ids[1])
    for svg, known in zip((first, second), ids, strict=True):
        used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
        assert used and all((a or b) in known for a, b in used)
    assert chart("w0-rate") == first
    assert matplotlib.rcParams["svg.hashsalt"] is None, "no global state is left behind"


@pytest.mark.parametrize(
    ("values", "unit", "text"),
    [
        ([2 * 2**30, 2**20], "bytes", "2.000 GiB"),
        ([1.5 * 2**20], "bytes", "1.500 MiB"),
        ([0.25, None], "s", "250.0 ms"),
        ([4e-5], "s", "40.00 µs"),
        ([2.0], "s", "2.000 s"),
        ([0.0], "s", "0 s"),
        ([2000.0], "samples/s", "2,000 samples/s"),
        ([242.0], "samples", "242 samples"),
    ],
)
def test_one_unit_for_a_chart(values: list[float | None], unit: str, text: str) -> None:
    assert scale_of(values, unit).text(values[0] or 0.0) == text


def test_a_label_that_is_long_takes_a_second_line_and_loses_nothing() -> None:
    assert label_lines("dp", "", 20) == ["dp"] and label_lines("dp", "emulated", 20) == ["dp · emulated"]
    assert label_lines("dp, two devices", "emulated", 20) == ["dp, two devices", "emulated"]
    assert label_lines("dp (loss on replica), 2 devices", "emulated", 22) == [
        "dp (loss on replica),",
        "2 devices · emulated",
    ]
    assert label_lines("a b c d e f g h", "oom", 10) == ["a b c d e", "f g… · oom"], "but for what two do not hold"
    heights = []
    for remark in ("", "emulated"):
        bar = Bar(label="x" * 50, strategy="dp", value=1.0, remark=remark)
        root = ElementTree.fromstring(bar_chart([bar], unit="s", title="t", prefix="p"))
        heights.append(float(root.attrib["viewBox"].split()[3]))
    assert heights[1] - heights[0] == pytest.approx(72 * LABEL_LINE, abs=0.01), "the chart grows by the second line"


def test_one_bar_of_zero_draws() -> None:
    assert "<svg" in bar_chart([Bar(label="x", strategy="ddp", value=0.0)], unit="s", title="x", prefix="z")


def test_an_interval_that_dwarfs_the_values_ends_in_an_arrow_and_leaves_the_bars_readable() -> None:
    wide = Bar(label="a", strategy="ddp", value=100.0, low=2.0, high=40_000.0, points=(90.0, 110.0))
    svg = bar_chart([wide], unit="samples/s", title="t", prefix="p")
    ticks = [float(text) for text in re.findall(r">([\d.,]+)</text>", svg)]
    assert ticks and max(ticks) <= 110 * 1.6 * 1.03
