"""Figures as a reader wants them: one unit for all values of a chart or a column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.analysis.wording import number

_STEPS: dict[str, tuple[tuple[float, str], ...]] = {
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Divide a stored value by `size` to get it in `unit`."""

    size: float
    unit: str

    def number(self, value: float) -> str:
        """The value in this unit, without the unit."""
        return f"{value:,.0f}" if self.unit == "samples" else number(value / self.size)

    def text(self, value: float) -> str:
        """The value with its unit."""
        return f"{self.number(value)} {self.unit}"


def scale_of(values: Iterable[float | None], unit: str) -> Scale:
    """The largest unit in which the largest of the values is at least 1; bytes and seconds only, others stay."""
    steps = _STEPS.get(unit, ((1.0, unit),))
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    size, name = next(((size, name) for size, name in steps if largest >= size), steps[-1])
    return Scale(size=size, unit=name) if largest else Scale(size=steps[0][0], unit=steps[0][1])
