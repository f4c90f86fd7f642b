"""Whose figures are shown: CUDA's ordinals and NVML's indices are two different things."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nvml_stub import StubGpu, calls
from tests.troubles.conftest import StartWatcher
from tests.troubles.support import GPU_GAUGES, assert_absent, assert_others_read, cuda_device, metric, values, watched

UUIDS = [f"GPU-{number}1111111-2222-3333-4444-555555555555" for number in range(4)]
GPUS = [
    StubGpu(
        uuid=uuid,
        used_bytes=(number + 1) << 30,
        answers={
            "nvmlDeviceGetUtilizationRates": f"{10 * number + 5} 0",
            "nvmlDeviceGetPowerUsage": str(100_000 * (number + 1)),
        },
    )
    for number, uuid in enumerate(UUIDS)
]


def only(found: list[object]) -> object:
    assert len(set(found)) == 1, found
    return found[0]


@pytest.mark.parametrize(("ordinals", "indices"), [((0, 1), (3, 2)), ((1, 0), (2, 3)), ((1,), (2,))])
def test_figures_are_those_of_the_device_that_cuda_means(
    start_watcher: StartWatcher, tmp_path: Path, ordinals: tuple[int, ...], indices: tuple[int, ...]
) -> None:
    # CUDA_VISIBLE_DEVICES=3,2: ordinal 0 is NVML's device 3, ordinal 1 its device 2.
    devices = [cuda_device(0, UUIDS[3]), cuda_device(1, UUIDS[2])]
    found = watched(start_watcher(GPUS, devices), ordinals)
    for position, index in enumerate(indices):
        assert only(values(found, position, "power_watts")) == 100.0 * (index + 1)
        assert only(values(found, position, "utilization_percent")) == 10 * index + 5
        assert only(values(found, position, "memory_used_bytes")) == (index + 1) << 30
    power = [value.value for value in metric("power_watts", found, ordinals)]
    assert power == [100.0 * (index + 1) for index in indices]
    asked = {who for _, who, function, _ in calls(tmp_path) if function == "nvmlDeviceGetPowerUsage"}
    assert asked == {str(index) for index in indices}  # somebody else's GPUs are left alone


@pytest.mark.parametrize("told", [UUIDS[1], UUIDS[1].removeprefix("GPU-")])
def test_uuid_with_and_without_its_kind_finds_the_device(start_watcher: StartWatcher, told: str) -> None:
    found = watched(start_watcher(GPUS, [cuda_device(0, told)]), (0,))
    assert only(values(found, 0, "power_watts")) == 200.0


@pytest.mark.parametrize("told", ["MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"])
def test_part_of_a_gpu_has_its_own_memory_and_no_utilization(start_watcher: StartWatcher, told: str) -> None:
    refused = {"nvmlDeviceGetUtilizationRates": "error NOT_SUPPORTED", "nvmlDeviceGetPowerUsage": "error NOT_SUPPORTED"}
    part = StubGpu(uuid="MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", used_bytes=3 << 30, answers=refused)
    whole = StubGpu(uuid=UUIDS[0], used_bytes=9 << 30, mig=(StubGpu(uuid="MIG-other"), part))
    found = watched(start_watcher([whole], [cuda_device(0, told)]), (0,))
    assert only(values(found, 0, "memory_used_bytes")) == 3 << 30
    assert_absent(found, 0, "utilization_percent", "not supported")


def test_device_that_nvml_does_not_know_is_null_with_the_reason_and_the_others_go_on(
    start_watcher: StartWatcher,
) -> None:
    devices = [cuda_device(0, "GPU-stranger"), cuda_device(1, None), cuda_device(2, UUIDS[2])]
    found = watched(start_watcher(GPUS, devices), (0, 1, 2))
    for gauge in GPU_GAUGES:
        assert_absent(found, 0, gauge, "")
        assert_absent(found, 1, gauge, "UUID")
    assert_others_read(found, 2)
    unknown, unnamed, known = metric("power_watts", found, (0, 1, 2))
    assert (unknown.value, unnamed.value, known.value) == (None, None, 300.0)
    assert unknown.note and unnamed.note


def test_gpu_that_is_listed_twice_is_read_and_counted_once(start_watcher: StartWatcher) -> None:
    found = watched(start_watcher(GPUS), (1, 1))
    assert only(values(found, 0, "power_watts")) == 200.0
    assert_absent(found, 1, "power_watts", "same device")
    assert [value.value for value in metric("power_watts", found, (1, 1))] == [200.0, None]


@pytest.mark.parametrize("told", ["GPU-locked", "locked"])
def test_handle_that_is_refused_leaves_the_other_devices_alone(start_watcher: StartWatcher, told: str) -> None:
    locked = StubGpu(uuid="GPU-locked", answers={"nvmlDeviceGetHandleByUUID": "error NO_PERMISSION"})
    found = watched(start_watcher([locked, GPUS[1]], [cuda_device(0, told), cuda_device(1, UUIDS[1])]), (0, 1))
    assert_absent(found, 0, "memory_used_bytes", "not permitted")
    assert_others_read(found, 1)
