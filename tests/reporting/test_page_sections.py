"""The sections on memory, on time and on GPU 0's share: what they show, and what they say where there is nothing."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.balance import balance_summaries
from bench.recording.reader import read_run, read_timeline
from bench.recording.writer import RunWriter
from bench.reporting.page import render_page
from bench.reporting.sections import MOST_PANELS
from bench.schema import Device
from tests.recording.made_up import METRICS, cpu_run, made_case, made_launch, made_run, timed, timeline, write_run
from tests.reporting.made_up_sweep import sweep_run
from tests.reporting.test_page import page_of, parsed, text_of


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep_run(tmp_path_factory.mktemp("sweep"))


def test_memory_of_each_device_by_kind_and_how_uneven_it_is(sweep: Path) -> None:
    # dp: 12 + 0.2 * 64 = 24.8 GiB on device 0 and 20.8 on the others, 21.8 in the mean: 14 % above it
    text = text_of(page_of(sweep))
    assert "Memory by device" in text and "24.80 · 27.28 · 27.78" in text and "20.80 · 22.88 · 23.38" in text
    assert "+14 %" in text and "+0 %" in text, "the even share, and what auto chose"
    # reserved is 27.28 of 139.7 GiB (150e9 bytes): 20 %
    assert "20 % full · +14 %" in text and "The devices have 139.7 GiB each." in text
    assert "peak_allocated_bytes" in text and "NVML: all processes" in text


def test_utilization_and_power_are_shown_with_what_they_mean(sweep: Path) -> None:
    page = page_of(sweep)
    text = text_of(page)
    assert "Utilization over time" in text and "Share of time in which any kernel ran" in text
    assert "Power over time" in text and "CPU use over time" not in text
    assert "At most 120 points a line: means over equal spans of time" in text
    assert page.count('aria-label="resnet50: Utilization over time') == 9, "one launch for each of nine cases"
    assert "is not shown" not in text
    ids = [value for name, value in parsed(page).attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_the_sweep_is_drawn_and_answered(sweep: Path) -> None:
    page = page_of(sweep)
    text = text_of(page)
    assert 'href="#balance"' in page
    for words in (
        *balance_summaries(read_run(sweep))[0].sentences,
        "Peak memory against GPU 0's share", "Throughput against GPU 0's share",
        "0 · 86 · 85 · 85", "12.00 · 25.20 · 25.00 · 25.00", "15.6 %", "auto took gpu0_bsz 49", "predicted by auto",
        "dp (loss on replica): fullest device",
    ):  # fmt: skip
        assert words in text


def test_a_sweep_without_device_memory_says_so(tmp_path: Path) -> None:
    folder = sweep_run(tmp_path, "cpu")
    text = text_of(page_of(folder))
    (summary,) = balance_summaries(read_run(folder))
    assert summary.sentences and all(sentence in text for sentence in summary.sentences)
    assert (
        "Peak memory against" not in text
        and "balanced_dp and dp are host replicas (emulated), only ddp is real" in text
    )


def test_a_cpu_run_shows_the_use_of_its_processes(tmp_path: Path) -> None:
    text = text_of(page_of(cpu_run(tmp_path)))
    assert "CPU use over time" in text and "100 % is one core" in text and "Utilization over time" not in text
    assert "Devices without a line: 1 (shares one process with the first device)" in text
    assert "Memory of the worker processes" in text and "Memory by device" not in text
    assert "--sweeps load_balance measures one" in text
    assert "% full" not in text


def test_devices_that_differ_are_listed_and_a_missing_figure_is_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [(made_case("ddp", 2, 64), [100.0], [40.0, 20.0])], watch=True)
    data = read_run(folder)
    # 44 of 80 GiB are 55 %, 22 of 24 are 92 %: the smaller device is the fuller one
    sizes = (80 * 2**30, 24 * 2**30)
    devices = tuple(Device(index=index, name="GPU", memory_bytes=size) for index, size in enumerate(sizes))
    text = text_of(render_page(replace(data, run=replace(data.run, devices=devices)), read_timeline(folder)))
    assert "92 % full" in text
    assert "The devices differ: they have 80.00 (device 0), 24.00 (device 1) GiB." in text
    devices = (devices[0], replace(devices[1], memory_bytes=None))
    text = text_of(render_page(replace(data, run=replace(data.run, devices=devices)), read_timeline(folder)))
    assert "How much memory the devices have is not known." in text and "% full ·" not in text


def test_a_launch_without_a_measured_moment_gets_a_line_and_no_panel(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    for position, status in enumerate(("ok", "error")):
        launch = made_launch(made_case("ddp", 2, 64 * (position + 1)), 0, position, status=status)
        rows = [replace(row, measured=row.measured and status == "ok") for row in timeline(launch, seconds=2.0)]
        writer.add(launch, timed(launch, 100.0) if status == "ok" else [], rows)
    page = page_of(writer.folder)
    assert page.count('aria-label="resnet50: Utilization over time') == 1
    why = "Without a panel, as no reading fell into a measured round: ddp, batch 128: error."
    assert text_of(page).count(why) == 2, "utilization and power"


def test_without_a_timeline_a_line_says_how_to_get_one(sweep: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sweep, tmp_path / "older"))
    (folder / "timeline.parquet").unlink()
    text = text_of(page_of(folder))
    assert "Utilization over time is not shown: no launch was watched. Measure again" in text
    assert "Memory by device" in text


def test_a_gauge_that_no_device_has_is_not_drawn(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    launch = made_launch(made_case("ddp", 2, 64), 0, 0)
    rows = [replace(row, utilization_percent=None) for row in timeline(launch, seconds=1.0)]
    writer.add(launch, timed(launch, 100.0), rows)
    text = text_of(page_of(writer.folder))
    assert "Utilization over time is not shown: no device gave utilization_percent" in text
    assert "Power over time is not shown" not in text


def test_a_damaged_timeline_is_named_on_the_page(sweep: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sweep, tmp_path / "damaged"))
    (folder / "timeline.parquet").write_bytes(b"x")
    text = text_of(page_of(folder))
    assert "timeline.parquet: set aside, not a readable parquet file" in text


def test_the_page_is_bounded_whatever_was_watched(tmp_path: Path) -> None:
    cases = [made_case("ddp", 2, 8 * (index + 1)) for index in range(MOST_PANELS + 3)]
    plan = [(case, [100.0], [1.0, 1.0]) for case in cases]
    page = page_of(write_run(tmp_path / "many", plan, watch=True))
    assert page.count('aria-label="resnet50: Utilization over time') == MOST_PANELS
    text = text_of(page)
    assert f"The first {MOST_PANELS} of {len(cases)} cases" in text
    sizes = []
    for period in (0.05, 0.001):
        writer = RunWriter(tmp_path, made_run(run_id=f"p{period}"), METRICS)
        launch = made_launch(cases[0], 0, 0)
        writer.add(launch, timed(launch, 100.0), timeline(launch, period=period))
        page = render_page(replace(read_run(writer.folder), run=made_run()), read_timeline(writer.folder))
        sizes.append(len(page))
    assert sizes[1] < 1.05 * sizes[0], "fifty times the readings"
