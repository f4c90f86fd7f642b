"""How much of what the devices reached in a matrix product the training used."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics._shares import shares_of
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

MATMUL_UTILIZATION = Metric(
    name="matmul_utilization",
    unit="",
    meaning="model FLOPs of a step over its time and the FLOP/s that all its devices reached together in products of "
    "square matrices, measured in the same run at the case's precision",
    better="higher",
)
NOT_MEASURED = "no matrix product was measured in this run"


@metric(MATMUL_UTILIZATION)
def matmul_utilization(trace: Trace) -> Iterable[Value]:
    """One value per measured round: FLOPs / (step seconds x sum of the devices' products); null with the reason."""
    products = trace.matmul_flops_per_second
    return shares_of(trace, sum(products) if products else trace.matmul_unknown or NOT_MEASURED)
