import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.analysis.summary import summarise
from bench.errors import ResultsError
from bench.recording.reader import read_run, read_timeline
from bench.recording.writer import RunWriter
from bench.reporting.cells import lines as section_lines
from bench.reporting.page import render, render_page
from bench.schema import Case, Run
from tests.recording.made_up import (
    METRICS,
    NASTY,
    cpu_run,
    gpu_run,
    made_case,
    made_launch,
    made_run,
    sample,
    timed,
    write_run,
)  # fmt: skip

Plan = list[tuple[Case, list[float], list[float | None]]]
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Reader(HTMLParser):
    """Collects what a browser would act on, and checks that elements nest."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def page_of(folder: Path) -> str:
    return render_page(read_run(folder), read_timeline(folder))


def text_of(page: str) -> str:
    return " ".join(" ".join(parsed(page).text).split())


@pytest.fixture(scope="module")
def gpu_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(gpu_run(tmp_path_factory.mktemp("gpu")))


def test_the_page_is_one_file_without_scripts_or_requests(gpu_page: str) -> None:
    reader = parsed(gpu_page)
    assert not {"script", "img", "link", "iframe", "object"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    targets = [value for name, value in reader.attributes if name in ("href", "src", "xlink:href")]
    assert targets and all(value.startswith("#") for value in targets)
    assert "@import" not in gpu_page and not re.search(r"url\((?!#)", gpu_page)
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_nasty_names_are_shown_as_they_are(gpu_page: str) -> None:
    assert gpu_page.count("<img") == 0 and "</script" not in gpu_page
    assert NASTY in parsed(gpu_page).text


def test_everything_is_shown(gpu_page: str) -> None:
    text = text_of(gpu_page)
    for words in (
        "No clear winner among ddp, 4 devices", "rank 2: CUDA out of memory", "gpu0_bsz 80 is above 128 // 2 = 64",
        "Traceback (most recent call last)", "parity error 9.0e-01 is above", "too few launches", "NCCL_DEBUG WARN",
        "torch 2.14.1", "GPU-3", "NUMA node of GPU 2 unknown", "All 59 launches",
    ):  # fmt: skip
        assert words in text
    for column in Run.__dataclass_fields__:
        assert column in text
    assert 'class="notice"' not in gpu_page


def test_reasons_have_a_row_of_their_own_and_what_is_to_copy_is_whole(tmp_path: Path) -> None:
    why = "2 parameters got no gradient; give --strategies ddp:find_unused_parameters=on"
    failed = [(made_case("ddp", 2, 64), {"status": "skipped", "reason": why})]
    page = page_of(write_run(tmp_path, [], failed=failed))
    assert text_of(page).count(why) == 2, "in the table and in the checks"
    whole = '<span class="whole">--strategies</span> <span class="whole">ddp:find_unused_parameters=on</span>'
    assert f'<tr class="why"><td colspan="11"><div><small>2 parameters got no gradient; give {whole}</small>' in page


def test_use_and_the_fullest_device(gpu_page: str) -> None:
    text = text_of(gpu_page)
    # 90 % less 10 a device, and 20 to 23 GiB on four devices
    assert "23.00 GiB least 20.00 fullest: device 3 60 to 90 % least: device 3" in text
    assert "20.00 GiB 90 % 2.0e-07 ok" in text, "single"
    assert "Use is utilization_percent: share of time in which any kernel ran" in text


def test_a_gauge_without_a_figure_is_a_dash_and_even_devices_have_no_least(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    for position, busy in enumerate((None, 70.0)):
        launch = made_launch(made_case("ddp", 2, 64 * (position + 1)), 0, position)
        rows = [sample(launch, "utilization_percent", busy, device_index=index) for index in range(2)]
        writer.add(launch, [*timed(launch, 100.0, [5.0, 5.0]), *rows])
    lines = section_lines(summarise(read_run(writer.folder))[0])
    assert [(str(line.use), line.memory.extra) for line in lines] == [("–", ""), ("70 %", "")]


def test_an_interval_that_tells_nothing_is_a_hint_only(tmp_path: Path) -> None:
    plan: Plan = [(made_case("single", 1, 64), [900.0, 910.0], []), (made_case("ddp", 2, 64), [100.0, 4000.0], [])]
    page = page_of(write_run(tmp_path, plan))
    assert page.count("unknown<br>(2 launches)") == 3 == page.count('title="95 % interval'), "throughput, step, ratio"
    # t(1) = 12.706 times half of ln(40): 632.5 times and over e^23.44
    assert "9,5" in page.split('title="95 % interval ')[1].split('"')[0].split(" to ")[1]


@pytest.mark.parametrize(
    ("version", "commit", "shown"),
    [
        ("0.1", "b" * 40, ", dpbench 0.1"),
        ("0+unknown", "b" * 40, f", dpbench at commit {'b' * 10}"),
        ("0+unknown", None, ""),
    ],
)
def test_the_header_tells_the_version_or_the_commit(
    tmp_path: Path, version: str, commit: str | None, shown: str
) -> None:
    page = page_of(write_run(tmp_path, [], run=made_run(dpbench_version=version, git_commit=commit)))
    assert f"preset standard{shown}</p>" in page


def test_a_lead_in_progress_is_no_warning_and_an_unknown_parity_no_green(tmp_path: Path) -> None:
    cases = [made_case("ddp", 2, 64), made_case("fsdp", 2, 64)]
    plan: Plan = [(case, [100.0, 101.0], []) for case in cases]
    page = page_of(write_run(tmp_path / "a", plan, parity=[(replace(case, precision="fp32"), 1e-7) for case in cases]))
    assert ".mark.fastest-so-far { color: var(--good)" in page and 'class="mark fastest-so-far"' in page
    assert '<p class="verdict">' in page
    failed = [(replace(cases[1], precision="fp32", purpose="parity"), {"status": "oom", "reason": "full"})]
    page = page_of(write_run(tmp_path / "b", plan, parity=[(replace(cases[0], precision="fp32"), 1e-7)], failed=failed))
    assert '<p class="verdict unsure">' in page and "not ranked: parity unknown" in page
    assert '<p class="verdict unsure">' in page_of(write_run(tmp_path / "c", plan)), "no check at all"


def test_a_cpu_run_and_an_oversubscribed_one_say_so_on_every_screen(tmp_path: Path) -> None:
    page = page_of(cpu_run(tmp_path))
    assert page.index("not GPU speed") < page.index("<h1>") and ".notice { position: sticky" in page
    run = made_run(run_id="twice")
    twice = write_run(tmp_path, [(made_case("ddp", 2, 64, devices=(0, 0)), [10.0], [])], run=run)
    assert "Oversubscribed: a device was listed more than once" in page_of(twice)


def test_a_run_of_failures_and_one_without_an_environment_render(tmp_path: Path) -> None:
    failed = [(made_case("ddp", 2, 64), {"status": "error", "reason": "boom"})]
    folder = write_run(tmp_path, [], failed=failed)
    assert "Nothing can be ranked" in page_of(folder)
    (folder / "run.parquet").write_bytes(b"")
    text = page_of(folder)
    assert "run.parquet: set aside, the file is empty" in text and "not known" in text


def test_a_run_without_a_launch_renders(tmp_path: Path) -> None:
    assert "holds no timed case" in page_of(write_run(tmp_path, []))


def test_render_writes_under_the_name_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cpu_run(tmp_path / "results")
    data = read_run(folder)
    monkeypatch.setattr(
        "bench.reporting.page.read_run", lambda _: replace(data, run=replace(data.run, run_id="../../escape"))
    )
    path = render(folder, tmp_path / "reports")
    assert path == tmp_path / "reports" / f"{folder.name}.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot write"):
        render(folder, tmp_path / "file")
