"""How fast the machine was while a launch measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

MACHINE_PACE_SECONDS = Metric(
    name="machine_pace_seconds",
    unit="s",
    meaning="time of a fixed piece of training work (a convolution forward and backward) on all devices of a launch at "
    "once, just before and after its measured rounds: what moves it is the machine, not the code; `python -m bench "
    "compare` allows for it",
    better="lower",
)


@metric(MACHINE_PACE_SECONDS)
def machine_pace_seconds(trace: Trace) -> Iterable[Value]:
    """One value per launch, the geometric mean of its readings; null where it could not be taken."""
    if not trace.round_seconds:
        return
    if trace.pace_seconds:
        yield Value(value=math.exp(fmean(math.log(seconds) for seconds in trace.pace_seconds)))
    else:
        yield Value(value=None, note="the fixed piece of work did not run, as where the model leaves no memory for it")
