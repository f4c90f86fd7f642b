"""Energy that one sample costs."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics._gauges import readings, too_short, why_absent
from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

JOULES_PER_SAMPLE = Metric(
    name="joules_per_sample",
    unit="J",
    meaning="energy of the GPUs (of a device: its own) in the measured rounds over the unique samples of those rounds",
    better="lower",
    per_device=True,
)


@metric(JOULES_PER_SAMPLE)
def joules_per_sample(trace: Trace) -> Iterable[Value]:
    """One value per CUDA device and their sum for the whole case, null where a device lacks it; nothing on CPU.

    The mean power between the first and the last reading of the energy counter in the measured rounds,
    times the length of the rounds, over their samples: (E_n - E_1) / (t_n - t_1) x seconds / samples.
    """
    if trace.case.device_type != "cuda" or not trace.devices:
        return
    values = [_of_device(trace, position) for position in range(len(trace.devices))]
    yield from values
    # A device that is listed twice has one counter.
    distinct = [values[trace.case.devices.index(ordinal)] for ordinal in dict.fromkeys(trace.case.devices)]
    known = [value.value for value in distinct if value.value is not None]
    if len(known) == len(distinct):
        yield Value(value=sum(known), note=next((value.note for value in distinct if value.note), None))
    else:
        lacking = next(value for value in distinct if value.value is None)
        yield Value(value=None, note=f"device {lacking.device_index}: {lacking.note}")


def _of_device(trace: Trace, position: int) -> Value:
    found = readings(trace, position, "energy_joules")
    if not found:
        return Value(value=None, device_index=position, note=why_absent(trace, position, "energy_joules"))
    (start, before), (end, after) = found[0], found[-1]
    if end <= start or after < before:
        why = "two readings of the energy counter are needed" if end <= start else "the energy counter went back"
        return Value(value=None, device_index=position, note=f"{why}: {len(found)} in the measured rounds")
    samples = trace.case.global_batch_size * trace.steps_per_round * len(trace.round_seconds)
    joules = (after - before) / (end - start) * sum(trace.round_seconds)
    return Value(value=joules / samples, device_index=position, note=too_short(end - start))
