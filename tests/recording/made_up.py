"""Made-up runs with figures chosen by hand. No device and no torch behind them."""

from __future__ import annotations

import functools
import math
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from bench.analysis.estimates import estimate
from bench.metrics import registry
from bench.recording.reader import read_run
from bench.recording.writer import RunWriter
from bench.schema import Case, Device, Launch, Metric, NameValue, Run, Sample, TimelineRow

START = datetime(2026, 11, 29, 23, 30, 22, tzinfo=timezone.utc)
METRICS: tuple[Metric, ...] = tuple(item.declaration for item in registry)
NASTY = '<img src=x onerror=alert(1)></script>$x_1$ 模型 & "quotes"'


def made_run(**changes: Any) -> Run:
    run = Run(
        run_id="20261129T233022Z-ab12",
        started_at=START,
        dpbench_version="0.1",
        preset="standard",
        device_type="cuda",
        seed=0,
        command_line="pytest scenarios --preset standard",
        devices=tuple(
            Device(index=i, name="NVIDIA H200", uuid=f"GPU-{i}", memory_bytes=150_000_000_000, capability="9.0")
            for i in range(4)
        ),
        cpu_name="AMD EPYC 9654",
        cpu_cores=16,
        host_memory_bytes=128 * 2**30,
        hostname="box",
        os_name="Linux",
        python_version="CPython 3.11.7",
        packages=(NameValue(name="torch", value="2.14.1"),),
        environment_variables=(NameValue(name="NCCL_DEBUG", value="WARN"),),
        fingerprint="0123456789abcdef",
        notes=("NUMA node of GPU 2 unknown",),
    )
    return replace(run, **changes)


def made_case(
    strategy: str, num_devices: int, batch: int, *, settings: dict[str, str] | None = None, **rest: Any
) -> Case:
    listed = tuple(NameValue(name=name, value=value) for name, value in (settings or {}).items())
    devices = rest.pop("devices", tuple(range(num_devices)))
    defaults: dict[str, Any] = {"workload": "resnet50", "device_type": "cuda", "size": "standard", "precision": "bf16"}
    return Case(strategy=strategy, devices=devices, global_batch_size=batch, settings=listed, **(defaults | rest))


