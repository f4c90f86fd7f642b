"""What each gauge makes of NVML's answers, with figures worked out by hand."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from bench.nvml import Answer
from bench.schema import Moment
from bench.watching.gauges import GPU_GAUGES, PROCESS_GAUGES, reason_names
from bench.watching.gpu import ALL_LINKS, Gpu
from tests.watching.made_up import LOST, NOT_SUPPORTED, UNKNOWN, Clock, MadeUp, error, gpu_of

MOMENT = {"device_index", "elapsed_seconds", "measured", "unavailable"}


def choices(name: str) -> list[Any]:
    return [gauge.read for gauge in GPU_GAUGES if gauge.name == name]


def read(name: str, gpu: Gpu, choice: int = 0) -> Answer:
    answer = choices(name)[choice](gpu)
    assert isinstance(answer, Answer)
    return answer


def test_gauges_and_the_columns_of_a_moment_are_the_same() -> None:
    assert {gauge.name for gauge in (*GPU_GAUGES, *PROCESS_GAUGES)} == {f.name for f in fields(Moment)} - MOMENT


@pytest.mark.parametrize(
    ("name", "function", "told", "value"),
    [
        ("power_watts", "nvmlDeviceGetPowerUsage", 312_500, 312.5),  # mW
        ("energy_joules", "nvmlDeviceGetTotalEnergyConsumption", 2_500_000, 2500.0),  # mJ
        ("sm_clock_hertz", "nvmlDeviceGetClockInfo", 1980, 1.98e9),  # MHz
        ("memory_clock_hertz", "nvmlDeviceGetClockInfo", 2619, 2.619e9),
        ("temperature_celsius", "nvmlDeviceGetTemperature", 41, 41),
        ("utilization_percent", "nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=0, memory=3), 0.0),
    ],
)
def test_units(name: str, function: str, told: object, value: float) -> None:
    assert read(name, gpu_of(MadeUp({function: told}))).value == pytest.approx(value)


@pytest.mark.parametrize(("code", "final"), [(NOT_SUPPORTED, True), (UNKNOWN, False), (LOST, False)])
@pytest.mark.parametrize("name", sorted({gauge.name for gauge in GPU_GAUGES}))
def test_a_refusal_is_null_with_a_reason_never_0(name: str, code: int, final: bool) -> None:
    made_up = MadeUp(dict.fromkeys((n for n in vars(pynvml) if n.startswith(("nvmlDevice", "nvmlGpm"))), error(code)))
    for choice in range(len(choices(name))):
        answer = read(name, gpu_of(made_up), choice)
        assert answer.value is None and answer.reason
        assert (answer.unsupported, answer.lost) == (final, code == LOST)


def test_number_that_stands_for_not_available_is_none() -> None:
    answer = read("power_watts", gpu_of(MadeUp({"nvmlDeviceGetPowerUsage": 2**32 - 1})))
    assert answer.value is None and "not available" in str(answer.reason)


def memory(handle: object, version: int | None = None) -> SimpleNamespace:
    """80 GB, of which 1 GB are the driver's and 20 GB in use."""
    return SimpleNamespace(total=80, reserved=1, free=59, used=20) if version else SimpleNamespace(used=21)


def test_memory_is_that_of_the_second_query_without_the_reserved_part() -> None:
    made_up = MadeUp({"nvmlDeviceGetMemoryInfo": memory})
    assert read("memory_used_bytes", gpu_of(made_up)) == Answer(value=20)
    first = read("memory_used_bytes", gpu_of(made_up), 1)
    assert first.value == 21 and "driver" in str(first.reason)  # the doubt is told


def test_pcie_counters_are_told_by_direction_in_bytes() -> None:
    tx = pynvml.NVML_PCIE_UTIL_TX_BYTES
    made_up = MadeUp({"nvmlDeviceGetPcieThroughput": lambda handle, way: 7 if way == tx else 9})
    assert read("pcie_sent_bytes_per_second", gpu_of(made_up), 1).value == 7_000  # KB
    assert read("pcie_received_bytes_per_second", gpu_of(made_up), 1).value == 9_000


def field(value: int, code: int = 0) -> list[SimpleNamespace]:
    """One field value as NVML gives it, an unsigned long long."""
    return [SimpleNamespace(nvmlReturn=code, valueType=3, value=SimpleNamespace(ullVal=value))]


def test_nvlink_counters_become_rates() -> None:
    told = iter([1000, 1600, 200])
    asked = []

    def values(handle: object, ids: list[tuple[int, int]]) -> list[SimpleNamespace]:
        asked.append(ids)
        return field(next(told))

    clock = Clock()
    gpu = gpu_of(MadeUp({"nvmlDeviceGetFieldValues": values}), clock)
    assert read("nvlink_sent_bytes_per_second", gpu, 1) == Answer()  # one reading is no rate
    clock.now += 2.0
    assert read("nvlink_sent_bytes_per_second", gpu, 1).value == 600 * 1024 / 2.0  # KiB
    clock.now += 1.0
    assert read("nvlink_sent_bytes_per_second", gpu, 1) == Answer()  # the counter was reset
    assert asked[0] == [(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS)]


