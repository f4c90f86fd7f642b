"""Time of one training step while nothing disturbs it: what runs are compared by."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace
from bench.series import percentile_10

STEP_P10_SECONDS = Metric(
    name="step_p10_seconds",
    unit="s",
    meaning="time of one optimizer step, 10th percentile of the measured rounds of a launch: other work on the machine "
    "only ever adds time, so that the fast rounds tell most of the code; `python -m bench compare` judges by it",
    better="lower",
)


@metric(STEP_P10_SECONDS)
def step_p10_seconds(trace: Trace) -> Iterable[Value]:
    """One value per launch; nothing without a measured round.

    That noise is additive, so that low quantiles are the steadier estimate: Chen and Revels, "Robust benchmarking in
    noisy environments" (2016). Not the minimum, which falls with the number of rounds.
    """
    if trace.round_seconds:
        yield Value(value=percentile_10(trace.round_seconds) / trace.steps_per_round)
