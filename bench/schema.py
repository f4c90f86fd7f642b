"""Every word and every column of the suite, once, with unit and meaning.

Standard library only: the recorder turns these dataclasses into parquet schemas, the
analysis reads them back, and neither needs torch. Unknown is `None`, never -1 or 0.
Times are UTC; storage uses SI base units, named in the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

SCHEMA_VERSION = 1

DeviceType: TypeAlias = Literal["cuda", "cpu"]
Status: TypeAlias = Literal["ok", "skipped", "oom", "timeout", "error"]
Purpose: TypeAlias = Literal["timing", "parity"]

STATUSES: tuple[Status, ...] = ("ok", "skipped", "oom", "timeout", "error")
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
    """What a recorded value means. Declared once, in the metric's own file."""

    name: str
    unit: str
    meaning: str
    better: Literal["higher", "lower"] | None = None
    per_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrace:
    """What one device saw in one launch. On CPU a device is a worker or a host replica."""

    device_index: int
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    host_peak_rss_bytes: int | None = None
    cpu_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityTrace:
    """Distance of a strategy's training from the one-device reference, after 3 SGD steps.

    lossy: a lever rounds on purpose, so the distance gets no verdict; unused: parameters that
    do not move on one device either.
    """

    error: float
    lossy: bool = False
    unmoved_parameters: tuple[str, ...] = ()
    unused_parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Plain data that a finished launch leaves behind; the only input of a metric.

    `round_seconds` has one entry per measured round, the slowest rank's.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a launch ended; every status but `ok` has a reason."""

    status: Status
    reason: str | None = None
    rank: int | None = None
    phase: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of the machine, as the runtime that trains on it describes it."""

    index: int = column("ordinal that --devices names")
    name: str = column("product name; on CPU the processor's")
    uuid: str | None = column("identity of the device across processes", default=None)
    memory_bytes: int | None = column("total memory of the device", unit="bytes", default=None)
    capability: str | None = column("CUDA compute capability, e.g. 9.0", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One call of the suite on one environment (table `run`, one row)."""

    run_id: str = column("identity of the run; also its folder's name")
    started_at: datetime = column("start of the run, UTC")
    finished_at: datetime | None = column("end of the run, UTC; null while it runs or if it was killed", default=None)
    schema_version: int = column("version of this table layout", default=SCHEMA_VERSION)
    dpbench_version: str = column("version of the suite")
    preset: str = column("quick, standard or full")
    device_type: str = column("cuda or cpu")
    seed: int = column("seed of the order, the models and the data")
    planned_launches: int | None = column("launches that were planned, parity checks included", default=None)
    command_line: str = column("what was typed")
    devices: tuple[Device, ...] = column("devices in use, in the order given")
    cpu_name: str = column("processor model")
    cpu_cores: int = column("cores this process may use, container limits included", unit="cores")
    host_memory_bytes: int = column("memory of the host or container", unit="bytes")
    hostname: str = column("name of the host")
    os_name: str = column("operating system and kernel")
    python_version: str = column("Python version")
    cuda_version: str | None = column("CUDA version that torch was built for", default=None)
    driver_version: str | None = column("NVIDIA driver version", default=None)
    nccl_version: str | None = column("NCCL version", default=None)
    git_commit: str | None = column("commit of the suite's checkout", default=None)
    git_dirty: bool | None = column("the checkout had uncommitted changes", default=None)
    packages: tuple[NameValue, ...] = column("versions of the packages that matter", default=())
    environment_variables: tuple[NameValue, ...] = column("environment variables that change training", default=())
    fingerprint: str = column("hash of what must be equal for two runs to be comparable")
    notes: tuple[str, ...] = column("what the reader must know about the whole run", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One fresh set of worker processes that ran one case once (table `launches`)."""

    run_id: str = column("run")
    case_id: str = column("text of the case")
    launch: int = column("number of the launch of this case, from 0")
    purpose: str = column("timing, or parity (a launch of its own that checks the training)")
    position: int = column("place in the run's order, from 0")
    workload: str = column("workload")
    strategy: str = column("strategy")
    device_type: str = column("cuda or cpu")
    devices: tuple[int, ...] = column("device ordinals")
    num_devices: int = column("number of devices")
    world_size: int = column("number of worker processes")
    global_batch_size: int = column("samples per optimizer step, accumulation included", unit="samples")
    size: str = column("size of the workload: standard or quick")
    size_text: str = column("what the size means, e.g. 3x64x64 images")
    data: str = column("synthetic or real")
    data_source: str = column("where the samples came from")
    precision: str = column("fp32, tf32 or bf16")
    accumulation_steps: int = column("micro-batches per optimizer step")
    settings: tuple[NameValue, ...] = column("levers and strategy options that are not at their default")
    chunk_sizes: tuple[int, ...] = column("samples each device takes of one micro-batch", unit="samples")
    seed: int = column("seed of model and data")
    status: str = column("ok, skipped, oom, timeout or error")
    reason: str | None = column("why it is not ok", default=None)
    rank: int | None = column("rank that failed first", default=None)
    phase: str | None = column("what that rank was doing", default=None)
    traceback: str | None = column("that rank's traceback", default=None)
    started_at: datetime = column("start of the launch, UTC")
    wall_seconds: float | None = column("whole launch", unit="s", default=None)
    startup_seconds: float | None = column("until the workers were ready to train", unit="s", default=None)
    warmup_seconds: float | None = column("warm-up rounds", unit="s", default=None)
    measured_seconds: float | None = column("measured rounds, or the parity check", unit="s", default=None)
    teardown_seconds: float | None = column("after the results had left the workers", unit="s", default=None)
    warmup_rounds: int | None = column("rounds that do not count", default=None)
    warmup_end: str | None = column("why the warm-up ended", default=None)
    rounds: int | None = column("measured rounds", default=None)
    steps_per_round: int | None = column("training steps between two synchronisations", default=None)
    threads_per_worker: int | None = column("CPU threads of each worker", default=None)
    backend: str | None = column("process group backend: nccl or gloo; null for one process", default=None)
    emulated: bool = column("host replicas stand in for devices: correctness only")
    oversubscribed: bool = column("a device was listed more than once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One recorded value (table `samples`)."""

    run_id: str = column("run")
    case_id: str = column("text of the case")
    launch: int = column("launch")
    metric: str = column("name of the metric; units and meanings are in the file's metadata")
    device_index: int | None = column("position in `devices`; null for the whole case", default=None)
    round_index: int | None = column("measured round; null for the whole launch", default=None)
    value: float | None = column("value in the metric's unit; null where it cannot be known")
    note: str | None = column("why the value is null, or what qualifies it", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One case and metric over all launches (table `estimates`, can be rebuilt)."""

    run_id: str = column("run")
    case_id: str = column("text of the case")
    metric: str = column("name of the metric")
    device_index: int | None = column("position in `devices`; null for the whole case", default=None)
    value: float | None = column("estimate in the metric's unit", default=None)
    low: float | None = column("lower end of the 95 % interval; null with fewer than two launches", default=None)
    high: float | None = column("upper end of the 95 % interval; null with fewer than two launches", default=None)
    smallest: float | None = column("smallest launch", default=None)
    largest: float | None = column("largest launch", default=None)
    launches: int = column("launches with a value")
    rounds: int = column("rounds behind the value; 0 for a value per launch")
    note: str | None = column("doubt about the value", default=None)


TABLES: Mapping[str, type] = {"run": Run, "launches": Launch, "samples": Sample, "estimates": Estimate}
