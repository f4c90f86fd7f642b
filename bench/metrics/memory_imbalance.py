"""How unevenly the devices are filled."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

MEMORY_IMBALANCE = Metric(
    name="memory_imbalance",
    unit="",
    meaning="largest over mean of the devices' peak_allocated_bytes, less 1; 0 is even",
    better="lower",
)


@metric(MEMORY_IMBALANCE)
def memory_imbalance(trace: Trace) -> Iterable[Value]:
    """One value where there are several devices; nothing where there is one."""
    if len(trace.devices) < 2:
        return
    peaks = [device.peak_allocated_bytes for device in trace.devices]
    known = [peak for peak in peaks if peak is not None]
    if trace.case.device_type != "cuda":
        yield Value(value=None, note="torch keeps no figure of allocated memory on CPU")
    elif len(known) < len(peaks):
        yield Value(value=None, note=f"the allocator gave no figure for device {peaks.index(None)}")
    else:
        mean = fmean(known)
        yield Value(value=max(known) / mean - 1) if mean else Value(value=None, note="no device has allocated memory")
