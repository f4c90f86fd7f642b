"""Memory that a strategy expected before it chose its split."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

PREDICTED_PEAK_BYTES = Metric(
    name="predicted_peak_bytes",
    unit="bytes",
    meaning="peak_allocated_bytes as gpu0_bsz=auto predicted it from its probes, for the split that it chose",
    per_device=True,
    combine="largest",
)


@metric(PREDICTED_PEAK_BYTES)
def predicted_peak_bytes(trace: Trace) -> Iterable[Value]:
    """One value per device where a split was chosen from a prediction; nothing elsewhere."""
    for index, value in enumerate(trace.predicted_peak_bytes):
        yield Value(value=value, device_index=index)
