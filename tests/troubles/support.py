"""A watcher over made-up GPUs, and CUDA's view of them made up at one seam."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bench.metrics.base import Value, registry
from bench.schema import Case, Device, DeviceTrace, Moment, Trace
from bench.watching.watcher import Watched, Watcher
from tests.nvml_stub import GIB, StubGpu, calls

GPU_GAUGES = (
    "utilization_percent",
    "memory_used_bytes",
    "power_watts",
    "energy_joules",
    "sm_clock_hertz",
    "memory_clock_hertz",
    "temperature_celsius",
    "throttle_reasons",
)
"""Gauges that every usual GPU of the stub answers."""


def cuda_device(index: int, uuid: str | None) -> Device:
    """A device as CUDA describes it."""
    return Device(index=index, name="NVIDIA H100", uuid=uuid, memory_bytes=80 * GIB, capability="9.0")


def devices_of(gpus: Iterable[StubGpu]) -> list[Device]:
    """CUDA's devices where it sees these GPUs in this order."""
    return [cuda_device(index, gpu.uuid) for index, gpu in enumerate(gpus)]


def watched(watcher: Watcher, ordinals: Sequence[int], until: Callable[[], object] = lambda: True) -> Watched:
    """One launch whose workers are this process; the measured rounds last until `until` holds."""
    watcher.watch(ordinals, [os.getpid()] * len(ordinals), started=time.perf_counter())
    watcher.begin()
    wait_for(until)
    watcher.finish()
    return watcher.stop()


def wait_for(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Return as soon as `holds()` is true; the test fails when that takes too long."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"did not come true within {seconds:g} s"
        time.sleep(0.02)


def asked(folder: Path, function: str, who: str = "0") -> int:
    """How often a device of the stub was asked for something so far."""
    return [call[1:3] for call in calls(folder)].count((who, function))


def values(found: Watched, position: int, gauge: str) -> list[object]:
    """What one gauge of one device read, without the moments at which it was not due."""
    read = (getattr(moment, gauge) for moment in found.moments if moment.device_index == position)
    return [value for value in read if value is not None]


def reasons(moments: Iterable[Moment], position: int) -> Mapping[str, str]:
    """The gauges of one device that could not be read at some moment, with why."""
    return {
        item.name: item.value for moment in moments if moment.device_index == position for item in moment.unavailable
    }


def assert_absent(found: Watched, position: int, gauge: str, why: str) -> None:
    """A gauge was never read, and the rows say why."""
    assert any(moment.device_index == position for moment in found.moments), f"no row of device {position}"
    assert values(found, position, gauge) == []
    assert why in reasons(found.moments, position)[gauge]


def assert_others_read(found: Watched, position: int, *but: str) -> None:
    """Every usual gauge but these was read."""
    assert [gauge for gauge in GPU_GAUGES if gauge not in but and not values(found, position, gauge)] == []


def metric(name: str, found: Watched, ordinals: tuple[int, ...]) -> list[Value]:
    """A metric's values for a launch of one round of 8 samples that was watched so."""
    case = Case(
        workload="mnist_cnn",
        strategy="ddp",
        device_type="cuda",
        devices=ordinals,
        global_batch_size=8,
        size="standard",
    )
    traces = tuple(DeviceTrace(device_index=position) for position in range(len(ordinals)))
    trace = Trace(case=case, round_seconds=(1.0,), devices=traces, timeline=found.moments)
    return list(registry.get(name).compute(trace))


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