def test_a_field_that_is_refused_for_itself_has_its_own_reason() -> None:
    gpu = gpu_of(MadeUp({"nvmlDeviceGetFieldValues": lambda handle, ids: field(0, NOT_SUPPORTED)}))
    answer = read("nvlink_sent_bytes_per_second", gpu, 1)
    assert answer.value is None and answer.unsupported


def test_throttle_reasons_have_names_and_a_bit_without_one_its_number() -> None:
    gpu = gpu_of(MadeUp())
    # 0x1 idle, 0x4 software power cap, 0x40 hardware thermal slowdown, 2**40 unknown here.
    assert reason_names(gpu, 0x45 | 1 << 40) == ["gpu_idle", "sw_power_cap", "hw_thermal_slowdown", "bit_40"]
    assert reason_names(gpu, 0) == []


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"]
)
def test_throttle_reasons_come_by_the_newer_or_the_older_name(function: str) -> None:
    found = [choice(gpu_of(MadeUp({function: 0x24}))).value for choice in choices("throttle_reasons")]
    assert sorted(found, key=str) == [None, "sw_power_cap|sw_thermal_slowdown"]


class MadeUpGpm(MadeUp):
    """A device with GPM whose SM activity is 25 % and whose other metrics count from 1 MiB/s."""

    def __init__(self, refused: int | None = None) -> None:
        super().__init__(
            {
                "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=1),
                "nvmlGpmSampleAlloc": self._alloc,
                "nvmlGpmSampleGet": lambda handle, sample: sample,
                "nvmlGpmSampleFree": self._free,
                "nvmlGpmMetricsGet": self._metrics,
            }
        )
        self.refused, self.held, self.compared = refused, [], []  # type: ignore[var-annotated]

    def _alloc(self) -> Any:
        self.held.append(pynvml.c_nvmlGpmSample_t())
        return self.held[-1]

    def _free(self, sample: Any) -> None:
        self.held.remove(sample)

    def _metrics(self, request: Any) -> Any:
        self.compared.append(request.numMetrics)
        for metric in request.metrics[: request.numMetrics]:
            percent = metric.metricId == pynvml.NVML_GPM_METRIC_SM_UTIL
            metric.value = 25.0 if percent else float(metric.metricId)
            metric.nvmlReturn = NOT_SUPPORTED if metric.metricId == self.refused else 0
        return request


def test_gpm_compares_two_samples_and_tells_each_metric_once() -> None:
    clock, made_up = Clock(), MadeUpGpm()
    gpu = gpu_of(made_up, clock)
    names = ("sm_activity_percent", "pcie_sent_bytes_per_second", "nvlink_received_bytes_per_second")
    assert [read(name, gpu) for name in names] == [Answer()] * 3
    clock.now += 0.2
    # PCIe sent is metric 20, NVLink received 60; the made-up values are their numbers, in MiB/s.
    assert [read(name, gpu).value for name in names] == [25.0, 20 * 2**20, 60 * 2**20]
    assert made_up.compared == [5]  # one query for all of them
    clock.now += 0.01
    assert read("sm_activity_percent", gpu) == Answer()  # too early for a sample: nothing is told twice
    clock.now += 0.2
    assert read("sm_activity_percent", gpu).value == 25.0
    assert len(made_up.held) == 2
    gpu.close()
    assert made_up.held == []


def test_a_gpm_metric_that_the_device_lacks_leaves_the_others() -> None:
    clock = Clock()
    gpu = gpu_of(MadeUpGpm(refused=pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC), clock)
    read("sm_activity_percent", gpu)
    clock.now += 0.2
    assert read("nvlink_sent_bytes_per_second", gpu).unsupported
    assert read("sm_activity_percent", gpu).value == 25.0


def test_gpm_is_not_asked_again_where_the_device_has_none() -> None:
    made_up = MadeUp({"nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=0)})
    gpu = gpu_of(made_up)
    for _ in range(3):
        answer = read("sm_activity_percent", gpu)
        assert answer.unsupported and "Hopper" in str(answer.reason)
    assert made_up.calls["nvmlGpmQueryDeviceSupport"] == 1 and made_up.calls["nvmlGpmSampleAlloc"] == 0


def test_gpm_sample_that_fails_is_freed() -> None:
    made_up = MadeUpGpm()
    made_up.answers["nvmlGpmSampleGet"] = error(UNKNOWN)
    answer = read("sm_activity_percent", gpu_of(made_up))
    assert answer.value is None and answer.reason and not answer.unsupported
    assert made_up.held == []
