"""How much of the cards' published peak the training used."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics._peaks import published_flops_per_second
from bench.metrics._shares import shares_of
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

MODEL_FLOPS_UTILIZATION = Metric(
    name="model_flops_utilization",
    unit="",
    meaning="model FLOPs of a step over its time and the published dense peak of all devices, in the precision of the "
    "arithmetic; 1 is the peak, more is impossible",
    better="higher",
)
NO_PEAK_OF_A_CPU = "there is no published peak of a share of a CPU; see matmul_utilization"


@metric(MODEL_FLOPS_UTILIZATION)
def model_flops_utilization(trace: Trace) -> Iterable[Value]:
    """One value per measured round: FLOPs / (step seconds x sum of the devices' peaks).

    Null on CPU, and for a card that `bench/metrics/_peaks.py` does not hold.
    """
    if trace.case.device_type == "cpu":
        return shares_of(trace, NO_PEAK_OF_A_CPU)
    precision = trace.computes_in or trace.case.precision
    return shares_of(trace, published_flops_per_second(trace.device_names, precision))
