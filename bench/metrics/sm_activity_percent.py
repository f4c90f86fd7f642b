"""How busy the multiprocessors were."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from bench.metrics._gauges import gauge_values
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

SM_ACTIVITY_PERCENT = Metric(
    name="sm_activity_percent",
    unit="%",
    meaning="share of the multiprocessors that were busy (GPM, Hopper and later), mean over the measured rounds",
    per_device=True,
)


@metric(SM_ACTIVITY_PERCENT)
def sm_activity_percent(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device; nothing on CPU."""
    yield from gauge_values(trace, "sm_activity_percent", fmean, averaged=False)
