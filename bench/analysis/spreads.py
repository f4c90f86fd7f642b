"""A figure of a case with the values of its launches, and the ratio of two of them."""

from __future__ import annotations

from dataclasses import dataclass

from bench.analysis.intervals import Interval, ratio_in_turns
from bench.analysis.verdicts import Verdict, verdict_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """An estimate, its 95 % interval (None: too few launches) and the value of every launch."""

    value: float
    low: float | None
    high: float | None
    launches: tuple[float, ...]

    @property
    def smallest(self) -> float:
        return min(self.launches)

    @property
    def largest(self) -> float:
        return max(self.launches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Throughput over that of a reference. `basis`: at equal batch, or per device where that was not measured."""

    interval: Interval
    basis: str
    against: str

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.interval)


def versus(above: Spread | None, below: Spread | None) -> Interval | None:
    """The ratio of two cases of a run, turn by turn, since their launches were interleaved; None without figures."""
    if above is None or below is None or min(*above.launches, *below.launches) <= 0:
        return None
    return ratio_in_turns(above.launches, below.launches)


def surely_above(best: Spread | None, other: Spread | None) -> bool:
    """Whether the interval of the ratio of two rates lies above 1; False where there is none."""
    ratio = versus(best, other)
    return ratio is not None and ratio.low is not None and ratio.low > 1
