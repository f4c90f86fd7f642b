"""Memory that tensors took."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric, per_device
from bench.schema import Metric, Trace

PEAK_ALLOCATED_BYTES = Metric(
    name="peak_allocated_bytes",
    unit="bytes",
    meaning="largest sum of live tensors in the caching allocator, after warm-up",
    better="lower",
    per_device=True,
    combine="largest",
)


@metric(PEAK_ALLOCATED_BYTES)
def peak_allocated_bytes(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device; nothing on CPU, where torch keeps no such figure."""
    if trace.case.device_type == "cuda":
        yield from per_device(trace, lambda device: device.peak_allocated_bytes, "the allocator gave no figure")
