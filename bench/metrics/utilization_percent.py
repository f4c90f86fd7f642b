"""How long kernels ran."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from bench.metrics._gauges import gauge_values
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

UTILIZATION_PERCENT = Metric(
    name="utilization_percent",
    unit="%",
    meaning="share of time in which any kernel ran, however small (NVML), mean over the measured rounds",
    per_device=True,
)


@metric(UTILIZATION_PERCENT)
def utilization_percent(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device; nothing on CPU."""
    yield from gauge_values(trace, "utilization_percent", fmean, averaged=True)
