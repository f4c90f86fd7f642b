"""Whose processes are on a GPU, and when that cannot be said; the worker's own figures."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from bench.watching.gpu import PENDING
from bench.watching.processes import (
    ENDED,
    ProcFiles,
    PsutilFigures,
    WorkerProcess,
    other_processes,
    other_processes_memory,
)
from tests.measuring.support import await_true
from tests.watching.made_up import UNKNOWN, Clock, MadeUp, entry, error, gpu_of

OWN = (10, 11)
COMPUTE, GRAPHICS = "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"


def both(**lists: Any) -> tuple[Any, Any]:
    gpu = gpu_of(
        MadeUp({{"compute": COMPUTE, "graphics": GRAPHICS, "older": COMPUTE + "_v2"}[k]: v for k, v in lists.items()}),
        own_pids=OWN,
    )
    return other_processes(gpu), other_processes_memory(gpu)


def test_own_workers_are_left_out_and_a_process_in_both_lists_counts_once() -> None:
    count, memory = both(compute=[entry(10, 500), entry(77, 30)], graphics=[entry(77, 30), entry(78, 4)])
    assert (count.value, memory.value) == (2, 34)
    assert (count.reason, memory.reason) == (None, None)


def test_nobody_else_is_0_where_the_list_holds_our_own() -> None:
    count, memory = both(compute=[entry(11, 500)], graphics=[])
    assert (count.value, memory.value) == (0, 0)


@pytest.mark.parametrize(
    "listed",
    [
        [],  # a container without a view of the host
        [None],
        [SimpleNamespace(pid=None, usedGpuMemory=5)],
        [entry(4711, 500)],  # our memory under a number of another namespace
    ],
)
def test_a_list_that_cannot_be_trusted_is_no_0(listed: list[Any]) -> None:
    for answer in both(compute=listed, graphics=[]):
        assert answer.value is None and str(answer.reason).startswith("attribution unavailable")
        assert answer.expected  # nothing has failed: it is no problem of the watcher's


def test_memory_that_is_not_told_is_left_out_with_a_doubt() -> None:
    count, memory = both(compute=[entry(10, 500), entry(77, None), entry(78, 6)])
    assert (count.value, memory.value) == (2, 6)
    assert "1 of 2" in str(memory.reason)


def test_memory_of_which_none_is_told_is_unknown() -> None:
    count, memory = both(compute=[entry(10, None), entry(77, None)])
    assert count.value == 1
    assert memory.value is None and "1 of 1" in str(memory.reason)


def test_driver_that_knows_only_the_older_query() -> None:
    lacks = pynvml.NVMLLibraryMismatchError("Unversioned function called")
    count, _ = both(compute=lacks, older=[entry(10, 1), entry(77, 2)])
    assert count.value == 1


def test_refusal_of_both_lists_is_a_failure_with_its_reason() -> None:
    count, memory = both(compute=error(UNKNOWN), graphics=error(UNKNOWN))
    assert count.value is None and memory.value is None
    assert not count.expected and count.reason


def test_cpu_percent_is_cpu_time_over_wall_time_since_the_last_reading() -> None:
    clock = Clock()
    process = WorkerProcess(os.getpid(), clock)
    assert process.cpu_percent() == PENDING
    before = os.times()
    while os.times().user + os.times().system < before.user + before.system + 0.05:
        pass
    clock.now += 0.01
    assert process.cpu_percent() == PENDING  # too short for ticks of 10 ms
    clock.now += 9.99
    value = process.cpu_percent().value
    assert 0.4 < value < 5.0  # 0.05 s or a little more in made-up 10 s


def test_resident_memory_grows_with_what_is_held() -> None:
    process = WorkerProcess(os.getpid())
    before = process.rss_bytes().value
    held = bytearray(os.urandom(1 << 20) * 32)
    assert process.rss_bytes().value - before > 0.9 * len(held)


def test_process_that_has_ended_is_no_failure() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    read, never_read = WorkerProcess(child.pid), WorkerProcess(child.pid)
    assert read.rss_bytes().value > 0
    child.kill()
    assert await_true(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, seconds=10)
    assert (read.cpu_percent(), read.rss_bytes()) == (ENDED, ENDED)  # nobody has asked for its end yet
    child.communicate()
    for process in (read, never_read):
        assert (process.cpu_percent(), process.rss_bytes()) == (ENDED, ENDED)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's files are Linux's")
def test_the_kernels_files_and_psutil_say_the_same() -> None:
    with subprocess.Popen([sys.executable, "-c", "sum(range(10**7)); input()"], stdin=subprocess.PIPE) as child:
        psutils, kernels = PsutilFigures(child.pid), ProcFiles(child.pid)
        assert await_true(lambda: psutil.Process(child.pid).status() == psutil.STATUS_SLEEPING, seconds=20)
        assert kernels.cpu_seconds() == pytest.approx(psutils.cpu_seconds(), abs=0.011) and kernels.cpu_seconds() > 0
        assert kernels.rss_bytes() == psutils.rss_bytes()
        kernels.close()
        child.kill()
