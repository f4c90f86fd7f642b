"""How long one pass over the full data set would take."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

EPOCH_SECONDS = Metric(
    name="epoch_seconds",
    unit="s",
    meaning="samples of the full data set that the note names, over throughput",
    better="lower",
)


@metric(EPOCH_SECONDS)
def epoch_seconds(trace: Trace) -> Iterable[Value]:
    """One value per measured round; nothing for a workload that names no full data set."""
    if trace.epoch_samples is None:
        return
    steps = trace.epoch_samples / trace.case.global_batch_size
    for index, seconds in enumerate(trace.round_seconds):
        yield Value(value=steps * seconds / trace.steps_per_round, round_index=index, note=trace.epoch_data)
