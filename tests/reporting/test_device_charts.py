import re
import xml.etree.ElementTree as ElementTree

import pytest

from bench.analysis.timelines import Line, Panel
from bench.reporting.charts.memory import MemoryBars, memory_chart
from bench.reporting.charts.shares import Curve, Level, Point, share_chart
from bench.reporting.charts.svg import DEVICE_COLOURS, device_style
from bench.reporting.charts.timelines import timeline_chart
from tests.recording.made_up import NASTY

GIB = 2.0**30


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(item.itertext()) for item in root.iter("{http://www.w3.org/2000/svg}text")]


def memory(*cases: MemoryBars) -> str:
    return memory_chart(cases, title=NASTY, prefix="m")


def test_memory_figures_stand_beside_the_bars_of_their_device() -> None:
    figures = ((GIB, 3 * GIB), (2 * GIB, None), (4 * GIB, 5 * GIB))
    svg = memory(MemoryBars(label=NASTY, strategy="dp", figures=figures, above_mean=0.5, remark="emulated"))
    found = texts(svg)
    assert "1.000 · 2.000 · 4.000" in found and "3.000 · – · 5.000" in found and "GiB" in found and "+50 %" in found
    assert [text for text in found if text in ("0", "1")], "device by device"
    assert "<img" not in svg and "#010203" not in svg and "currentColor" in svg
    # five figures, each a bar: the missing one has none
    assert len(re.findall(r'style="fill: #e69f00', svg)) == 5


def test_how_full_the_fullest_device_is_stands_beside_the_label() -> None:
    figures = ((GIB, 2 * GIB), (3 * GIB, 4 * GIB))
    bars = MemoryBars(label="x" * 99, strategy="dp", figures=figures, remark="oom", full=0.955, above_mean=1 / 3)
    found = texts(memory(bars))
    assert "96 % full · +33 %" in found
    assert [text for text in found if "x" in text] == ["x" * 45, "x" * 38 + "… · oom"], "the label leaves room for it"


def test_memory_of_one_process_and_of_none() -> None:
    one = memory(MemoryBars(label="single", strategy="single", figures=((GIB / 2,),)))
    assert "512.0" in texts(one) and "MiB" in texts(one)
    assert "<svg" in memory(MemoryBars(label="x", strategy="y", figures=((0.0,),)))


def panel(**changes: object) -> Panel:
    lines = tuple(Line(device_index=i, seconds=(0.0, 1.0, 2.0), values=(10.0, 50.0 + i, 90.0)) for i in range(2))
    made = {"title": NASTY, "launch": 0, "seconds": 2.0, "measured": (1.0, 2.0), "lines": lines, "absent": ()}
    return Panel(**(made | changes))  # type: ignore[arg-type]


def test_a_panel_has_a_line_a_device_and_shades_what_was_measured() -> None:
    svg = timeline_chart(panel(), unit="%", top=105.0, title="t", prefix="p")
    assert svg.count(f"stroke: {DEVICE_COLOURS[0]}") == 2 == svg.count(f"stroke: {DEVICE_COLOURS[1]}"), "line and key"
    assert {"0", "1", "100", "% over seconds"} <= set(texts(svg))
    shaded = "opacity: 0.09"
    assert shaded in svg and "<img" not in svg
    assert shaded not in timeline_chart(panel(measured=None), unit="%", top=105.0, title="t", prefix="p")


def test_the_last_reading_and_the_shade_end_before_the_axis_does() -> None:
    svg = timeline_chart(panel(), unit="%", top=105.0, title="t", prefix="p")
    root = ElementTree.fromstring(svg)
    width = float(root.attrib["viewBox"].split()[2])
    shade = next(item for item in root.iter() if "opacity: 0.09" in item.get("style", ""))
    right = max(float(x) for x, _ in re.findall(r"[ML] ([\d.]+) ([\d.]+)", shade.attrib["d"]))
    # the axes are 0.865 of the width from 0.115 on, and end 3 % after the launch
    assert right == pytest.approx(width * (0.115 + 0.865 / 1.03), abs=0.5)


def test_sixteen_devices_fit_and_are_told_apart() -> None:
    lines = tuple(Line(device_index=i, seconds=(0.0, 1.0), values=(10.0, 20.0)) for i in range(16))
    assert "15" in texts(timeline_chart(panel(lines=lines), unit="%", top=100.0, title="t", prefix="p"))
    styles = [tuple(device_style(index).values()) for index in range(16)]
    assert len(set(styles)) == 16


def test_a_single_reading_shows_as_a_dot() -> None:
    once = (Line(device_index=0, seconds=(0.5,), values=(10.0,)),)
    svg = timeline_chart(panel(lines=once), unit="%", top=100.0, title="t", prefix="p")
    assert "<use" in svg.split("axes_1")[-1]


def test_shares_are_percent_and_the_key_names_every_line_once() -> None:
    points = tuple(Point(share=share, value=value * GIB) for share, value in ((0.0, 2.0), (0.25, 4.0)))
    curves = [Curve(label=f"device {i}", points=points, device_index=i) for i in range(2)]
    curves += [Curve(label="predicted by auto", points=points[:1], device_index=i, predicted=True) for i in range(2)]
    svg = share_chart(curves, [Level(label=NASTY, value=3 * GIB)], unit="bytes", title=NASTY, prefix="s")
    found = texts(svg)
    assert {"device 0", "device 1", "GiB", "25", "samples on GPU 0, % of the micro-batch"} <= set(found)
    assert found.count("predicted by auto") == 1
    assert any(text.startswith("<img src=x") for text in found) and "<img" not in svg


@pytest.mark.parametrize("prefix", ["a", "b"])
def test_a_chart_is_reproducible_and_its_ids_are_its_own(prefix: str) -> None:
    svg = timeline_chart(panel(), unit="%", top=105.0, title="t", prefix=prefix)
    ids = re.findall(r' id="([^"]+)"', svg)
    assert ids and all(item.startswith(f"{prefix}-") for item in ids) and len(ids) == len(set(ids))
    assert svg == timeline_chart(panel(), unit="%", top=105.0, title="t", prefix=prefix)
