"""Resident memory of the workers."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric, per_device
from bench.schema import Metric, Trace

HOST_PEAK_RSS_BYTES = Metric(
    name="host_peak_rss_bytes",
    unit="bytes",
    meaning="largest resident memory of the device's worker process; shared libraries count in each worker",
    better="lower",
    per_device=True,
    combine="largest",
)


@metric(HOST_PEAK_RSS_BYTES)
def host_peak_rss_bytes(trace: Trace) -> Iterable[Value]:
    """One value per device; devices that share one process carry it on the first only."""
    yield from per_device(trace, lambda device: device.host_peak_rss_bytes, "shares one process with the first device")
