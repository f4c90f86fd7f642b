"""Memory that the caching allocator held."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric, per_device
from bench.schema import Metric, Trace

PEAK_RESERVED_BYTES = Metric(
    name="peak_reserved_bytes",
    unit="bytes",
    meaning="largest amount the caching allocator held from the driver, after warm-up",
    better="lower",
    per_device=True,
    combine="largest",
)


@metric(PEAK_RESERVED_BYTES)
def peak_reserved_bytes(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device; nothing on CPU, where torch keeps no such figure."""
    if trace.case.device_type == "cuda":
        yield from per_device(trace, lambda device: device.peak_reserved_bytes, "the allocator gave no figure")
