"""The tables of a run as dataclasses: every column once, with unit and meaning.

Unknown is `None`, never -1 or 0. Times are UTC; storage uses SI base units, named in the
column. A column that came with a later layout has a default: older files lack it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bench.schema.words import Moment, NameValue, column

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of the machine, as the runtime that trains on it describes it."""

    index: int = column("ordinal that --devices names")
    name: str = column("product name; on CPU the processor's")
    uuid: str | None = column("identity of the device across processes", default=None)
    memory_bytes: int | None = column("total memory of the device", unit="bytes", default=None)
    capability: str | None = column("CUDA compute capability, e.g. 9.0", default=None)
    idle_memory_used_bytes: int | None = column(
        "memory in use on the device before the first launch, the driver's part not included",
        unit="bytes",
        default=None,
    )
    reserved_memory_bytes: int | None = column(
        "memory that the driver and the firmware keep for themselves (NVML, second version of its query)",
        unit="bytes",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """How fast one device multiplies square matrices, measured before the first timed launch."""

    device_index: int = column("ordinal that --devices names")
    precision: str = column("fp32, tf32, bf16 or fp16")
    devices_at_once: int = column("devices that multiplied at the same time, this one included")
    size: int = column("rows of the matrices that were fastest")
    flops_per_second: float = column("2 x size^3 over the time of a product, in the best round", unit="FLOP/s")


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
    planned_launches: int | None = column(
        "launches that were planned, parity checks included; those of searches are not known beforehand", default=None
    )
    command_line: str = column("what was typed")
    arguments: tuple[str, ...] = column(
        "what follows `python -m pytest` to measure the same again, here or elsewhere: scenarios, relative to the "
        "suite's checkout, then options with their defaults resolved; none in older runs",
        default=(),
    )
    devices: tuple[Device, ...] = column("devices in use, in the order given")
    topology: str | None = column(
        "how the devices are linked, in the words of `nvidia-smi topo -m`, by their places in `devices`: 0-1 NV18, "
        "0-2 SYS, ..., or all NV18; null with one device, on CPU, and where NVML does not tell",
        default=None,
    )
    cpu_name: str = column("processor model")
    cpu_cores: int = column("cores this process may use, container limits included", unit="cores")
    host_memory_bytes: int = column("memory of the host or container", unit="bytes")
    host_allocator: str | None = column(
        "how workers take memory of the host, e.g. glibc 2.36, freed memory kept; null in older runs", default=None
    )
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
    memory_limit_bytes: int | None = column(
        "what --memory-limit gave each device to train in, timed launches too; null without a limit",
        unit="bytes",
        default=None,
    )
    matrix_products: tuple[MatrixProduct, ...] = column(
        "matrix products of this run, what `matmul_utilization` is held against", default=()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One fresh set of worker processes that ran one case once (table `launches`)."""

    run_id: str = column("run")
    case_id: str = column("text of the case")
    launch: int = column("number of the launch of this case, from 0")
    purpose: str = column(
        "timing, parity (a launch of its own that checks the training), or search (a probe of a few steps)"
    )
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
    precision: str = column("fp32, tf32, bf16 or fp16")
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
    steady: bool | None = column("whether the warm-up ended because the rounds were steady", default=None)
    rounds: int | None = column("measured rounds", default=None)
    rounds_end: str | None = column("why the measured rounds ended", default=None)
    steps_per_round: int | None = column("training steps between two synchronisations", default=None)
    threads_per_worker: int | None = column("CPU threads of each worker", default=None)
    backend: str | None = column("process group backend: nccl or gloo; null for one process", default=None)
    emulated: bool = column("host replicas stand in for devices: correctness only")
    oversubscribed: bool = column("a device was listed more than once")
    computes_in: str | None = column(
        "precision of most of the arithmetic: not `precision` where a strategy's option sets it; null in older runs",
        default=None,
    )
    balance: str | None = column("what gpu0_bsz=auto chose, and why; null where it was not asked for", default=None)
    watch_problems: tuple[str, ...] = column(
        "what the watcher could not read, with how often; empty where all went well", default=()
    )
    search: str | None = column(
        "the search that asked for this launch, e.g. max_batch-resnet50; null for the cases of a scenario", default=None
    )

    @property
    def arithmetic(self) -> str:
        """The precision of most of the arithmetic."""
        return self.computes_in or self.precision


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
class TimelineRow(Moment):
    """What the watcher read of one device at one moment of a launch (table `timeline`)."""

    run_id: str = column("run")
    case_id: str = column("text of the case")
    launch: int = column("launch")


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


TABLES: Mapping[str, type] = {
    "run": Run,
    "launches": Launch,
    "samples": Sample,
    "timeline": TimelineRow,
    "estimates": Estimate,
}
