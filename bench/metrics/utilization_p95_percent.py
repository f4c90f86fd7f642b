"""How long kernels ran, when they ran most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import quantiles

from bench.metrics._gauges import gauge_values
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

UTILIZATION_P95_PERCENT = Metric(
    name="utilization_p95_percent",
    unit="%",
    meaning="share of time in which any kernel ran (NVML), 95th percentile of the readings in the measured rounds",
    per_device=True,
)


@metric(UTILIZATION_P95_PERCENT)
def utilization_p95_percent(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device; nothing on CPU."""
    yield from gauge_values(trace, "utilization_percent", percentile_95, averaged=True)


def percentile_95(values: Sequence[float]) -> float:
    """The 95th percentile, linear between the two readings around it (type 7 of Hyndman and Fan, 1996)."""
    # Before Python 3.13, quantiles asks for two values.
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
