"""Statistics of durations in the order in which they were taken: do they move, and how well is their middle known?

Rank statistics throughout: they hold for any distribution, so neither the scale of the noise nor a
spike has to be known or removed. A machine whose rounds spread by 7 % and one with 0.3 % are
treated alike. All of them take values above 0. Pure arithmetic, standard library only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEAST_FOR_A_TREND = 4
LEAST_FOR_AN_INTERVAL = 6
"""Below that even the smallest and the largest value enclose the median with less than 95 %."""
DRIFT_TOLERANCE = 0.01
DRIFT_LEVEL = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a series moves. change: from its first to its last value over its median, -0.07 is 7 % faster.

    p_value: how often a series that does not move shows a trend as clear as this, or clearer.
    """

    change: float
    p_value: float


def trend(values: Sequence[float]) -> Trend | None:
    """The trend of a series, None for fewer than 4 values.

    The p-value is that of Mann and Kendall (Mann, Econometrica 13, 1945; Kendall, Rank Correlation
    Methods, 1975): S = pairs in which the later value is larger, less those in which it is smaller; two-sided,
    by the normal approximation with correction for ties and continuity, which is within 0.011 of the exact
    figure wherever that is at most 0.15. The change is Sen's slope (JASA 63, 1968), the median over all pairs of
    difference by distance, times the n - 1 steps from first to last. Values that depend on their neighbours
    (noise that comes in waves) make p too small. Time and memory grow with the square of n.

    Example: 4, 3, 2, 1 has S = -6, variance 4 x 3 x 13 / 18 = 8.67, z = 5 / 2.94 = 1.70, p = 0.089 (exact: 2 / 24);
    slope -1, change -3 / 2.5 = -1.2.
    """
    count = len(values)
    if count < LEAST_FOR_A_TREND:
        return None
    pairs = [(j - i, values[j] - values[i]) for i in range(count) for j in range(i + 1, count)]
    score = sum((difference > 0) - (difference < 0) for _, difference in pairs)
    ties = sum(size * (size - 1) * (2 * size + 5) for size in Counter(values).values())
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    p_value = math.erfc((abs(score) - 1) / math.sqrt(2 * variance)) if score else 1.0
    slope = median(difference / distance for distance, difference in pairs)
    return Trend(change=slope * (count - 1) / median(values), p_value=p_value)


def drift(values: Sequence[float], *, tolerance: float = DRIFT_TOLERANCE, level: float = DRIFT_LEVEL) -> Trend | None:
    """The trend of a series that is clear (p at most `level`) and large enough to matter (above `tolerance`).

    None where it is not both, and for fewer than 4 values. With the default level one series in a hundred that does
    not move is called moving: who looks at many must expect so many.
    """
    found = trend(values)
    return found if found and found.p_value <= level and abs(found.change) > tolerance else None


def late_step(values: Sequence[float]) -> float | None:
    """The step that the last three values show: their median over that of those before, less 1. None for no step.

    They show one where their median lies below, or above, every value before them. A trend's test sees a step
    only once about a third of the values lies behind it; this one sees it from the second on, and a single
    spike in three does not count. A series of n values that does not move shows one with 12 / (n (n - 1)): the two
    smallest, or the two largest, must be among the last three. None for fewer than 6 values.
    """
    if len(values) < 6:
        return None
    before, last = values[:-3], median(values[-3:])
    return None if min(before) <= last <= max(before) else last / median(before) - 1


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Ends of the 95 % interval of the median, None for fewer than 6 values.

    The k-th smallest and the k-th largest value, with the largest k that holds it: each lies beyond the median with
    P(B < k), B binomial with n trials of 1/2, which must be at most 2.5 % (Conover, Practical Nonparametric Statistics,
    3rd ed. 1999, section 3.2; Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, ch. 2);
    for any distribution of independent values. Those that depend on their neighbours make it too narrow.

    Example: of 10 values the second from each end, with 1 - 2 (1 + 10) / 1024 = 97.9 %; the third would have 89 %.
    """
    count = len(values)
    if count < LEAST_FOR_AN_INTERVAL:
        return None
    rank, below = 0, 1  # below: ways in which fewer than rank + 1 of the values lie under the median
    while 40 * below <= 2**count:
        rank += 1
        below += math.comb(count, rank)
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


def relative_half_width(values: Sequence[float]) -> float | None:
    """Half the width of the median's 95 % interval over the median, None for fewer than 6 values."""
    interval = median_interval(values)
    return None if interval is None else (interval[1] - interval[0]) / 2 / median(values)


def percentile_10(values: Sequence[float]) -> float:
    """The 10th percentile by (n + 1) / 10 (type 6 of Hyndman and Fan, 1996); the smallest of fewer than 10 values."""
    ordered = sorted(values)
    place = (len(ordered) + 1) / 10
    below = int(place)
    if below < 1:
        return ordered[0]
    return ordered[below - 1] + (place - below) * (ordered[below] - ordered[below - 1])


def percent_text(fraction: float) -> str:
    """A fraction as a percentage of two digits: 0.0083 is 0.83 %, 1.234 is 123 %."""
    percent = 100 * fraction
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{percent:.2g} %"
