"""Devices that are lost while watched, and a watcher that dies, hangs, or outlives its driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.nvml_stub import ROOT, StubGpu, calls, run_python, stub_environment, write_script
from tests.troubles.conftest import StartWatcher
from tests.troubles.support import (
    alive,
    asked,
    assert_absent,
    assert_others_read,
    metric,
    reasons,
    values,
    wait_for,
    watched,
)

UNINITIALIZED, LOST = 1, 15
DRIVER = """
import os, sys, time
from bench.schema import Device
from bench.watching.watcher import Watcher
watcher = Watcher([Device(index=0, name="NVIDIA H100", uuid="GPU-0", capability="9.0")])
watcher.watch([0], [os.getpid()], started=time.perf_counter())
watcher.begin()
print(watcher.pid, flush=True)
"""


def test_lost_device_stops_alone_and_is_said(start_watcher: StartWatcher, tmp_path: Path) -> None:
    gpus = [StubGpu(uuid="GPU-0", lost_after=60), StubGpu(uuid="GPU-1")]
    watcher = start_watcher(gpus)

    def lost_a_while_ago() -> bool:
        log = calls(tmp_path)
        first = next((place for place, call in enumerate(log) if call[3] == LOST), None)
        return first is not None and sum(1 for call in log[first:] if call[1:3] == ("1", "nvmlDeviceGetPowerUsage")) > 3

    found = watched(watcher, (0, 1), until=lost_a_while_ago)
    assert_others_read(found, 1)
    assert values(found, 0, "power_watts")  # from before
    assert "lost" in reasons(found.moments, 0)["power_watts"]
    assert reasons(found.moments, 1).get("power_watts") is None
    assert len(values(found, 1, "power_watts")) > len(values(found, 0, "power_watts"))
    assert any("lost" in problem for problem in found.problems), found.problems
    again = watched(watcher, (0, 1))  # the next launch
    assert_absent(again, 0, "power_watts", "lost")
    assert_others_read(again, 1)


def test_device_lost_from_the_start_has_rows_that_say_so(start_watcher: StartWatcher) -> None:
    found = watched(start_watcher([StubGpu(uuid="GPU-0", lost_after=0), StubGpu(uuid="GPU-1")]), (0, 1))
    assert_absent(found, 0, "memory_used_bytes", "lost")
    assert_others_read(found, 1)
    lost, other = metric("power_watts", found, (0, 1))
    assert lost.value is None and lost.note and "lost" in lost.note and other.value == 300.0


def test_watcher_that_dies_is_said_and_replaced(start_watcher: StartWatcher, tmp_path: Path) -> None:
    healthy = StubGpu(uuid="GPU-0")
    watcher = start_watcher([StubGpu(uuid="GPU-0", answers={"nvmlDeviceGetPowerUsage": "1000 then crash"})])
    found = watched(watcher, (0,))
    assert any("watcher" in problem and str(-signal.SIGABRT) in problem for problem in found.problems), found.problems
    write_script(tmp_path, [healthy])
    again = watched(watcher, (0,))
    assert again.problems == ()
    assert_others_read(again, 0)


def test_watcher_that_was_killed_between_launches_is_replaced(start_watcher: StartWatcher) -> None:
    watcher = start_watcher([StubGpu(uuid="GPU-0")])
    watched(watcher, (0,))
    first = watcher.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not alive(first))
    assert_others_read(watched(watcher, (0,)), 0)
    assert watcher.pid != first


def test_query_that_never_returns_does_not_hold_the_launch(start_watcher: StartWatcher, tmp_path: Path) -> None:
    stuck = StubGpu(uuid="GPU-0", answers={"nvmlDeviceGetPowerUsage": "1000 then sleep 600 1000"})
    watcher = start_watcher([stuck, StubGpu(uuid="GPU-1")])
    watcher.watch((0, 1), [os.getpid()] * 2, started=time.perf_counter())
    watcher.begin()
    wait_for(lambda: asked(tmp_path, "nvmlDeviceGetPowerUsage", "1") > 2)
    watcher.finish()
    found = watcher.stop()
    assert found.problems
    process = watcher.pid
    write_script(tmp_path, [StubGpu(uuid="GPU-0"), StubGpu(uuid="GPU-1")])
    again = watched(watcher, (0, 1))  # a process that does not hang
    assert watcher.pid != process or process is None
    assert_others_read(again, 0)
    assert_others_read(again, 1)


def test_library_that_never_starts_does_not_hold_the_launch(start_watcher: StartWatcher) -> None:
    found = watched(start_watcher([StubGpu(uuid="GPU-0")], system={"nvmlInitWithFlags": "sleep 600"}), (0,))
    assert any("device 0" in problem for problem in found.problems), found.problems


def test_worker_that_has_ended_takes_its_own_figures_with_it_only(start_watcher: StartWatcher) -> None:
    watcher = start_watcher([StubGpu(uuid="GPU-0")])
    watcher.watch((0,), [3_999_999_999], started=time.perf_counter())  # no process has this number
    watcher.begin()
    watcher.finish()
    found = watcher.stop()
    assert_absent(found, 0, "host_rss_bytes", "ended")
    assert_others_read(found, 0)


@pytest.mark.parametrize("end", ["time.sleep(60)", "raise RuntimeError('a bug')", "os._exit(3)"])
def test_watcher_ends_with_its_driver_however_that_ends(tmp_path: Path, end: str) -> None:
    environment = stub_environment(tmp_path, [StubGpu(uuid="GPU-0")])
    command, pipe = [sys.executable, "-c", f"{DRIVER}\n{end}"], subprocess.PIPE
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as driver:
        assert driver.stdout is not None
        watcher = int(driver.stdout.readline())
        if "sleep" in end:
            driver.kill()
        driver.wait(30)
    wait_for(lambda: not alive(watcher))


def test_closed_watcher_leaves_no_process(start_watcher: StartWatcher) -> None:
    watcher = start_watcher([StubGpu(uuid="GPU-0")])
    watched(watcher, (0,))
    pid = watcher.pid
    assert pid is not None and alive(pid)
    watcher.close()
    assert not alive(pid) and watcher.pid is None


def test_nvml_is_open_in_the_watcher_only(tmp_path: Path) -> None:
    # NVML's state does not survive a fork, so nobody who forks may hold it.
    whole = f"{DRIVER}\nwatcher.finish()\nwatcher.stop()\nwatcher.close()"
    watcher = int(run_python(whole, stub_environment(tmp_path, [StubGpu(uuid="GPU-0")])))
    assert {pid for pid, *_ in calls(tmp_path)} == {watcher}
    assert asked(tmp_path, "nvmlDeviceGetPowerUsage") >= 2
    assert [call for call in calls(tmp_path) if call[3] == UNINITIALIZED] == []
