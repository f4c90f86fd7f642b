"""The metrics that rest on the timeline, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.metrics import Value, registry
from bench.schema import Case, DeviceTrace, Moment, NameValue, Trace

CASE = Case(workload="w", strategy="ddp", device_type="cuda", devices=(0, 1), global_batch_size=64, size="standard")
GAUGES = {
    "utilization_percent": "utilization_percent",
    "utilization_p95_percent": "utilization_percent",
    "sm_activity_percent": "sm_activity_percent",
    "power_watts": "power_watts",
    "device_memory_used_bytes": "memory_used_bytes",
    "other_processes": "other_processes",
    "throttled_percent": "throttle_reasons",
}


def moment(device: int, seconds: float, measured: bool = True, **gauges: Any) -> Moment:
    return Moment(device_index=device, elapsed_seconds=seconds, measured=measured, **gauges)


# Three rounds of 5 steps of 64 samples in 8.5 s: 960 samples. What is read outside of them does not count.
TIMELINE = (
    moment(0, 9.0, measured=False, utilization_percent=1.0, memory_used_bytes=9_999, energy_joules=1.0,
           other_processes=7, throttle_reasons="hw_slowdown"),
    moment(0, 10.0, utilization_percent=80.0, sm_activity_percent=30.0, memory_used_bytes=500, power_watts=200.0,
           energy_joules=1000.0, other_processes=0, throttle_reasons=""),
    moment(1, 10.0, utilization_percent=50.0, sm_activity_percent=10.0, memory_used_bytes=900, power_watts=100.0,
           energy_joules=5000.0, other_processes=0, throttle_reasons="gpu_idle"),
    moment(0, 14.0, utilization_percent=90.0, memory_used_bytes=700, throttle_reasons="gpu_idle|sw_power_cap"),
    moment(1, 14.0, utilization_percent=50.0, other_processes=2, throttle_reasons=""),
    moment(0, 18.0, utilization_percent=100.0, sm_activity_percent=50.0, memory_used_bytes=600, power_watts=220.0,
           energy_joules=2600.0, other_processes=0, throttle_reasons="sw_thermal_slowdown"),
    moment(1, 18.0, utilization_percent=80.0, sm_activity_percent=20.0, memory_used_bytes=800, power_watts=120.0,
           energy_joules=5800.0, other_processes=1, throttle_reasons=""),
    moment(1, 19.0, measured=False, utilization_percent=0.0, energy_joules=9000.0),
)  # fmt: skip
TRACE = Trace(
    case=CASE, steps_per_round=5, round_seconds=(2.0, 2.5, 4.0), timeline=TIMELINE,
    devices=tuple(DeviceTrace(device_index=i, peak_allocated_bytes=peak) for i, peak in enumerate((1400, 1000))),
)  # fmt: skip


def values(metric: str, trace: Trace = TRACE) -> list[Value]:
    return list(registry.get(metric).compute(trace))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("utilization_percent", [90.0, 60.0]),  # (80 + 90 + 100) / 3, (50 + 50 + 80) / 3
        ("utilization_p95_percent", [99.0, 77.0]),  # 90 + 0.9 * 10, 50 + 0.9 * 30: at 0.95 * 2 = 1.9 of the three
        ("sm_activity_percent", [40.0, 15.0]),
        ("power_watts", [210.0, 110.0]),
        ("device_memory_used_bytes", [700.0, 900.0]),
        ("other_processes", [0.0, 2.0]),
        ("throttled_percent", [200 / 3, 0.0]),  # two of three readings; an idle GPU is not held back
    ],
)
def test_gauges_over_the_measured_moments_device_by_device(metric: str, expected: list[float]) -> None:
    found = values(metric)
    assert [value.value for value in found] == pytest.approx(expected)
    assert [value.device_index for value in found] == [0, 1]
    assert not any(value.note for value in found if metric != "throttled_percent")


def test_throttling_is_named() -> None:
    first, second = values("throttled_percent")
    assert (first.note, second.note) == ("sw_power_cap, sw_thermal_slowdown", None)


def test_energy_per_sample_is_mean_power_by_the_counter_over_the_rounds() -> None:
    # 1600 J and 800 J in 8 s are 200 W and 100 W; over 8.5 s 1700 J and 850 J; over 960 samples
    first, second, whole = values("joules_per_sample")
    assert (first.value, second.value) == (pytest.approx(1700 / 960), pytest.approx(850 / 960))
    assert (whole.value, whole.device_index) == (pytest.approx(2550 / 960), None)
    assert {value.note for value in (first, second, whole)} == {None}


def test_a_device_without_a_counter_leaves_no_sum() -> None:
    why = (NameValue(name="energy_joules", value="NVML: Not Supported"),)
    silent = tuple(
        replace(item, energy_joules=None, unavailable=why) if item.device_index else item for item in TIMELINE
    )
    first, second, whole = values("joules_per_sample", replace(TRACE, timeline=silent))
    assert first.value is not None and (second.value, second.note) == (None, "NVML: Not Supported")
    assert (whole.value, whole.note) == (None, "device 1: NVML: Not Supported")


def test_a_counter_read_once_or_set_back_gives_no_energy() -> None:
    once = tuple(item for item in TIMELINE if item.elapsed_seconds < 15)
    assert "two readings of the energy counter are needed: 1 in" in (
        values("joules_per_sample", replace(TRACE, timeline=once))[0].note or ""
    )
    back = (*once, moment(0, 18.0, energy_joules=10.0))
    assert "went back" in (values("joules_per_sample", replace(TRACE, timeline=back))[0].note or "")


def test_a_device_listed_twice_is_summed_once() -> None:
    twice = replace(TRACE, case=replace(CASE, devices=(0, 0)), timeline=TIMELINE[:6])
    first, second, whole = values("joules_per_sample", twice)
    assert second.value is None and whole.value == first.value == pytest.approx(1700 / 960)


@pytest.mark.parametrize(
    "metric", ["utilization_percent", "utilization_p95_percent", "power_watts", "joules_per_sample"]
)
def test_a_window_shorter_than_nvml_averages_over_is_called_too_short(metric: str) -> None:
    short = tuple(replace(item, elapsed_seconds=10 + (item.elapsed_seconds - 10) / 20) for item in TIMELINE)
    found = values(metric, replace(TRACE, timeline=short))
    assert all(value.value is not None for value in found)
    assert {value.note for value in found} == {"too short: read over 0.4 s, and the GPU averages over up to 1 s"}
    assert not any(value.note for value in values("device_memory_used_bytes", replace(TRACE, timeline=short)))


@pytest.mark.parametrize(("metric", "gauge"), GAUGES.items())
def test_a_gauge_that_cannot_be_read_is_null_with_the_watchers_reason(metric: str, gauge: str) -> None:
    lost: dict[str, Any] = {gauge: None, "unavailable": (NameValue(name=gauge, value="NVML: Not Supported"),)}
    timeline = tuple(replace(item, **lost) if item.device_index == 1 else item for item in TIMELINE)
    first, second = values(metric, replace(TRACE, timeline=timeline))
    assert first.value is not None
    assert (second.value, second.note, second.device_index) == (None, "NVML: Not Supported", 1)


@pytest.mark.parametrize("metric", [*GAUGES, "joules_per_sample"])
def test_a_launch_that_was_not_watched_says_so_and_a_missing_reading_too(metric: str) -> None:
    assert {
        (value.value, value.note) for value in values(metric, replace(TRACE, timeline=())) if value.device_index
    } == {(None, "the launch was not watched")}
    before = tuple(replace(item, measured=False) for item in TIMELINE)
    notes = [value.note or "" for value in values(metric, replace(TRACE, timeline=before))]
    assert all("was not read in the measured rounds" in note for note in notes)


@pytest.mark.parametrize("metric", [*GAUGES, "joules_per_sample"])
def test_gauges_of_a_gpu_do_not_exist_on_cpu(metric: str) -> None:
    assert values(metric, replace(TRACE, case=replace(CASE, device_type="cpu"))) == []


def test_one_reading_is_its_own_percentile() -> None:
    one = (moment(0, 10.0, utilization_percent=70.0), moment(1, 10.0, utilization_percent=20.0))
    assert [value.value for value in values("utilization_p95_percent", replace(TRACE, timeline=one))] == [70.0, 20.0]


def test_imbalance_is_the_largest_peak_over_their_mean() -> None:
    (found,) = values("memory_imbalance")
    assert found.value == pytest.approx(1400 / 1200 - 1) and found.device_index is None and found.note is None


@pytest.mark.parametrize(
    ("peaks", "device_type", "note"),
    [
        ((1400, None), "cuda", "the allocator gave no figure for device 1"),
        ((0, 0), "cuda", "no device has allocated memory"),
        ((None, None), "cpu", "torch keeps no figure of allocated memory on CPU"),
    ],
)
def test_imbalance_without_peaks_is_null_with_the_reason(peaks: Any, device_type: Any, note: str) -> None:
    devices = tuple(DeviceTrace(device_index=index, peak_allocated_bytes=peak) for index, peak in enumerate(peaks))
    trace = replace(TRACE, case=replace(CASE, device_type=device_type), devices=devices)
    assert values("memory_imbalance", trace) == [Value(value=None, note=note)]


def test_one_device_has_no_imbalance() -> None:
    assert values("memory_imbalance", replace(TRACE, devices=TRACE.devices[:1])) == []
