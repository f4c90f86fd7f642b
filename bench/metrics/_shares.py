"""How much of what the devices can do a step used, for the two metrics that ask."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value
from bench.schema import Trace

NOT_COUNTED = "the FLOPs of a step were not counted"


def shares_of(trace: Trace, possible: float | str) -> Iterable[Value]:
    """FLOPs of a step over (seconds of a step x `possible`), one value per measured round; nothing where none is.

    possible: FLOP/s of all devices together, or why it is unknown: then one null with that reason.
    """
    if not trace.round_seconds:
        return
    if trace.flops_per_step is None:
        yield Value(value=None, note=trace.flops_unknown or NOT_COUNTED)
    elif isinstance(possible, str):
        yield Value(value=None, note=possible)
    else:
        for index, seconds in enumerate(trace.round_seconds):
            share = trace.flops_per_step * trace.steps_per_round / (seconds * possible)
            yield Value(value=share, round_index=index)
