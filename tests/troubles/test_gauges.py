"""What a gauge shows when a device answers otherwise than the usual one: null with the reason, never 0."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from bench.metrics import registry
from bench.schema import Moment
from tests.nvml_stub import GIB, StubGpu, calls
from tests.troubles.conftest import StartWatcher
from tests.troubles.support import asked, assert_absent, assert_others_read, metric, reasons, values, watched

GAUGES = {
    "utilization_percent": ("nvmlDeviceGetUtilizationRates",),
    "memory_used_bytes": ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"),
    "power_watts": ("nvmlDeviceGetPowerUsage",),
    "energy_joules": ("nvmlDeviceGetTotalEnergyConsumption",),
    "sm_clock_hertz": ("nvmlDeviceGetClockInfo/1",),
    "memory_clock_hertz": ("nvmlDeviceGetClockInfo/2",),
    "temperature_celsius": ("nvmlDeviceGetTemperature/0", "nvmlDeviceGetTemperatureV/0"),
    "throttle_reasons": ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
}


def gpu(**answers: str | None) -> StubGpu:
    return StubGpu(uuid="GPU-0", answers=answers)


def test_units_are_those_of_the_tables(start_watcher: StartWatcher) -> None:
    found = watched(start_watcher([gpu(nvmlDeviceGetTotalEnergyConsumption="5000000")]), (0,))
    read = {gauge: set(values(found, 0, gauge)) for gauge in GAUGES}
    assert read == {
        "utilization_percent": {60.0},
        "memory_used_bytes": {2 * GIB},
        "power_watts": {300.0},  # told in milliwatts
        "energy_joules": {5000.0},  # in millijoules
        "sm_clock_hertz": {1.7e9},  # in MHz
        "memory_clock_hertz": {2.6e9},
        "temperature_celsius": {55.0},
        "throttle_reasons": {""},
    }
    assert all(not reasons(found.moments, 0).get(gauge) for gauge in GAUGES)


def test_memory_is_that_of_the_second_query_without_the_part_of_the_driver(
    start_watcher: StartWatcher, tmp_path: Path
) -> None:
    # The first query counts the driver's 3 GiB as used.
    found = watched(start_watcher([StubGpu(uuid="GPU-0", used_bytes=2 * GIB, reserved_bytes=3 * GIB)]), (0,))
    assert set(values(found, 0, "memory_used_bytes")) == {2 * GIB}
    assert [value.value for value in metric("device_memory_used_bytes", found, (0,))] == [2 * GIB]
    assert "nvmlDeviceGetMemoryInfo" not in {function for _, _, function, _ in calls(tmp_path)}


def test_driver_without_the_second_memory_query_never_passes_the_first_off_as_it(start_watcher: StartWatcher) -> None:
    watcher = start_watcher([StubGpu(uuid="GPU-0", reserved_bytes=3 * GIB)], missing=["nvmlDeviceGetMemoryInfo_v2"])
    found = watched(watcher, (0,))
    # 2 GiB, and the driver's 3.
    assert set(values(found, 0, "memory_used_bytes")) <= {5 * GIB}
    said = [*found.problems, *(f"{name}: {why}" for name, why in reasons(found.moments, 0).items())]
    assert any("memory_used_bytes" in line and "driver" in line for line in said), said
    assert_others_read(found, 0, "memory_used_bytes")


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "UNKNOWN", "NO_PERMISSION", "NO_DATA"])
def test_gauge_that_is_refused_is_null_with_the_reason_and_the_others_go_on(
    start_watcher: StartWatcher, error: str
) -> None:
    # One device a gauge; each refuses that one.
    gpus = [
        StubGpu(uuid=f"GPU-{gauge}", answers=dict.fromkeys(functions, f"error {error}"))
        for gauge, functions in GAUGES.items()
    ]
    ordinals = tuple(range(len(gpus)))
    found = watched(start_watcher(gpus), ordinals)
    said = {"NOT_SUPPORTED": "not supported", "NO_PERMISSION": "not permitted"}.get(error, "")
    for position, gauge in enumerate(GAUGES):
        assert_absent(found, position, gauge, said)
        assert reasons(found.moments, position)[gauge].strip()
        assert_others_read(found, position, gauge)
    utilization = metric("utilization_percent", found, ordinals)
    assert utilization[0].value is None and utilization[0].note and said in utilization[0].note
    assert [value.value for value in utilization[1:]] == [60.0] * (len(gpus) - 1)


def test_gauge_that_fails_at_times_is_null_at_those_times_only_and_is_counted(
    start_watcher: StartWatcher, tmp_path: Path
) -> None:
    flaky = gpu(nvmlDeviceGetPowerUsage="100000 then error UNKNOWN then 120000")
    found = watched(start_watcher([flaky]), (0,), until=lambda: asked(tmp_path, "nvmlDeviceGetPowerUsage") >= 3)
    read = values(found, 0, "power_watts")
    assert read[:2] == [100.0, 120.0] and set(read) == {100.0, 120.0}
    assert reasons(found.moments, 0)["power_watts"]
    assert any("power" in problem and "1" in problem for problem in found.problems), found.problems


@pytest.mark.parametrize(
    ("gauge", "answer"),
    [
        ("memory_used_bytes", f"{80 * GIB} 0 -1 -1"),  # 2**64 - 1 bytes, which no table can hold
        ("power_watts", "-1"),  # 4 294 967 W
        ("temperature_celsius", "-1"),
        ("utilization_percent", "-1 -1"),
        ("energy_joules", "-1"),
        ("sm_clock_hertz", "-1"),
    ],
)
def test_value_that_cannot_be_is_not_shown(start_watcher: StartWatcher, gauge: str, answer: str) -> None:
    found = watched(start_watcher([StubGpu(uuid="GPU-0", answers=dict.fromkeys(GAUGES[gauge], answer))]), (0,))
    assert_absent(found, 0, gauge, "")
    assert_others_read(found, 0, gauge)


def test_throttle_reasons_come_from_the_old_query_where_the_driver_has_no_new_one(start_watcher: StartWatcher) -> None:
    old = gpu(nvmlDeviceGetCurrentClocksThrottleReasons="0x44")  # software power cap, hardware thermal
    found = watched(start_watcher([old], missing=["nvmlDeviceGetCurrentClocksEventReasons"]), (0,))
    (told,) = set(values(found, 0, "throttle_reasons"))
    assert len(str(told).split("|")) == 2 and "power" in str(told) and "thermal" in str(told)
    (share,) = metric("throttled_percent", found, (0,))
    assert share.value == 100.0


def test_rest_between_kernels_is_not_called_throttling(start_watcher: StartWatcher) -> None:
    found = watched(start_watcher([gpu(nvmlDeviceGetCurrentClocksEventReasons="1")]), (0,))
    assert [value.value for value in metric("throttled_percent", found, (0,))] == [0.0]


def test_short_region_is_marked_too_short(start_watcher: StartWatcher) -> None:
    found = watched(start_watcher([gpu()]), (0,))
    for name in ("utilization_percent", "utilization_p95_percent", "power_watts"):
        (value,) = metric(name, found, (0,))
        assert value.note and "too short" in value.note


def test_longer_region_is_not_marked_and_its_energy_is_that_of_the_counter(
    start_watcher: StartWatcher, tmp_path: Path
) -> None:
    constant = gpu(nvmlDeviceGetTotalEnergyConsumption="0+300000/s")  # 300 W
    # Utilization is read every 0.2 s, at the beginning and at the end: nine readings are more than a second.
    watcher = start_watcher([constant])
    found = watched(watcher, (0,), until=lambda: asked(tmp_path, "nvmlDeviceGetUtilizationRates") >= 9)
    for name in ("utilization_percent", "utilization_p95_percent", "power_watts"):
        (value,) = metric(name, found, (0,))
        assert value.note is None
    device, whole = metric("joules_per_sample", found, (0,))
    assert device.value == whole.value == pytest.approx(37.5, rel=0.1)  # 300 W for 1 s over 8 samples


def test_label_says_what_utilization_means() -> None:
    assert "any kernel" in registry.get("utilization_percent").declaration.meaning
    (column,) = (field for field in fields(Moment) if field.name == "utilization_percent")
    assert "1/6 to 1 s" in column.metadata["meaning"]


def test_gauges_of_newer_cards_are_null_with_the_reason_on_older_ones(start_watcher: StartWatcher) -> None:
    older = gpu(nvmlGpmQueryDeviceSupport="0", nvmlGpmSampleGet="error NOT_SUPPORTED")
    oldest = StubGpu(uuid="GPU-1", answers={"nvmlGpmQueryDeviceSupport": None, "nvmlGpmSampleGet": None})
    found = watched(start_watcher([older, oldest]), (0, 1))
    for position in (0, 1):
        assert_absent(found, position, "sm_activity_percent", "")
        assert_others_read(found, position)


def test_samples_of_newer_cards_are_given_back(start_watcher: StartWatcher, tmp_path: Path) -> None:
    watcher = start_watcher([gpu()])
    for _ in range(3):
        watched(watcher, (0,))
    named = [function for _, _, function, _ in calls(tmp_path)]
    assert named.count("nvmlGpmSampleAlloc") - named.count("nvmlGpmSampleFree") <= 2
