"""Who else was on the GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics._gauges import gauge_values
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

OTHER_PROCESSES = Metric(
    name="other_processes",
    unit="processes",
    meaning="largest number of processes on the device that are not of this launch, in the measured rounds",
    better="lower",
    per_device=True,
    combine="largest",
)


@metric(OTHER_PROCESSES)
def other_processes(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device; nothing on CPU."""
    yield from gauge_values(trace, "other_processes", max, averaged=False)
