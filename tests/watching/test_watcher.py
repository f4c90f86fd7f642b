"""The watcher's process, from the driver's end: its life, its death, and what a device at two positions gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.schema import Device
from bench.watching.watcher import ROOT, Watched, Watcher
from tests.measuring.support import await_true, is_gone
from tests.nvml_stub import StubGpu, calls, stub_environment

CPUS = [Device(index=index, name="a CPU") for index in range(3)]


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    made = Watcher(CPUS)
    yield made
    made.close()


def watch(watcher: Watcher, ordinals: tuple[int, ...] = (0,), pids: tuple[int, ...] | None = None) -> float:
    started = time.perf_counter()
    watcher.watch(ordinals, pids or (os.getpid(),) * len(ordinals), started=started)
    return started


def test_readings_lie_between_start_and_stop_on_the_drivers_clock(watcher: Watcher) -> None:
    started = watch(watcher)
    watcher.begin()
    watcher.finish()
    watched = watcher.stop()
    assert watched.problems == ()
    assert [moment.measured for moment in watched.moments][:3] == [False, True, True]
    elapsed = [moment.elapsed_seconds for moment in watched.moments]
    assert min(elapsed) > 0 and max(elapsed) < time.perf_counter() - started and elapsed == sorted(elapsed)
    assert all(moment.host_rss_bytes and moment.unavailable == () for moment in watched.moments)


def test_one_process_serves_launch_after_launch(watcher: Watcher) -> None:
    watch(watcher)
    pid = watcher.pid
    assert watcher.stop().moments
    watch(watcher)
    assert watcher.pid == pid
    again = watcher.stop()
    assert again.moments and again.problems == ()


def test_positions_of_one_process_have_its_figures_once(watcher: Watcher) -> None:
    watch(watcher, (0, 1))
    moments = watcher.stop().moments
    first, second = ([moment for moment in moments if moment.device_index == place] for place in (0, 1))
    assert first[0].host_rss_bytes is not None and first[0].unavailable == ()
    assert second[0].host_rss_bytes is None
    reasons = {item.name: item.value for item in second[0].unavailable}
    assert reasons.keys() == {"cpu_percent", "host_rss_bytes"} and "position 0" in reasons["host_rss_bytes"]


def test_a_watcher_that_was_killed_is_told_and_the_next_launch_has_a_new_one(watcher: Watcher) -> None:
    watch(watcher)
    pid = watcher.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert await_true(lambda: is_gone(pid), seconds=10)
    watcher.begin()
    watched = watcher.stop()
    assert watched.moments == ()
    (problem,) = watched.problems
    assert "status -9" in problem and "lost" in problem
    watch(watcher)
    assert watcher.pid not in (None, pid)
    again = watcher.stop()
    assert again.moments and again.problems == ()


def test_a_watcher_that_cannot_start_says_what_it_said_last(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    watch(watcher)
    watched = watcher.stop()
    assert watched.moments == () and "the watcher ended with status" in watched.problems[0]
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    watch(watcher)
    assert "could not be started" in watcher.stop().problems[0]


def test_a_watcher_that_does_not_answer_is_ended(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.watching.watcher.ANSWER_SECONDS", 0.2)
    watch(watcher)
    pid = watcher.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    watched = watcher.stop()
    assert watched.moments == () and "no answer within 0.2 s" in watched.problems[0]
    assert is_gone(pid) and watcher.pid is None


def test_close_ends_the_process_and_without_a_launch_there_is_nothing_to_stop(watcher: Watcher) -> None:
    assert watcher.stop() == Watched() and watcher.pid is None
    watch(watcher)
    pid = watcher.pid
    assert pid is not None
    watcher.close()
    assert is_gone(pid) and watcher.pid is None
    watcher.close()


DRIVER = """
import os, time
from bench.schema import Device
from bench.watching.watcher import Watcher
watcher = Watcher([Device(index=0, name="a CPU")])
watcher.watch([0], [os.getpid()], started=time.perf_counter())
print(watcher.pid, flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_watcher_ends_with_its_driver(how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True, cwd=ROOT) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        assert not is_gone(pid)
        driver.send_signal(how)
        driver.wait()
    assert await_true(lambda: is_gone(pid), seconds=10)


def test_ctrl_c_in_the_terminal_does_not_reach_the_watcher(watcher: Watcher) -> None:
    watch(watcher)
    pid = watcher.pid
    assert pid is not None
    assert os.getpgid(pid) != os.getpgid(0)
    assert watcher.stop().problems == ()  # it runs, so that the signal below meets its own handler
    os.kill(pid, signal.SIGINT)
    watch(watcher)
    assert watcher.pid == pid and watcher.stop().moments


def test_the_process_is_light(watcher: Watcher) -> None:
    watch(watcher)
    watcher.stop()
    maps = {Path(found.path).name for found in psutil.Process(watcher.pid).memory_maps()}
    assert not [name for name in maps if "torch" in name or "arrow" in name or "numpy" in name]


def gpu(index: int, uuid: str | None) -> Device:
    return Device(index=index, name="a GPU", uuid=uuid, capability="9.0")


def test_gpus_are_read_by_uuid_and_one_that_hangs_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's order is the reverse of NVML's; the real binding talks to a stub of the library."""
    in_nvml = [
        StubGpu(uuid="GPU-a", used_bytes=111),
        StubGpu(uuid="GPU-b", used_bytes=222),
        StubGpu(uuid="GPU-c", answers={"nvmlDeviceGetPowerUsage": "sleep 30 1"}),
    ]
    for name, value in stub_environment(tmp_path, in_nvml).items():
        monkeypatch.setenv(name, value)
    watcher = Watcher([gpu(0, "GPU-b"), gpu(1, "GPU-a"), gpu(2, "GPU-c"), gpu(3, None)])
    watch(watcher, (0, 1, 0, 2, 3))
    pid = watcher.pid
    assert pid is not None
    assert await_true(
        lambda: {"0", "1"} <= {who for _, who, name, _ in calls(tmp_path) if "Processes" in name}, seconds=10
    )
    watcher.begin()
    watcher.finish()
    watched = watcher.stop()
    by_place = [[m for m in watched.moments if m.device_index == place] for place in range(5)]
    assert {m.memory_used_bytes for m in by_place[0]} == {222} and {m.memory_used_bytes for m in by_place[1]} == {111}
    again, unnamed = ({n.name: n.value for n in by_place[place][0].unavailable} for place in (2, 4))
    assert "position 0" in again["memory_used_bytes"] and by_place[2][0].memory_used_bytes is None
    assert "no UUID" in unnamed["power_watts"]
    assert by_place[3] == [] and any("device 3: it has stopped answering" in problem for problem in watched.problems)
    assert watcher.pid is None and is_gone(pid)  # what hangs is ended; the next launch gets a new one
    watcher.close()
