"""The words of the suite: case, metric, trace, outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, replace
from typing import Any, Literal, TypeAlias

DeviceType: TypeAlias = Literal["cuda", "cpu"]
Status: TypeAlias = Literal["ok", "skipped", "oom", "timeout", "error"]
Purpose: TypeAlias = Literal["timing", "parity", "search"]

STATUSES: tuple[Status, ...] = ("ok", "skipped", "oom", "timeout", "error")
UNTIMED = ("parity", "search")
"""Purposes whose launches are no timing: they enter no estimate of speed, no comparison, no history."""
MAX_BATCH = "max_batch"
"""How the name of a search for the largest batch begins."""
PARITY_LIMIT = 1e-4
DEFAULT_SIZES: Mapping[str, str] = {"cuda": "standard", "cpu": "quick"}


def column(meaning: str, *, unit: str | None = None, default: Any = MISSING) -> Any:
    """A dataclass field that carries its meaning and unit into the parquet metadata."""
    metadata = {"meaning": meaning} | ({"unit": unit} if unit else {})
    return field(metadata=metadata) if default is MISSING else field(metadata=metadata, default=default)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NameValue:
    """One named text: a setting, a version, an environment variable."""

    name: str = column("name")
    value: str = column("value as text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point on all axes: workload x strategy x devices x batch x levers.

    `str(case)` is the pytest id and the key in parquet. It leaves out what is at its
    default: the data source of the workload (`data=None`), the size that belongs to the
    device type, devices counted from 0, one accumulation step, no further settings.
    `global_batch_size` counts samples per optimizer step, accumulation included.
    """

    workload: str
    strategy: str
    device_type: DeviceType
    devices: tuple[int, ...]
    global_batch_size: int
    size: str
    precision: str = "fp32"
    accumulation_steps: int = 1
    data: str | None = None
    settings: tuple[NameValue, ...] = ()
    purpose: Purpose = "timing"

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def micro_batch_size(self) -> int:
        """Samples per forward pass over all devices; a planner checks that it divides."""
        return self.global_batch_size // self.accumulation_steps

    @property
    def oversubscribed(self) -> bool:
        """A device is listed more than once."""
        return len(set(self.devices)) < len(self.devices)

    def setting(self, name: str) -> str | None:
        """The text of a lever or strategy option, None where it is at its default."""
        return next((item.value for item in self.settings if item.name == name), None)

    def with_settings(self, *settings: NameValue) -> Case:
        """The case with these settings in the place of its own of the same names."""
        kept = self.without_settings(*(item.name for item in settings)).settings
        return replace(self, settings=tuple(sorted([*kept, *settings])))

    def without_settings(self, *names: str) -> Case:
        """The case with these settings at their default."""
        return replace(self, settings=tuple(item for item in self.settings if item.name not in names))

    def __str__(self) -> str:
        plain = self.devices == tuple(range(self.num_devices))
        listed = "" if plain else "+".join(map(str, self.devices))
        parts = [self.workload, self.strategy, f"{self.num_devices}x{listed}", f"b{self.global_batch_size}"]
        parts.append(self.precision)
        if self.accumulation_steps > 1:
            parts.append(f"acc{self.accumulation_steps}")
        if self.data is not None:
            parts.append(self.data)
        if self.size != DEFAULT_SIZES[self.device_type]:
            parts.append(self.size)
        parts += [f"{item.name}:{item.value}" for item in sorted(self.settings)]
        if self.purpose != "timing":
            parts.append(self.purpose)
        return "-".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a recorded value means. Declared once, in the metric's own file.

    `combine` says what stands for a case: the mean over its launches with an interval, or the
    largest launch, for what has to fit.
    """

    name: str
    unit: str
    meaning: str
    better: Literal["higher", "lower"] | None = None
    per_device: bool = False
    combine: Literal["mean", "largest"] = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrace:
    """What one device saw in one launch. On CPU a device is a worker or a host replica.

    `communication_bytes` is the payload of one step's collectives; where it is None,
    `communication_unknown` says why.
    """

    device_index: int
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    host_peak_rss_bytes: int | None = None
    cpu_percent: float | None = None
    communication_bytes: int | None = None
    communication_unknown: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityTrace:
    """Distance of a strategy's training from the one-device reference, after 3 SGD steps.

    lossy: a lever rounds on purpose, so the distance gets no verdict; double: trained in float64;
    unused: parameters that get no gradient on one device either. Of a miss only: blame, what is wrong with
    the model rather than the strategy; undecided, why the model allows no verdict.
    """

    error: float
    lossy: bool = False
    double: bool = False
    unmoved_parameters: tuple[str, ...] = ()
    unused_parameters: tuple[str, ...] = ()
    blame: str | None = None
    undecided: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the watcher read of one device at one moment: one column a gauge.

    A gauge is null where it was not due at that moment (each has a period of its own), and
    where it cannot be read: `unavailable` names it then, with the reason.
    """

    device_index: int = column("position in the case's `devices`")
    elapsed_seconds: float = column("since the launch began", unit="s")
    measured: bool = column("inside the measured rounds")
    utilization_percent: float | None = column(
        "share of time in which any kernel ran, by NVML, averaged over its own window of 1/6 to 1 s",
        unit="%",
        default=None,
    )
    sm_activity_percent: float | None = column(
        "share of the multiprocessors that were busy (GPM, on Hopper and later)", unit="%", default=None
    )
    memory_used_bytes: int | None = column(
        "memory in use on the device by every process, the driver's part not included", unit="bytes", default=None
    )
    power_watts: float | None = column(
        "power, on most cards since Ampere an average over the last second", unit="W", default=None
    )
    energy_joules: float | None = column("energy since the driver was loaded", unit="J", default=None)
    sm_clock_hertz: float | None = column("clock of the multiprocessors", unit="Hz", default=None)
    memory_clock_hertz: float | None = column("clock of the memory", unit="Hz", default=None)
    temperature_celsius: float | None = column("temperature of the GPU", unit="degrees Celsius", default=None)
    throttle_reasons: str | None = column(
        "why the clocks are held back, names joined by |; an empty text where nothing holds them", default=None
    )
    pcie_sent_bytes_per_second: float | None = column("PCIe traffic from the device", unit="bytes/s", default=None)
    pcie_received_bytes_per_second: float | None = column("PCIe traffic to the device", unit="bytes/s", default=None)
    nvlink_sent_bytes_per_second: float | None = column("NVLink traffic from the device", unit="bytes/s", default=None)
    nvlink_received_bytes_per_second: float | None = column(
        "NVLink traffic to the device", unit="bytes/s", default=None
    )
    other_processes: int | None = column("processes on the device that are not of this launch", default=None)
    other_processes_memory_bytes: int | None = column(
        "memory of those other processes, as far as it is known", unit="bytes", default=None
    )
    cpu_percent: float | None = column(
        "CPU time of the device's worker process over wall time since the last reading; 100 is one core",
        unit="%",
        default=None,
    )
    host_rss_bytes: int | None = column("resident memory of the device's worker process", unit="bytes", default=None)
    unavailable: tuple[NameValue, ...] = column("gauges that cannot be read on this device, and why", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Plain data that a finished launch leaves behind; the only input of a metric.

    `round_seconds` has one entry per measured round, the slowest rank's; `predicted_peak_bytes`
    one per device, where a strategy chose its split from a prediction; `pace_seconds` the readings of
    the machine's pace, the slowest rank's; `timeline` holds what the watcher read, moment by
    moment. `flops_per_step` is what the bare model needs for one optimizer step; `device_names` and
    `matmul_flops_per_second` (a matrix product in the same precision, on as many devices at once)
    have one entry per device: what a figure is held against, or why not (`*_unknown`). `computes_in`: the precision of
    most of the arithmetic, where a strategy's option makes it another than the case's.
    """

    case: Case
    steps_per_round: int = 1
    warmup_round_seconds: tuple[float, ...] = ()
    round_seconds: tuple[float, ...] = ()
    tokens_per_sample: int | None = None
    epoch_samples: int | None = None
    epoch_data: str | None = None
    devices: tuple[DeviceTrace, ...] = ()
    parity: ParityTrace | None = None
    predicted_peak_bytes: tuple[float, ...] = ()
    pace_seconds: tuple[float, ...] = ()
    timeline: tuple[Moment, ...] = ()
    flops_per_step: float | None = None
    flops_unknown: str | None = None
    device_names: tuple[str, ...] = ()
    matmul_flops_per_second: tuple[float, ...] = ()
    matmul_unknown: str | None = None
    computes_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a launch ended; every status but `ok` has a reason."""

    status: Status
    reason: str | None = None
    rank: int | None = None
    phase: str | None = None
    traceback: str | None = None
