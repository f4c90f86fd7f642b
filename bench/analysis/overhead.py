"""What a strategy costs beside the arithmetic: its step time less `single`'s at the largest chunk.

`single` at that batch does what the busiest device of the case does, and nothing else. The rest is scattering,
replicating, gathering, communicating and waiting. The same definition holds for every strategy; that of
`single` itself is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from bench.analysis.cases import CaseResult, case_results
from bench.analysis.estimates import launch_values
from bench.analysis.intervals import Interval, welch_half
from bench.recording.reader import RunData
from bench.schema import Launch, NameValue

STEP = "step_seconds"
BASE = "single"
STRATEGY_OPTIONS = frozenset(
    {
        "gpu0_bsz", "loss_on", "bucket_cap_mb", "static_graph", "find_unused_parameters", "reshard_after_forward",
        "reduce_unused_parameters", "sharding_strategy", "gradient_as_bucket_view", "comm_hook", "mixed_precision",
        "cpu_offload", "prefetch", "shard_group",
    }
)  # fmt: skip
"""Settings that belong to one strategy. Every other setting is a lever, which `single` must have too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Seconds a step with their 95 % interval, or the reason why they are unknown. against: `single`'s case."""

    seconds: Interval | None = None
    against: str | None = None
    reason: str | None = None


def parallel_overheads(
    results: Sequence[CaseResult], launches: Mapping[str, Sequence[float]] | None = None
) -> dict[str, Overhead]:
    """The overhead of every case of a run by its text. `launches`: step seconds of each launch, by the case's text.

    Without these the value is the difference of the estimates, without an interval. Negative where the case
    was faster than `single` on its largest chunk.
    """
    known = launches or {}
    return {result.axes.case_id: _overhead(result, results, known) for result in results}


def run_overheads(data: RunData, results: Sequence[CaseResult] | None = None) -> dict[str, Overhead]:
    """The same from what was read of a run; `results` are its cases, where they are at hand."""
    values = launch_values(data.samples, data.launches)
    launches = {
        case_id: [item.value for item in found if item.value is not None]
        for (case_id, metric, device), found in values.items()
        if metric == STEP and device is None
    }
    return parallel_overheads(case_results(data) if results is None else results, launches)


def _overhead(result: CaseResult, results: Iterable[CaseResult], launches: Mapping[str, Sequence[float]]) -> Overhead:
    axes, own = result.axes, _steps(result, launches)
    if not own:
        return Overhead(reason=f"it has no step time: {result.reason or result.status}")
    if axes.strategy == BASE:
        return Overhead(seconds=Interval(value=0.0, low=0.0, high=0.0), against=axes.case_id)
    if not axes.chunk_sizes:
        return Overhead(reason="its chunk sizes are not known")
    batch = max(axes.chunk_sizes) * axes.accumulation_steps
    base = next((other for other in results if _is_base(other.axes, axes, batch)), None)
    if base is None:
        return Overhead(
            reason=f"no case of {BASE} at batch {batch} with the same levers, size, data and a device of this one; "
            f"add {batch} to --global-batch-size, or give --batch-per-device"
        )
    theirs = _steps(base, launches)
    if not theirs:
        return Overhead(reason=f"{base.axes.case_id} has no step time: {base.reason or base.status}")
    return Overhead(seconds=difference_interval(own, theirs), against=base.axes.case_id)


def _steps(result: CaseResult, launches: Mapping[str, Sequence[float]]) -> Sequence[float]:
    """Step seconds of each launch that ended ok, or the one estimate where they are not at hand."""
    estimate = result.of(STEP)
    alone = [estimate.value] if estimate is not None and estimate.value is not None else []
    return launches.get(result.axes.case_id) or alone


def _is_base(base: Launch, axes: Launch, batch: int) -> bool:
    return (
        base.strategy == BASE
        and base.global_batch_size == batch
        and set(base.devices) <= set(axes.devices)
        and _training(base) == _training(axes)
    )


def _training(launch: Launch) -> tuple[object, ...]:
    """What must be equal, so that one device computes the same on its chunk."""
    return (
        launch.workload, launch.size, launch.data, launch.device_type, launch.arithmetic, launch.accumulation_steps,
        _levers(launch),
    )  # fmt: skip


def _levers(launch: Launch) -> frozenset[NameValue]:
    return frozenset(item for item in launch.settings if item.name not in STRATEGY_OPTIONS)


def difference_interval(values: Sequence[float], base: Sequence[float]) -> Interval:
    """Mean of `values` less that of `base`, with Welch's 95 % interval (Biometrika 34, 1947), degrees rounded down.

    No interval where either side has a single launch. ValueError for no values.
    """
    if not values or not base:
        raise ValueError("a difference needs values on both sides")
    middle = fmean(values) - fmean(base)
    if len(values) < 2 or len(base) < 2:
        return Interval(value=middle)
    half = welch_half(variance(values) / len(values), len(values), variance(base) / len(base), len(base))
    return Interval(value=middle, low=middle - half, high=middle + half)
