"""Throughput in tokens, for workloads whose samples are sequences."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

TOKENS_PER_SECOND = Metric(
    name="tokens_per_second",
    unit="tokens/s",
    meaning="tokens of all ranks, padding included, over the slowest rank's wall time",
    better="higher",
)


@metric(TOKENS_PER_SECOND)
def tokens_per_second(trace: Trace) -> Iterable[Value]:
    """One value per measured round; nothing for samples that are not sequences."""
    if trace.tokens_per_sample is None:
        return
    tokens = trace.case.global_batch_size * trace.tokens_per_sample * trace.steps_per_round
    for index, seconds in enumerate(trace.round_seconds):
        yield Value(value=tokens / seconds, round_index=index)
