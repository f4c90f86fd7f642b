"""Arithmetic that the model itself needs for one optimizer step."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics._shares import NOT_COUNTED
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

MODEL_FLOPS_PER_STEP = Metric(
    name="model_flops_per_step",
    unit="FLOP",
    meaning="matrix products, convolutions and attention (2 FLOP a multiply-add, by torch.utils.flop_counter) in "
    "forward and backward of the bare model at the global batch; without element-wise operations, normalisation, "
    "pooling, embeddings, custom kernels and the optimizer, and without what is computed a second time",
    combine="largest",
)


@metric(MODEL_FLOPS_PER_STEP)
def model_flops_per_step(trace: Trace) -> Iterable[Value]:
    """One value per timed launch, the same for every strategy; null with the reason where they cannot be counted."""
    if trace.round_seconds:
        unknown = (trace.flops_unknown or NOT_COUNTED) if trace.flops_per_step is None else None
        yield Value(value=trace.flops_per_step, note=unknown)
