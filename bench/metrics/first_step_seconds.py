"""What the first step of a launch costs, once."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

FIRST_STEP_SECONDS = Metric(
    name="first_step_seconds",
    unit="s",
    meaning="the first optimizer step of a launch, outside of the timed rounds: compilation, autotuning and first "
    "allocations are in it; of the launches the largest counts, since later ones find what was compiled",
    better="lower",
    combine="largest",
)


@metric(FIRST_STEP_SECONDS)
def first_step_seconds(trace: Trace) -> Iterable[Value]:
    """One value per launch: the first warm-up round, which is one step."""
    if trace.warmup_round_seconds:
        yield Value(value=trace.warmup_round_seconds[0])
