"""Memory in use on the GPUs, by every process."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics._gauges import gauge_values
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

DEVICE_MEMORY_USED_BYTES = Metric(
    name="device_memory_used_bytes",
    unit="bytes",
    meaning="largest memory in use on the device in the measured rounds, by all processes, less the driver's (NVML)",
    better="lower",
    per_device=True,
    combine="largest",
)


@metric(DEVICE_MEMORY_USED_BYTES)
def device_memory_used_bytes(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device; nothing on CPU."""
    yield from gauge_values(trace, "memory_used_bytes", max, averaged=False)
