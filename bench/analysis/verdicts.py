"""One of four words for a ratio with its interval."""

from __future__ import annotations

from typing import Literal, TypeAlias

from bench.analysis.intervals import Interval

Verdict: TypeAlias = Literal["faster", "slower", "same", "unclear"]
SAME = 0.01
"""An interval within +- this share is called `same`."""


def verdict_of(times_as_fast: Interval) -> Verdict:
    """The verdict on a ratio of speeds (above 1 is faster): it rests on the interval, never on the value alone.

    `same`: the interval lies inside +-1 %; `faster` or `slower`: it lies beyond 1; `unclear`: it holds 1 and reaches
    further, or there is none.
    """
    low, high = times_as_fast.low, times_as_fast.high
    if low is None or high is None:
        return "unclear"
    if low >= 1 - SAME and high <= 1 + SAME:
        return "same"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "unclear"


def inverse(ratio: Interval) -> Interval:
    """The ratio the other way round: of times as one of speeds."""
    flip = 1 / ratio.value
    if ratio.low is None or ratio.high is None:
        return Interval(value=flip)
    return Interval(value=flip, low=1 / ratio.high, high=1 / ratio.low)
