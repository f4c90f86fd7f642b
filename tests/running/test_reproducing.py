"""A recorded run measured again: what is said before and after, what is refused, and one real run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.__main__ import main
from bench.host import cpu_cores
from bench.measuring.host_memory import allocator_text
from bench.measuring.machine import cpu_machine
from bench.recording.reader import read_run
from bench.running.machinery import describe_machine
from bench.running.reproducing import _after
from bench.schema import Device, Launch, Run
from tests.measuring.support import await_true
from tests.recording.made_up import made_case, made_run, write_run

ROOT = Path(__file__).resolve().parents[2]
ASKED = ("scenarios", "-k", "not parity", "--device-type=cpu", "--devices=0,", "--launches=2", "--seed=7")
CASE: dict[str, Any] = {"device_type": "cpu", "workload": "mnist_cnn", "size": "quick", "precision": "fp32"}
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA devices")


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def recorded(results: Path, run: Run, *, batches: Sequence[int] = (64,)) -> Path:
    plan = [(made_case("single", 1, batch, **CASE), [900.0, 910.0], [0.4]) for batch in batches]
    return write_run(results, plan, run=run)


def run_here(**changes: Any) -> Run:
    """A run on one core of this very machine."""
    run = describe_machine(cpu_machine(), (0,), run_id="first", preset="quick", seed=7)
    return replace(run, **({"arguments": ASKED} | changes))


def said(capsys: pytest.CaptureFixture[str], results: Path, *more: str, status: int = 0) -> str:
    """What `reproduce --print-only` says of the newest run: on stdout, or on stderr where it refuses."""
    assert main(["reproduce", "latest", "--results", str(results), "--print-only", *more]) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def test_same_machine_gets_the_same_arguments_and_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, run_here(planned_launches=3))
    # The checkout of whoever runs this test may have uncommitted changes.
    lines = [line for line in said(capsys, tmp_path).splitlines() if "uncommitted" not in line]
    assert lines[0].startswith("first: measured ") and lines[0].endswith(f"1 x {cpu_machine().devices[0].name}")
    assert lines[1:5] == [
        "Nothing differs in this environment.",
        "Cases: 1, timed launches: 2, parity checks: 0",
        "The run ended after 2 of 3 launches; here all are measured.",
        "The same again:",
    ]
    start, _, place = lines[5].partition(" --run-id ")
    words = "scenarios -k 'not parity' --device-type=cpu --devices=0, --launches=2 --seed=7"
    assert start == f"python -m pytest {words}"
    assert place.endswith(f"--results {tmp_path} --reports reports") and not (tmp_path / place.split()[0]).exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CPU workers have a --memory-limit on Linux only")
def test_a_memory_limit_is_no_difference_as_it_is_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allocator = allocator_text("cpu", limited=True)
    asked = (*ASKED, "--memory-limit=64MiB")
    recorded(tmp_path, run_here(arguments=asked, memory_limit_bytes=64 * 2**20, host_allocator=allocator))
    text = said(capsys, tmp_path)
    assert "memory limit:" not in text and "allocator:" not in text and " --memory-limit=64MiB " in text


def test_elsewhere_scenarios_are_named_from_the_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, run_here())
    monkeypatch.chdir(tmp_path)
    assert f"python -m pytest {ROOT / 'scenarios'} -k" in said(capsys, tmp_path)


def test_other_environment_is_told_with_the_commit_and_what_makes_it_not_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(
        device_type="cpu", devices=(Device(index=0, name="Some CPU"),), cpu_cores=10_000, arguments=ASKED,
        preset="quick", seed=7, git_commit="a" * 40, git_dirty=True,
    )  # fmt: skip
    recorded(tmp_path, run)
    text = said(capsys, tmp_path)
    assert "This environment differs (the run -> here):\n  devices: 1 x Some CPU -> 1 x " in text
    assert f"  cores: 10000 -> {cpu_cores()}\n" in text
    assert "not be comparable: 1 x Some CPU against 1 x" in text and f"; cores 10000 against {cpu_cores()}; " in text
    assert f"For the same code: git checkout {'a' * 40}\n" in text
    assert "had uncommitted changes" in text


def test_more_devices_than_are_here_are_refused_with_both_numbers_and_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, run_here(arguments=("scenarios", "--devices=0,9999", "--seed=7")))
    text = said(capsys, tmp_path, status=2)
    assert "first used CPU cores 0,9999" in text and f"this machine has {cpu_cores()}, counted from 0" in text
    assert "on one with at least 10000" in text
    fewer = ",".join(map(str, range(cpu_cores())))
    assert f"python -m pytest scenarios --device-type=auto --devices={fewer}" in text


@NO_GPU
def test_gpus_that_are_not_here_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, made_run(arguments=("scenarios", "--device-type=cuda", "--devices=0,1,2,3", "--seed=0")))
    text = said(capsys, tmp_path, status=2)
    assert "used 4 x NVIDIA H200, but this machine has no GPU that torch can use" in text
    assert "with at least 4" in text and "python -m bench doctor" in text


def test_own_model_has_to_be_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "results", run_here(arguments=(*ASKED, "--workload=gone.py:Model")))
    assert f"first needs gone.py, which is not in {ROOT}; put there what" in said(
        capsys, tmp_path / "results", status=2
    )
    own = tmp_path / "own.py"
    own.write_text("")
    recorded(tmp_path / "other", run_here(arguments=(*ASKED, f"--workload={own}:Model")))
    assert f"they must be what the run used: {own}:Model\n" in said(capsys, tmp_path / "other")


def test_what_this_suite_does_not_know_is_refused_and_never_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_here(arguments=(*ASKED, "--from-the-future=1"), dpbench_version="9.9", git_commit="c" * 40)
    recorded(tmp_path, run)
    text = said(capsys, tmp_path, status=2)
    assert "with --from-the-future=1, which" in text and f"dpbench 9.9, git checkout {'c' * 40}" in text


def test_older_run_is_taken_from_what_was_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = "pytest scenarios --results elsewhere --run-id=x -k 'not parity' --benchmark-json out.json --launches 2"
    recorded(tmp_path, run_here(arguments=(), command_line=typed))
    text = said(capsys, tmp_path)
    assert "first is older than the column of its arguments: this is taken from what was typed" in text
    assert "left out, as they are no options of the suite: --benchmark-json out.json" in text
    words = "scenarios -k 'not parity' --preset=quick --device-type=cpu --devices=0, --launches=2 --seed=7 --run-id"
    assert f"python -m pytest {words}" in text


def test_run_without_its_table_cannot_be_asked_for_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recorded(tmp_path, run_here()) / "run.parquet").unlink()
    text = said(capsys, tmp_path, status=2)
    assert "what first was asked for is unknown" in text and "run.parquet: missing" in text


def test_cases_that_are_missing_or_new_are_named(tmp_path: Path) -> None:
    before = read_run(recorded(tmp_path, run_here(), batches=(64, 128)))
    recorded(tmp_path, run_here(run_id="second"), batches=(64, 32))
    assert list(_after(before, tmp_path, "second", 0)) == [
        "Missing here, of 2 cases of the run and 2 here: mnist_cnn-single-1x-b128-fp32",
        "New here, of 2 cases of the run and 2 here: mnist_cnn-single-1x-b32-fp32",
        f"To compare: python -m bench compare first second --results {tmp_path}",
    ]
    assert list(_after(before, tmp_path, "third", 4)) == ["Nothing was measured: pytest ended with status 4."]


def in_order(folder: Path) -> list[tuple[int, str, int, str]]:
    def place(launch: Launch) -> tuple[int, str, int, str]:
        return launch.position, launch.case_id, launch.launch, launch.status

    return [place(launch) for launch in read_run(folder).launches]


def test_reproduced_run_has_the_same_launches_in_the_same_order(tmp_path: Path) -> None:
    """Typed in another folder than the checkout, and asked for again in the checkout."""
    results, reports = tmp_path / "results", tmp_path / "reports"
    places = ["--results", str(results), "--reports", str(reports)]
    chosen = ["--device-type", "cpu", "--workloads", "mnist_cnn", "--strategies", "single,ddp", "--launches", "1"]
    first = [sys.executable, "-m", "pytest", str(ROOT / "scenarios"), *chosen, "--rounds", "1", "--seed", "5"]
    subprocess.run([*first, "--run-id", "first", *places], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    again = [sys.executable, "-m", "bench", "reproduce", "first", *places]
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing differs in this environment." in done.stdout and "The same cases were measured (2)." in done.stdout
    (second,) = [path for path in results.iterdir() if path.name != "first"]
    assert in_order(second) == in_order(results / "first")
    assert len(in_order(second)) == 4
    runs = [read_run(folder).run for folder in (results / "first", second)]
    assert runs[0].arguments == runs[1].arguments and runs[0].arguments[0] == "scenarios"
    assert "--seed=5" in runs[0].arguments and "--devices=" + ("0,1" if cpu_cores() > 1 else "0,0") in runs[0].arguments


COUNTING = """
import signal, sys, time
got = []
signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
print("ready", flush=True)
end = time.monotonic() + 20
while not got and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.3)
print(len(got), "signals", flush=True)
sys.exit(7)
"""


def test_signal_is_passed_on_once_and_the_commands_status_comes_back(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal: to everything in the process group."""
    tmp_path.joinpath("counting.py").write_text(COUNTING)
    code = (
        f"import sys; from bench.running.reproducing import _call; sys.exit(_call([{sys.executable!r}, 'counting.py']))"
    )
    output = tmp_path / "output"
    with output.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=stream,
            start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
    try:
        assert await_true(lambda: "ready" in output.read_text(), seconds=60)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 7
    finally:
        process.kill()
    assert "1 signals" in output.read_text()


def test_command_that_a_signal_ends_has_its_status() -> None:
    code = "import sys; from bench.running.reproducing import _call; sys.exit(_call(['sh', '-c', 'kill -TERM $$']))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 128 + signal.SIGTERM
