"""Who uses a GPU: in containers NVML lists nobody, or processes without a figure."""

from __future__ import annotations

import os

import pytest

from tests.nvml_stub import GIB, MIB, PROCESS_KINDS, StubGpu
from tests.troubles.conftest import StartWatcher
from tests.troubles.support import assert_others_read, metric, reasons, values, watched

STRANGER = 3_999_999_999  # beyond every process id of Linux


def listing(compute: str, graphics: str = "none") -> StubGpu:
    answers = {
        f"nvmlDeviceGet{kind}RunningProcesses_{version}": graphics if kind == "Graphics" else compute
        for kind in PROCESS_KINDS
        for version in ("v2", "v3")
        if kind != "MPSCompute"
    }
    return StubGpu(uuid="GPU-0", used_bytes=6 * GIB, answers=answers)


def test_processes_of_the_launch_are_not_others(start_watcher: StartWatcher) -> None:
    found = watched(start_watcher([listing(f"{os.getpid()}:{4 * GIB}")]), (0,))
    assert set(values(found, 0, "other_processes")) == {0}


def test_others_are_counted_with_their_memory_whether_they_compute_or_draw(start_watcher: StartWatcher) -> None:
    gpu = listing(f"{os.getpid()}:{4 * GIB} {STRANGER}:{300 * MIB}", graphics=f"{STRANGER - 1}:{200 * MIB}")
    found = watched(start_watcher([gpu]), (0,))
    assert set(values(found, 0, "other_processes")) == {2}
    assert set(values(found, 0, "other_processes_memory_bytes")) == {500 * MIB}
    assert [value.value for value in metric("other_processes", found, (0,))] == [2]


def test_process_in_two_lists_is_one_process(start_watcher: StartWatcher) -> None:
    gpu = listing(f"{os.getpid()}:1 {STRANGER}:{300 * MIB}", graphics=f"{STRANGER}:{300 * MIB}")
    found = watched(start_watcher([gpu]), (0,))
    assert set(values(found, 0, "other_processes")) == {1}
    assert set(values(found, 0, "other_processes_memory_bytes")) == {300 * MIB}


def test_memory_that_is_not_told_is_not_0(start_watcher: StartWatcher) -> None:
    found = watched(start_watcher([listing(f"{os.getpid()}:? {STRANGER}:?")]), (0,))
    assert set(values(found, 0, "other_processes")) == {1}
    assert values(found, 0, "other_processes_memory_bytes") == []
    assert reasons(found.moments, 0)["other_processes_memory_bytes"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("none", "attribution unavailable"),
        (f"{STRANGER}:1", "attribution unavailable"),  # the launch under a number of the host's
        ("error NOT_SUPPORTED", "not supported"),
        ("error UNKNOWN", "Unknown"),
        ("error NO_PERMISSION", "not permitted"),
    ],
)
def test_without_a_list_the_figures_of_the_device_stay_and_attribution_is_unavailable(
    start_watcher: StartWatcher, answer: str, why: str
) -> None:
    # The launch itself uses the GPU, so an empty list means that NVML cannot see it.
    found = watched(start_watcher([listing(answer, graphics=answer)]), (0,))
    assert set(values(found, 0, "memory_used_bytes")) == {6 * GIB}
    assert_others_read(found, 0, "other_processes")
    assert values(found, 0, "other_processes") == []
    assert why in reasons(found.moments, 0)["other_processes"]
    (value,) = metric("other_processes", found, (0,))
    assert value.value is None and value.note and why in value.note


def test_driver_without_the_newest_list_is_no_error(start_watcher: StartWatcher) -> None:
    missing = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in PROCESS_KINDS]
    found = watched(start_watcher([listing(f"{os.getpid()}:1 {STRANGER}:1")], missing=missing), (0,))
    assert_others_read(found, 0, "other_processes")
    assert values(found, 0, "other_processes") or reasons(found.moments, 0)["other_processes"]
