"""The section on scaling: its table, its charts, and what it says where there is nothing."""

import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console

from bench.analysis.scaling import scaling_summaries
from bench.recording.reader import read_run
from bench.reporting.charts.scaling import Curve, Ideal, Point, scaling_chart
from bench.reporting.charts.svg import COLOURS
from bench.reporting.scaling import scaling_section
from bench.reporting.terminal import print_summary
from tests.recording.made_up import cpu_run
from tests.reporting.made_up_scaling import scaling_run
from tests.reporting.test_page import page_of, parsed, text_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scaling_run(tmp_path_factory.mktemp("scaling"))


def test_findings_charts_and_table_are_on_the_page(run: Path) -> None:
    page = page_of(run)
    text = text_of(page)
    assert 'href="#scaling"' in page
    for summary in scaling_summaries(read_run(run)):
        for sentence in summary.sentences:
            assert sentence in text
    for words in (
        "resnet50: strong scaling", "global batch 252, bf16, up to 4 devices", "Speed-up over single",
        "resnet50: weak scaling", "64 samples per device, bf16, up to 4 devices", "Efficiency against single",
        "serial fraction", "against itself", "rank 0: out of memory, 2 GiB asked for", "Karp and Flatt",
        "ideal: n times on n devices", "ideal: 100 %", "dotted: Amdahl's law, fitted",
    ):  # fmt: skip
        assert words in text, words
    ids = [value for name, value in parsed(page).attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_the_lines_of_the_table(run: Path) -> None:
    strong, weak = (scaling_section(*item) for item in enumerate(scaling_summaries(read_run(run))))
    single, *others = strong.lines
    assert (single.label, single.devices, single.batch, single.speedup.value) == ("single", "1", "252", "reference")
    assert [(line.label, line.devices) for line in others] == [
        (name, str(count)) for name in ("dp", "ddp", "fsdp") for count in (1, 2, 3, 4)
    ]
    ddp = {line.devices: line for line in others if line.label == "ddp"}
    # 1 / 0.325 = 3.08, over 4 devices 76.9 %; the noise of 6 launches is below half a percent.
    assert re.fullmatch(r"3\.\d\d×", ddp["4"].speedup.value) and re.match(r"7[67]\.\d %", ddp["4"].efficiency.value)
    assert " to " in ddp["4"].efficiency.detail and " to " in ddp["4"].serial.detail
    assert (ddp["1"].own.value, ddp["1"].serial.value) == ("reference", "–")
    last = weak.lines[-1]
    assert (last.label, last.status.value, last.efficiency.value, last.ranked) == ("fsdp", "oom", "–", False)
    assert last.why == ("rank 0: out of memory, 2 GiB asked for",)


def test_emulated_rows_are_marked_and_not_ranked(tmp_path: Path) -> None:
    summaries = scaling_summaries(read_run(scaling_run(tmp_path, launches=2, device_type="cpu")))
    lines = [line for item in enumerate(summaries) for line in scaling_section(*item).lines if line.label == "dp"]
    assert lines and {(line.mark, line.ranked) for line in lines} == {("emulated", False)}
    assert all(line.efficiency.value != "–" for line in lines)


def test_the_terminal_prints_the_findings(run: Path) -> None:
    out = io.StringIO()
    print_summary(read_run(run), Console(file=out, width=140))
    text = out.getvalue()
    assert "resnet50: strong scaling at global batch 252, bf16" in text
    assert "resnet50: weak scaling at 64 samples per device, bf16" in text
    assert "ddp scales best to 4 devices, surely." in text


def test_a_run_without_it_says_how_to_get_it(tmp_path: Path) -> None:
    page = page_of(cpu_run(tmp_path))
    assert "--sweeps scaling measures that" in text_of(page) and 'href="#scaling"' not in page


CURVES = (
    Curve(label="ddp", strategy="ddp", fitted=((1.0, 1.0), (2.5, 2.1), (4.0, 3.0)),
          points=(Point(count=1, value=1.0), Point(count=4, value=3.0, low=2.5, high=99.0))),
    Curve(label="dp <b>", strategy="dp", points=(Point(count=1, value=0.9, faint=True),)),
)  # fmt: skip


def test_a_chart_has_the_strategies_colours_the_ideal_and_its_figures_in_words() -> None:
    svg = scaling_chart(CURVES, Ideal(label="ideal", ends=((1, 1.0), (4, 4.0))), unit="times", title="t", prefix="s0")
    root = ElementTree.fromstring(svg)
    label = root.get("aria-label") or ""
    assert "ddp: 1 times at 1, 3 times at 4" in label and "dp <b>: 0.9 times at 1" in label
    assert COLOURS["ddp"] in svg and COLOURS["dp"] in svg and "<b>" not in svg
    texts = ["".join(item.itertext()) for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"devices", "times", "ideal", "ddp", "dp <b>"} <= set(texts)
    # The interval up to 99 must not flatten everything else.
    assert max(float(text) for text in texts if re.fullmatch(r"\d+(\.\d+)?", text)) < 6
