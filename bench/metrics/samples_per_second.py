"""Throughput in samples."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

SAMPLES_PER_SECOND = Metric(
    name="samples_per_second",
    unit="samples/s",
    meaning="unique samples of all ranks over the slowest rank's wall time",
    better="higher",
)


@metric(SAMPLES_PER_SECOND)
def samples_per_second(trace: Trace) -> Iterable[Value]:
    """One value per measured round: global_batch_size x steps / seconds."""
    for index, seconds in enumerate(trace.round_seconds):
        yield Value(value=trace.case.global_batch_size * trace.steps_per_round / seconds, round_index=index)
