"""Cutting a timeline down to what a chart can show."""

from pathlib import Path

import pandas as pd
import pytest

from bench.analysis.summary import Row, summarise
from bench.analysis.timelines import POINTS, panels, watched_launches
from bench.recording.reader import read_run, read_timeline
from bench.recording.writer import RunWriter
from bench.schema import TimelineRow
from tests.recording.made_up import METRICS, cpu_run, made_case, made_launch, made_run, timed

CASE = made_case("ddp", 2, 64)


def row(launch: int, device: int, seconds: float, value: float | None, measured: bool = False) -> TimelineRow:
    return TimelineRow(run_id="r", case_id=str(CASE), launch=launch, device_index=device, elapsed_seconds=seconds,
                       measured=measured, utilization_percent=value)  # fmt: skip


def watched(results: Path, statuses: list[str], rows: list[list[TimelineRow]]) -> tuple[pd.DataFrame, list[Row]]:
    writer = RunWriter(results, made_run(), METRICS)
    for index, (status, of_launch) in enumerate(zip(statuses, rows, strict=True)):
        launch = made_launch(CASE, index, index, status=status, reason=None if status == "ok" else status)
        writer.add(launch, timed(launch, 100.0) if status == "ok" else [], of_launch)
    (summary,) = summarise(read_run(writer.folder))
    return read_timeline(writer.folder), list(summary.rows)


def test_lines_by_device_and_the_measured_window(tmp_path: Path) -> None:
    rows = [row(0, device, float(time), 10.0 * time + device, 1 <= time <= 2) for time in range(4) for device in (1, 0)]
    rows.append(row(0, 1, 4.0, None))
    frame, cases = watched(tmp_path, ["ok"], [rows])
    (panel,) = panels(watched_launches(frame, cases), cases, "utilization_percent")
    assert (panel.seconds, panel.measured, panel.launch) == (4.0, (1.0, 2.0), 0)
    assert [line.device_index for line in panel.lines] == [0, 1]
    assert panel.lines[1].seconds == (0.0, 1.0, 2.0, 3.0) and panel.lines[1].values == (1.0, 11.0, 21.0, 31.0)
    assert panels(watched_launches(frame, cases), cases, "power_watts") == []


def test_many_readings_become_means_over_equal_spans(tmp_path: Path) -> None:
    # 1200 readings a tenth of a second apart: ten to a span, 0..9 in the first
    rows = [row(0, 0, time / 10, float(time)) for time in range(1200)]
    frame, cases = watched(tmp_path, ["ok"], [rows])
    (panel,) = panels(watched_launches(frame, cases), cases, "utilization_percent")
    (line,) = panel.lines
    assert len(line.values) == POINTS == len(line.seconds)
    assert line.values[0] == pytest.approx(4.5) and line.seconds[0] == pytest.approx(0.45)
    assert line.values[-1] == pytest.approx(1194.5) and panel.measured is None


def test_the_first_launch_that_ended_ok_is_shown_else_the_first(tmp_path: Path) -> None:
    rows = [[row(launch, 0, 0.0, float(launch))] for launch in range(3)]
    frame, cases = watched(tmp_path / "a", ["oom", "ok", "ok"], rows)
    (panel,) = panels(watched_launches(frame, cases), cases, "utilization_percent")
    assert (panel.launch, panel.lines[0].values) == (1, (1.0,))
    frame, cases = watched(tmp_path / "b", ["oom", "timeout", "error"], rows)
    (panel,) = panels(watched_launches(frame, cases), cases, "utilization_percent")
    assert (panel.launch, panel.title) == (0, "ddp: oom")


def test_a_device_without_a_reading_says_why(tmp_path: Path) -> None:
    folder = cpu_run(tmp_path)
    (summary,) = summarise(read_run(folder))
    frame = read_timeline(folder)
    found = {panel.title: panel for panel in panels(watched_launches(frame, summary.rows), summary.rows, "cpu_percent")}
    assert found["dp, 2 devices"].absent == ("shares one process with the first device",)
    assert found["ddp, 2 devices"].absent == () and len(found["ddp, 2 devices"].lines) == 2
    older = frame.assign(unavailable=pd.NA)
    found = {panel.title: panel for panel in panels(watched_launches(older, summary.rows), summary.rows, "cpu_percent")}
    assert found["dp, 2 devices"].absent == ("no reading",)


def test_no_timeline_no_panels(tmp_path: Path) -> None:
    frame, cases = watched(tmp_path, ["ok"], [[]])
    assert watched_launches(frame, cases) == {} and panels({}, cases, "utilization_percent") == []
