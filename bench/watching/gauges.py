"""Every gauge once: the column it fills, how often it is read, and how.

Several gauges of one column stand in the order of preference: where a device does not support
the first, the next takes its place. The order of columns is that of reading: what blocks comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from bench.nvml import MOST_BYTES, Answer
from bench.watching.gpu import KIB, MIB, Gpu
from bench.watching.processes import WorkerProcess, other_processes, other_processes_memory

Source = TypeVar("Source")

PERCENT_MOST = 101.0  # a counter's rounding may exceed 100 by a little
RATE_MOST = 1e14
CLOCK_WORDS = ("nvmlClocksEventReason", "nvmlClocksThrottleReason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge(Generic[Source]):
    """One way to fill one column of `Moment`. A number below 0 or above `most` is an error of the driver's."""

    name: str
    period_seconds: float
    read: Callable[[Source], Answer]
    most: float = float("inf")


def utilization(gpu: Gpu) -> Answer:
    """Share of time in which any kernel ran (%)."""
    answer = gpu.ask("nvmlDeviceGetUtilizationRates")
    return answer if answer.value is None else Answer(value=float(answer.value.gpu))


def memory_used(gpu: Gpu) -> Answer:
    """Memory in use without the driver's part: the second version of the query tells them apart."""
    version = gpu.constant("nvmlMemory_v2")
    if version is None:
        return Answer(reason="not known to this version of nvidia-ml-py", unsupported=True)
    answer = gpu.ask("nvmlDeviceGetMemoryInfo", version)
    return answer if answer.value is None else Answer(value=answer.value.used)


def memory_used_v1(gpu: Gpu) -> Answer:
    """Memory in use by the first version of the query."""
    answer = gpu.ask("nvmlDeviceGetMemoryInfo")
    if answer.value is None:
        return answer
    return Answer(value=answer.value.used, reason="the driver's own part may be included (first version of the query)")


def throttling(function: str, gpu: Gpu) -> Answer:
    """Names of the reasons that hold the clocks back, joined by |, by pynvml's constants."""
    answer = gpu.ask(function)
    if answer.value is None:
        return answer
    return Answer(value="|".join(reason_names(gpu, int(answer.value))))


def reason_names(gpu: Gpu, bits: int) -> list[str]:
    """The names of the bits that are set, in snake case; a bit without a name is told by its number."""
    names: dict[int, str] = {}
    for name, value in vars(gpu.nvml.constants).items():
        for word in CLOCK_WORDS:
            if name.startswith(word) and isinstance(value, int):
                names.setdefault(value, _snake(name.removeprefix(word)))
    return [names.get(1 << place, f"bit_{place}") for place in range(bits.bit_length()) if bits >> place & 1]


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def gpm(metric: str, scale: float, gpu: Gpu) -> Answer:
    """One of GPM's metrics, times `scale`."""
    answer = gpu.gpm(metric)
    return answer if answer.value is None else Answer(value=answer.value * scale)


def clock(constant: str, gpu: Gpu) -> Answer:
    """A clock (Hz); NVML tells MHz."""
    return gpu.number("nvmlDeviceGetClockInfo", gpu.constant(constant), scale=1e6)


def nvlink(field: str, gpu: Gpu) -> Answer:
    """NVLink traffic over all links (bytes/s); the counter is in KiB."""
    answer = gpu.field_rate(field)
    return answer if answer.value is None else Answer(value=answer.value * KIB)


def pcie(constant: str, gpu: Gpu) -> Answer:
    """PCIe traffic (bytes/s); NVML counts KB for 20 ms, and blocks so long."""
    return gpu.number("nvmlDeviceGetPcieThroughput", gpu.constant(constant), scale=1e3)


def number(function: str, scale: float, gpu: Gpu) -> Answer:
    """A query without arguments, times `scale`."""
    return gpu.number(function, scale=scale)


def temperature(gpu: Gpu) -> Answer:
    """Temperature of the GPU (degrees Celsius)."""
    return gpu.number("nvmlDeviceGetTemperature", gpu.constant("NVML_TEMPERATURE_GPU"))


def _rate(name: str, period_seconds: float, read: Callable[[Gpu], Answer]) -> Gauge[Gpu]:
    return Gauge(name=name, period_seconds=period_seconds, most=RATE_MOST, read=read)


GPU_GAUGES: tuple[Gauge[Gpu], ...] = (
    # NVML averages over 1/6 to 1 s, GPM is sampled by us: reading more often would tell nothing new.
    Gauge(
        name="energy_joules",
        period_seconds=0.2,
        most=1e14,
        read=partial(number, "nvmlDeviceGetTotalEnergyConsumption", 1e-3),
    ),
    Gauge(name="utilization_percent", period_seconds=0.2, most=PERCENT_MOST, read=utilization),
    Gauge(
        name="sm_activity_percent",
        period_seconds=0.2,
        most=PERCENT_MOST,
        read=partial(gpm, "NVML_GPM_METRIC_SM_UTIL", 1.0),
    ),
    Gauge(name="memory_used_bytes", period_seconds=0.1, most=MOST_BYTES, read=memory_used),
    Gauge(name="memory_used_bytes", period_seconds=0.1, most=MOST_BYTES, read=memory_used_v1),
    Gauge(name="power_watts", period_seconds=0.2, most=1e5, read=partial(number, "nvmlDeviceGetPowerUsage", 1e-3)),
    Gauge(name="sm_clock_hertz", period_seconds=0.5, most=1e11, read=partial(clock, "NVML_CLOCK_SM")),
    Gauge(name="memory_clock_hertz", period_seconds=0.5, most=1e11, read=partial(clock, "NVML_CLOCK_MEM")),
    Gauge(name="temperature_celsius", period_seconds=1.0, most=200.0, read=temperature),
    Gauge(
        name="throttle_reasons", period_seconds=0.5, read=partial(throttling, "nvmlDeviceGetCurrentClocksEventReasons")
    ),
    Gauge(
        name="throttle_reasons",
        period_seconds=0.5,
        read=partial(throttling, "nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
    _rate("nvlink_sent_bytes_per_second", 0.2, partial(gpm, "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", MIB)),
    _rate("nvlink_sent_bytes_per_second", 0.2, partial(nvlink, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX")),
    _rate("nvlink_received_bytes_per_second", 0.2, partial(gpm, "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", MIB)),
    _rate("nvlink_received_bytes_per_second", 0.2, partial(nvlink, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")),
    Gauge(name="other_processes", period_seconds=1.0, read=other_processes),
    Gauge(name="other_processes_memory_bytes", period_seconds=1.0, most=MOST_BYTES, read=other_processes_memory),
    _rate("pcie_sent_bytes_per_second", 0.2, partial(gpm, "NVML_GPM_METRIC_PCIE_TX_PER_SEC", MIB)),
    _rate("pcie_sent_bytes_per_second", 1.0, partial(pcie, "NVML_PCIE_UTIL_TX_BYTES")),
    _rate("pcie_received_bytes_per_second", 0.2, partial(gpm, "NVML_GPM_METRIC_PCIE_RX_PER_SEC", MIB)),
    _rate("pcie_received_bytes_per_second", 1.0, partial(pcie, "NVML_PCIE_UTIL_RX_BYTES")),
)

PROCESS_GAUGES: tuple[Gauge[WorkerProcess], ...] = (
    Gauge(name="cpu_percent", period_seconds=0.1, read=WorkerProcess.cpu_percent),
    Gauge(name="host_rss_bytes", period_seconds=0.1, read=WorkerProcess.rss_bytes),
)
