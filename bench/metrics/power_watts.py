"""Power of the GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from bench.metrics._gauges import gauge_values
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

POWER_WATTS = Metric(
    name="power_watts",
    unit="W",
    meaning="power of the device, mean over the measured rounds",
    better="lower",
    per_device=True,
)


@metric(POWER_WATTS)
def power_watts(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device; nothing on CPU."""
    yield from gauge_values(trace, "power_watts", fmean, averaged=True)
