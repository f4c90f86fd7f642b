"""What a metric is: a declaration, and a function from a trace to values. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.registry import Registry
from bench.schema import DeviceTrace, Metric, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of a metric. `device_index` is the position in the case's devices.

    `value=None` needs a note that says why it cannot be known.
    """

    value: float | None
    device_index: int | None = None
    round_index: int | None = None
    note: str | None = None


Compute = Callable[[Trace], Iterable[Value]]


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric with the function that computes it."""

    declaration: Metric
    compute: Compute


registry: Registry[Measured] = Registry("metric", "bench.metrics")


def metric(declaration: Metric) -> Callable[[Compute], Compute]:
    """Function decorator: `compute(trace)` yields the values of the declared metric.

    It yields nothing where the metric has no meaning for the trace (tokens of images).
    """

    def add(compute: Compute) -> Compute:
        registry.add(declaration.name, Measured(declaration, compute))
        return compute

    return add


def per_device(trace: Trace, read: Callable[[DeviceTrace], float | None], absent: str) -> Iterable[Value]:
    """One value per device of the trace; `absent` says why a missing one is missing."""
    for position, device in enumerate(trace.devices):
        value = read(device)
        yield Value(value=value, device_index=position, note=absent if value is None else None)
