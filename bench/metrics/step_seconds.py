"""Time of one training step."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

STEP_SECONDS = Metric(
    name="step_seconds",
    unit="s",
    meaning="time of one optimizer step: round of the slowest rank over steps per round",
    better="lower",
)


@metric(STEP_SECONDS)
def step_seconds(trace: Trace) -> Iterable[Value]:
    """One value per measured round."""
    for index, seconds in enumerate(trace.round_seconds):
        yield Value(value=seconds / trace.steps_per_round, round_index=index)
