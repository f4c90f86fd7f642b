"""Does the strategy train what one device trains?"""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric
from bench.schema import Metric, ParityTrace, Trace

PARITY_ERROR = Metric(
    name="parity_error",
    unit="",
    meaning="||w - w_ref|| / ||w_ref - w_0|| over all parameters after 3 plain SGD steps, against one device in fp32, "
    "or in float64 where the note says so",
    better="lower",
)


@metric(PARITY_ERROR)
def parity_error(trace: Trace) -> Iterable[Value]:
    """One value in a parity launch, nothing in a timed one."""
    if trace.parity is not None:
        yield Value(value=trace.parity.error, note="; ".join(_notes(trace.parity)) or None)


def _notes(parity: ParityTrace) -> Iterable[str]:
    if parity.lossy:
        yield "lossy levers round on purpose, so there is no verdict"
    if parity.undecided:
        yield f"no verdict: {parity.undecided}"
    if parity.double:
        yield "in float64, where rounding at the edge of a ReLU cannot grow"
    if unused := parity.unused_parameters:
        yield f"no gradient on one device either for {len(unused)} of the parameters, e.g. {', '.join(unused[:3])}"