def made_launch(case: Case, launch: int, position: int, **changes: Any) -> Launch:
    made = Launch(
        run_id="20261129T233022Z-ab12",
        case_id=str(case),
        launch=launch,
        purpose=case.purpose,
        position=position,
        workload=case.workload,
        strategy=case.strategy,
        device_type=case.device_type,
        devices=case.devices,
        num_devices=case.num_devices,
        world_size=1 if case.strategy in ("single", "dp", "balanced_dp") else case.num_devices,
        global_batch_size=case.global_batch_size,
        size=case.size,
        size_text="3x224x224 images",
        data=case.data or "synthetic",
        data_source="seeded noise",
        precision=case.precision,
        accumulation_steps=case.accumulation_steps,
        settings=case.settings,
        chunk_sizes=(case.global_batch_size // case.num_devices,) * case.num_devices,
        seed=0,
        status="ok",
        started_at=START + timedelta(seconds=10 * position),
        wall_seconds=10.0,
        emulated=case.device_type == "cpu" and case.strategy in ("dp", "balanced_dp"),
        oversubscribed=case.oversubscribed,
    )
    return replace(made, **changes)


def sample(launch: Launch, metric: str, value: float | None, **rest: Any) -> Sample:
    return Sample(
        run_id=launch.run_id, case_id=launch.case_id, launch=launch.launch, metric=metric, value=value, **rest
    )


def timed(launch: Launch, throughput: float, gib: Sequence[float | None] = ()) -> list[Sample]:
    """Three rounds around `throughput`, whose median it is, and a memory peak per device."""
    batch = launch.global_batch_size
    found = []
    for index, factor in enumerate((0.9, 1.0, 1.05)):
        rate = throughput * factor
        found.append(sample(launch, "samples_per_second", rate, round_index=index))
        found.append(sample(launch, "step_seconds", batch / rate, round_index=index))
    found.append(sample(launch, "step_p10_seconds", batch / (1.05 * throughput)))
    memory = "peak_allocated_bytes" if launch.device_type == "cuda" else "host_peak_rss_bytes"
    for index, value in enumerate(gib):
        known = None if value is None else value * 2**30
        note = "shares one process with the first device" if value is None else None
        found.append(sample(launch, memory, known, device_index=index, note=note))
    return found


def watched(launch: Launch, gib: Sequence[float | None]) -> list[Sample]:
    """What the watcher of a GPU adds: reserved is allocated and a tenth, in use 0.5 GiB more; 90 % busy and falling."""
    if launch.device_type != "cuda":
        return []
    found = []
    for index, value in enumerate(gib):
        reserved = None if value is None else 1.1 * value * 2**30
        in_use = None if reserved is None else reserved + 2**29
        figures = {"peak_reserved_bytes": reserved, "device_memory_used_bytes": in_use,
                   "utilization_percent": 90.0 - 10 * index, "power_watts": 600.0 - 50 * index,
                   "joules_per_sample": 0.5, "other_processes": 0.0, "throttled_percent": 0.0}  # fmt: skip
        found += [sample(launch, name, figure, device_index=index) for name, figure in figures.items()]
    return [*found, sample(launch, "joules_per_sample", 0.5 * len(gib))]


def timeline(launch: Launch, *, seconds: float = 10.0, period: float = 0.1) -> list[TimelineRow]:
    """A reading of every device each `period`, measured from 40 to 90 %; host replicas share one process."""
    found = []
    for step in range(round(seconds / period) + 1):
        now = step * period
        measured = 0.4 * seconds <= now <= 0.9 * seconds
        for index in range(launch.num_devices):
            wave = (0.85 + 0.1 * math.sin(now + index)) * (1.0 if now > 0.2 * seconds else 0.1)
            figures: dict[str, Any]
            if launch.device_type == "cuda":
                figures = {"utilization_percent": 100 * wave - 5 * index, "power_watts": 650 * wave}
            elif launch.emulated and index:
                shared = "shares one process with the first device"
                figures = {"unavailable": (NameValue(name="cpu_percent", value=shared),)}
            else:
                figures = {"cpu_percent": 100 * wave, "host_rss_bytes": round(2**28 * wave)}
            found.append(
                TimelineRow(run_id=launch.run_id, case_id=launch.case_id, launch=launch.launch, device_index=index,
                            elapsed_seconds=now, measured=measured, **figures)
            )  # fmt: skip
    return found


def write_run(results: Path, plan: Sequence[tuple[Case, Sequence[float], Sequence[float | None]]], *,
              run: Run | None = None, parity: Sequence[tuple[Case, float]] = (), watch: bool = False,
              failed: Sequence[tuple[Case, dict[str, Any]]] = (), finish: bool = True) -> Path:  # fmt: skip
    """A run folder: for each case its throughput launch by launch and GiB per device; parity errors; failures.

    `watch`: the first launch of a case has a timeline, and every launch the figures that the watcher adds.
    """
    run = run or made_run()
    writer = RunWriter(results, run, METRICS)
    position = 0
    for case, rates, gib in plan:
        for index, rate in enumerate(rates):
            launch = made_launch(case, index, position, run_id=run.run_id)
            more = watched(launch, gib) if watch else []
            writer.add(launch, timed(launch, rate, gib) + more, timeline(launch) if watch and index == 0 else [])
            position += 1
    for case, error in parity:
        launch = made_launch(replace(case, purpose="parity", global_batch_size=8), 0, position, run_id=run.run_id)
        writer.add(launch, [sample(launch, "parity_error", error)])
        position += 1
    for case, changes in failed:
        writer.add(made_launch(case, 0, position, run_id=run.run_id, **changes), [])
        position += 1
    if finish:
        data = read_run(writer.folder)
        writer.finish(estimate(data.samples, data.launches, METRICS), START + timedelta(minutes=30))
    return writer.folder


_KEPT = tempfile.TemporaryDirectory(prefix="dpbench-made-up-")


def gpu_run(results: Path, *, finish: bool = True) -> Path:
    """Six strategies on 4 GPUs with noise of about 1 %, one oom, one error, one parity miss, nasty names."""
    # Written once and copied: each of its 128 parts waits for the disk.
    made = _gpu_run(finish)
    return Path(shutil.copytree(made, results / made.name))


@functools.cache
def _gpu_run(finish: bool) -> Path:
    results = Path(_KEPT.name) / str(finish)
    noise = random.Random(0)
    rates = {("single", 1, 64): 1200, ("single", 1, 256): 1290, ("dp", 4, 256): 3000, ("balanced_dp", 4, 256): 2900,
             ("ddp", 4, 256): 4650, ("fsdp", 4, 256): 4620, ("fsdp1", 4, 256): 4800}  # fmt: skip
    plan = [
        (made_case(*key), [rate * noise.lognormvariate(0, 0.008) for _ in range(6)], [20.0 + i for i in range(key[1])])
        for key, rate in rates.items()
    ]
    replica = made_case("dp", 4, 256, settings={"loss_on": "replica"})
    plan.append((replica, [3100.0, 3110, 3090, 3105, 3080, 3111], [20.0] * 4))
    parity = [(replace(case, precision="fp32"), 0.9 if case.strategy == "fsdp1" else 2e-7) for case, _, _ in plan]
    nasty = made_case("ddp", 4, 256, workload=NASTY, settings={"hook": NASTY})
    plan.append((nasty, [100.0], [1.0] * 4))
    failed: list[tuple[Case, dict[str, Any]]] = [
        (made_case("ddp", 4, 4096), {"status": "oom", "reason": "rank 2: CUDA out of memory, 3.1 GiB asked for"}),
        (made_case("balanced_dp", 2, 128), {"status": "skipped", "reason": "gpu0_bsz 80 is above 128 // 2 = 64"}),
        (made_case("fsdp", 2, 128), {"status": "error", "reason": f"ValueError: {NASTY}", "rank": 1, "phase": "warm-up",
                                     "traceback": f"Traceback (most recent call last):\n  ...\nValueError: {NASTY}"}),
    ]  # fmt: skip
    return write_run(results, plan, parity=parity, failed=failed, finish=finish, watch=True)


def cpu_run(results: Path) -> Path:
    """Two CPU workers: dp and balanced_dp are emulated, memory is that of the processes."""
    case: dict[str, Any] = {"device_type": "cpu", "workload": "mnist_cnn", "size": "quick", "precision": "fp32"}
    plan: list[tuple[Case, Sequence[float], Sequence[float | None]]] = [
        (made_case("single", 1, 64, **case), [900.0, 910, 905], [0.4]),
        (made_case("dp", 2, 64, **case), [1200.0, 1210, 1190], [0.5, None]),
        (made_case("ddp", 2, 64, **case), [1100.0, 1080, 1120], [0.4, 0.41]),
        (made_case("fsdp", 2, 64, **case), [1090.0, 1110, 1065], [0.42, 0.41]),
    ]
    device = Device(index=0, name="AMD EPYC 9654")
    run = made_run(run_id="20261130T000000Z-cd34", device_type="cpu", devices=(device, replace(device, index=1)),
                   preset="quick", started_at=START + timedelta(minutes=30))  # fmt: skip
    return write_run(results, plan, run=run, watch=True, parity=[(case, 1e-7) for case, _, _ in plan])
