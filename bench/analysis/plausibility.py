"""Figures beyond what the hardware can do: more FLOP/s than the cards, or a matrix product, reach. No torch here.

Such a figure is wrong, whatever it looks like: work that was skipped, a clock that was read too early, FLOPs
that were counted and never done, or a peak that is not that of this card.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bench.analysis.cases import CaseResult
from bench.schema import Estimate, Launch

FLOPS, STEP = "model_flops_per_step", "step_seconds"
PUBLISHED, MEASURED = "model_flops_utilization", "matmul_utilization"
REMEDY = (
    "do not use this case: look for work that was skipped (a frozen or cut part of the model, a step that did not wait "
    "for its device), and report it with the card's name"
)
SLOW_PRODUCT = (
    "or it was the product that was slow, as on a machine that others use or cool badly: repeat the run when it is idle"
)
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


def beyond_its_peak(result: CaseResult) -> bool:
    """Whether a case reached more than the published peak of its devices."""
    published = result.of(PUBLISHED)
    return published is not None and published.value is not None and published.value > 1


def impossible(results: Iterable[CaseResult]) -> tuple[str, ...]:
    """A line for each case that used more than all there is, with the arithmetic and what to do; empty without any.

    Against the published peak by the estimate itself. The measured product has an error of its own: against it
    only the lower end of the interval counts, and a case with a single launch, which has none, is not judged.
    """
    return tuple(line for result in results for line in _of_case(result))


def _of_case(result: CaseResult) -> Iterator[str]:
    published, measured = result.of(PUBLISHED), result.of(MEASURED)
    if published is not None and beyond_its_peak(result):
        yield f"{_arithmetic(result, published)} of the published peak: impossible; {REMEDY}"
    if measured is not None and measured.low is not None and measured.low > 1:
        yield (
            f"{_arithmetic(result, measured)} of the matrix product measured in this run (at least "
            f"{_percent(measured.low)}): impossible; {REMEDY}; {SLOW_PRODUCT}"
        )


def _arithmetic(result: CaseResult, share: Estimate) -> str:
    """The case and its share, spelled out as far as its parts are known."""
    axes, flops, step = result.axes, result.of(FLOPS), result.of(STEP)
    assert share.value is not None
    text = _percent(share.value)
    if flops is None or flops.value is None or step is None or step.value is None:
        return f"{axes.case_id}: {text}"
    distinct = _distinct(axes)
    each = flops.value / (step.value * distinct * share.value)
    devices = "1 device" if distinct == 1 else f"{distinct} devices"
    return (
        f"{axes.case_id}: {_amount(flops.value)}FLOP a step / ({step.value:.4g} s x {devices} x "
        f"{_amount(each)}FLOP/s) = {text}"
    )


def _distinct(axes: Launch) -> int:
    """Devices of the case; one that is listed twice has its arithmetic once."""
    devices: Sequence[int] = axes.devices
    return len(set(devices)) or axes.num_devices


def _amount(value: float) -> str:
    """Three digits with a prefix, e.g. `12.3 T`."""
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES if value >= size), (1.0, ""))
    return f"{value / size:.3g} {prefix}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
