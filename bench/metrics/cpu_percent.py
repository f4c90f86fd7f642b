"""Processor use of the workers."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric, per_device
from bench.schema import Metric, Trace

CPU_PERCENT = Metric(
    name="cpu_percent",
    unit="%",
    meaning="CPU time of the device's worker process over wall time in the measured rounds; 100 is one core",
    better=None,
    per_device=True,
)


@metric(CPU_PERCENT)
def cpu_percent(trace: Trace) -> Iterable[Value]:
    """One value per device; devices that share one process carry it on the first only."""
    yield from per_device(trace, lambda device: device.cpu_percent, "shares one process with the first device")
