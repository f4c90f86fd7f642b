"""Whether the clocks of the GPUs were held back."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics._gauges import measured_moments, why_absent
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

THROTTLED_PERCENT = Metric(
    name="throttled_percent",
    unit="%",
    meaning="share of the readings in the measured rounds at which power, heat or the driver held the clocks back",
    better="lower",
    per_device=True,
)
HARMLESS = {"gpu_idle", "applications_clocks_setting"}
"""What NVML names as a reason and is none to doubt a figure: nothing to do, and clocks that a person has set."""


@metric(THROTTLED_PERCENT)
def throttled_percent(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device, its note naming what held the clocks; nothing on CPU."""
    if trace.case.device_type != "cuda":
        return
    for position in range(len(trace.devices)):
        moments = measured_moments(trace, position)
        read = [set(filter(None, m.throttle_reasons.split("|"))) for m in moments if m.throttle_reasons is not None]
        if not read:
            yield Value(value=None, device_index=position, note=why_absent(trace, position, "throttle_reasons"))
            continue
        held = [reasons - HARMLESS for reasons in read]
        share = 100 * sum(1 for reasons in held if reasons) / len(held)
        yield Value(value=share, device_index=position, note=", ".join(sorted(set().union(*held))) or None)
