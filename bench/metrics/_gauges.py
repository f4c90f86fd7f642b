"""What the watcher read in the measured rounds, for the metrics that rest on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench.metrics.base import Value
from bench.schema import Moment, Trace

AVERAGED_SECONDS = 1.0
"""NVML averages utilization over up to 1 s, power on most cards over 1 s; the energy counter moves in steps."""
NOT_WATCHED = "the launch was not watched"


def measured_moments(trace: Trace, position: int) -> list[Moment]:
    """The moments of one device inside the measured rounds, in order of time."""
    found = [moment for moment in trace.timeline if moment.measured and moment.device_index == position]
    return sorted(found, key=lambda moment: moment.elapsed_seconds)


def readings(trace: Trace, position: int, gauge: str) -> list[tuple[float, float]]:
    """(elapsed seconds, value) wherever the gauge of one device was read in the measured rounds."""
    read = ((moment.elapsed_seconds, getattr(moment, gauge)) for moment in measured_moments(trace, position))
    return [(seconds, float(value)) for seconds, value in read if value is not None]


def why_absent(trace: Trace, position: int, gauge: str) -> str:
    """Why a gauge of one device has no reading: the watcher's own reason where it gave one."""
    moments = [moment for moment in trace.timeline if moment.device_index == position]
    reasons = (item.value for moment in moments for item in moment.unavailable if item.name == gauge)
    return next(reasons, f"{gauge} was not read in the measured rounds" if moments else NOT_WATCHED)


def too_short(seconds: float) -> str | None:
    """What qualifies an average over less than NVML's own window; None for one that is long enough."""
    if seconds >= AVERAGED_SECONDS:
        return None
    return f"too short: read over {seconds:.1f} s, and the GPU averages over up to {AVERAGED_SECONDS:g} s"


def gauge_values(
    trace: Trace, gauge: str, summary: Callable[[Sequence[float]], float], *, averaged: bool
) -> Iterable[Value]:
    """One value per GPU: `summary` of its readings in the measured rounds, or null with the reason; nothing on CPU.

    `averaged`: the GPU averages this gauge itself, so that a short window gets a note.
    """
    if trace.case.device_type != "cuda":
        return
    for position in range(len(trace.devices)):
        found = readings(trace, position, gauge)
        if not found:
            yield Value(value=None, device_index=position, note=why_absent(trace, position, gauge))
            continue
        note = too_short(found[-1][0] - found[0][0]) if averaged else None
        yield Value(value=summary([value for _, value in found]), device_index=position, note=note)
