"""Real runs of the scenarios in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

import bench
from bench.recording.reader import read_run
from tests.measuring.support import await_true

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--device-type", "cpu", "--launches", "1", "--rounds", "2")
MARK = "DPBENCH_TEST_MARK"


@dataclass
class Suite:
    """Runs the scenarios of `root`, and finds every process that a run has started."""

    root: Path
    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        places = ("--results", str(self.results), "--reports", str(self.folder / "reports"))
        command = [sys.executable, "-m", "pytest", "scenarios", *TINY, *places, *arguments]
        self.temporary.mkdir(exist_ok=True)
        environment = os.environ | {MARK: self.mark, "TMPDIR": str(self.temporary)}
        environment.pop("PYTHONPATH", None)
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A shell's background job ignores Ctrl-C, and so would everything that it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit status, and what was printed."""
        process = self.start(*arguments)
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        return process.returncode, output

    def left(self) -> list[psutil.Process]:
        """Processes of any run that are still there."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def check_nothing_is_left(self) -> None:
        assert await_true(lambda: not self.left(), seconds=5), f"left behind: {self.left()}"
        ours = [path for pattern in ("dpbench*", "pymp*") for path in self.temporary.glob(pattern)]
        assert ours == []


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Suite]:
    made = Suite(ROOT, tmp_path)
    yield made
    made.check_nothing_is_left()


def load(results: Path) -> pd.DataFrame:
    loaded: pd.DataFrame = bench.load(str(results))
    return loaded


def test_tiny_run_from_command_to_report(suite: Suite) -> None:
    file = suite.folder / "benchmark.json"
    status, output = suite.run("--workloads", "mnist_cnn", "--strategies", "single,ddp", "--benchmark-json", str(file))
    assert status == 0, output
    assert "[1/4]" in output and "[4/4]" in output and "left)" in output  # progress
    assert "parity_error" in output

    page = Path(output.rpartition("report:")[2].split()[0])
    assert page.is_file() and page.is_relative_to(suite.folder / "reports")

    table = load(suite.results)
    assert sorted(table["strategy"]) == ["ddp", "single"]
    assert set(table["status"]) == {"ok"}
    assert table["parity_error"].between(0, 1e-4).all()

    (folder,) = suite.results.iterdir()
    data = read_run(folder)
    assert {launch.data for launch in data.launches} == {"real"}
    timed = {launch.case_id: launch for launch in data.launches if launch.purpose == "timing"}
    assert {(row.world_size, row.chunk_sizes) for row in timed.values()} == {(1, (128,)), (2, (64, 64))}
    assert all(launch.rounds == 2 and launch.threads_per_worker for launch in timed.values())
    check_benchmark_file(file, data.samples)


def check_benchmark_file(file: Path, samples: pd.DataFrame) -> None:
    """pytest-benchmark holds seconds per step, grouped by workload, and its own tool reads the file."""
    benchmarks: list[dict[str, Any]] = json.loads(file.read_text())["benchmarks"]
    assert {item["group"] for item in benchmarks} == {"mnist_cnn"}
    names = {f"test_training_step[mnist_cnn-{case}-b128-fp32-launch0]" for case in ("single-1x", "ddp-2x")}
    assert {item["name"] for item in benchmarks} == names
    steps = samples[samples["metric"] == "step_seconds"]
    for item in benchmarks:
        measured = steps[steps["case_id"] == item["extra_info"]["case_id"]]["value"]
        assert item["stats"]["rounds"] == len(measured) == 2
        assert item["stats"]["mean"] == pytest.approx(statistics.fmean(measured))
        assert item["stats"]["min"] == pytest.approx(min(measured))
    compare = [sys.executable, "-m", "pytest_benchmark", "compare", str(file)]
    run = subprocess.run(compare, capture_output=True, text=True, cwd=file.parent, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "ddp-2x-b128-fp32-launch0" in run.stdout


BROKEN_WORKLOAD = '''
"""Raises in the worker, where its model is built."""

from bench.workloads.base import register
from bench.workloads.mnist_cnn import MnistCnn


@register
class Broken(MnistCnn):
    name = "broken"

    def build(self):
        raise ValueError("planted in the worker <b>")
'''
UNPREPARED_WORKLOAD = '''
"""Raises in the driver, where its data is prepared."""

from bench.workloads.base import register
from bench.workloads.mnist_cnn import MnistCnn


@register
class Unprepared(MnistCnn):
    name = "unprepared"

    def prepare(self, data, data_root, cache):
        raise ZeroDivisionError("planted in prepare")
'''


@pytest.fixture
def extended(tmp_path: Path) -> Iterator[Suite]:
    """The suite with two more workloads and their scenarios: one file each, and nothing else."""
    root = tmp_path / "suite"
    root.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for source in ("bench", "scenarios"):
        shutil.copytree(ROOT / source, root / source, ignore=ignored)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    scenario = (ROOT / "scenarios" / "test_mnist_cnn.py").read_text()
    for name, text in (("broken", BROKEN_WORKLOAD), ("unprepared", UNPREPARED_WORKLOAD)):
        root.joinpath("bench", "workloads", f"{name}.py").write_text(text)
        root.joinpath("scenarios", f"test_{name}.py").write_text(scenario.replace('"mnist_cnn"', f'"{name}"'))
    made = Suite(root, tmp_path)
    yield made
    made.check_nothing_is_left()


def test_workload_that_raises_is_an_error_and_the_rest_goes_on(extended: Suite) -> None:
    """With --benchmark-disable, which must not keep anything from being measured and recorded."""
    chosen = ("--workloads", "broken,mnist_cnn,unprepared", "--strategies", "single", "-k", "not parity")
    status, output = extended.run(*chosen, "--benchmark-disable")
    assert status == 1, output
    (folder,) = extended.results.iterdir()
    rows = {launch.workload: launch for launch in read_run(folder).launches}
    assert {name: row.status for name, row in rows.items()} == {
        "broken": "error", "mnist_cnn": "ok", "unprepared": "error"
    }  # fmt: skip
    broken, unprepared = rows["broken"], rows["unprepared"]
    assert (broken.reason, broken.rank, broken.phase) == ("ValueError: planted in the worker <b>", 0, "build")
    assert broken.traceback is not None and "in build" in broken.traceback and "broken.py" in broken.traceback
    assert "planted in prepare" in str(unprepared.reason) and "in prepare" in str(unprepared.traceback)
    assert "planted in the worker <b>" in output and "in build" in output  # on the terminal too
    page = Path(output.rpartition("report:")[2].split()[0])
    assert "planted in the worker &lt;b&gt;" in page.read_text()
    assert rows["mnist_cnn"].rounds == 2


def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process(suite: Suite) -> None:
    process = suite.start("--workloads", "mnist_cnn", "--strategies", "ddp", "--launches", "200")
    try:
        assert await_true(lambda: len(list(suite.results.rglob("*.parquet"))) >= 4, seconds=60)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 2, output  # pytest's own: interrupted
    (folder,) = suite.results.iterdir()
    launches = read_run(folder).launches
    assert launches and {launch.status for launch in launches} == {"ok"}
    assert "report:" in output
