"""95 % intervals that keep their promise at two to twelve launches. Pure arithmetic, no table knows of it.

The unit is the launch, not the round: rounds of one launch share its memory layout, its clocks and its neighbours, so
that their spread says too little (Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013).
Launches of one case differ by factors, so the logarithms are averaged: the estimate is the
geometric mean and the interval is Student's t on the logarithms (Student, Biometrika 6, 1908;
a percentile bootstrap over 2 or 3 launches covers only 71 or 86 %). Two cases are compared
with Welch's t on the logarithms (Welch, Biometrika 34, 1947), degrees of freedom rounded down; where launches
were interleaved, turn by turn, so that what hits a whole turn drops out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

# t(0.975, df) for df = 1..30, from scipy.stats.t.ppf (scipy 1.17.1), checked against it in the tests.
_T_975 = (
    12.706204736174694, 4.302652729749462, 3.182446305283708, 2.776445105197793, 2.570581835636315,
    2.446911851144979, 2.364624251592784, 2.306004135204166, 2.262157162798205, 2.228138851986274,
    2.200985160091639, 2.178812829667228, 2.160368656462791, 2.144786687917804, 2.131449545559776,
    2.119905299221255, 2.109815577833316, 2.100922040241038, 2.093024054408309, 2.085963447265864,
    2.079613844727680, 2.073873067904025, 2.068657610419049, 2.063898561628025, 2.059538552753297,
    2.055529438642874, 2.051830516480285, 2.048407141795245, 2.045229642132703, 2.042272456301238,
)  # fmt: skip
_Z_975 = 1.959963984540054
LEAST_TURNS = 6
"""Turns from which interleaved launches are compared turn by turn: with fewer, that all had one order is not rare."""
LEAST_RUNS = 3
"""Runs from which their own spread is the measure of a difference between runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its 95 % interval; `low` and `high` are None with fewer than two launches."""

    value: float
    low: float | None = None
    high: float | None = None

    def contains(self, value: float) -> bool | None:
        """Whether `value` lies inside; None where there is no interval."""
        return None if self.low is None or self.high is None else self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMean:
    """A mean of logarithms, as an estimate keeps it. variance: of the mean, None with one value; count: of values."""

    mean: float
    variance: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one launch says: its value, and the pace of the machine beside it, None where it was not taken."""

    value: float
    pace: float | None = None


def log_mean_of(value: float | None, low: float | None, high: float | None, count: int | None) -> LogMean | None:
    """What lies behind a geometric mean of `count` values with the interval of `mean_interval`; None without one."""
    if value is None or count is None or count < 1 or value <= 0:
        return None
    if low is None or high is None or low <= 0 or count < 2:
        return LogMean(mean=math.log(value), variance=None, count=count)
    half = (math.log(high) - math.log(low)) / 2
    return LogMean(mean=math.log(value), variance=(half / t_quantile(count - 1)) ** 2, count=count)


def log_mean(values: Sequence[float]) -> LogMean:
    """The mean of the logarithms of positive values; ValueError where there is none, or one is not positive."""
    if not values or min(values) <= 0:
        raise ValueError("a mean of logarithms needs positive values")
    numbers = [math.log(value) for value in values]
    spread = variance(numbers) / len(numbers) if len(numbers) > 1 else None
    return LogMean(mean=fmean(numbers), variance=spread, count=len(numbers))


def t_quantile(freedom: float) -> float:
    """t(0.975) at `freedom` >= 1 degrees of freedom, rounded down.

    Beyond 30 the expansion around the normal quantile (Abramowitz and Stegun, 26.7.5), good to 1e-6.
    """
    # Welch's formula may fall a hair below a whole number.
    whole = math.floor(freedom + 1e-9)
    if whole < 1:
        raise ValueError(f"{freedom} degrees of freedom; Student's t needs at least 1")
    if whole <= len(_T_975):
        return _T_975[whole - 1]
    z = _Z_975
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / whole ** (power + 1) for power, term in enumerate(terms))


def mean_interval(values: Sequence[float]) -> Interval:
    """Geometric mean of positive values with its interval; the arithmetic one where a value is not positive.

    ValueError for no values.
    """
    if not values:
        raise ValueError("no values to average")
    positive = min(values) > 0
    numbers = [math.log(value) for value in values] if positive else list(values)
    middle = fmean(numbers)
    back: Callable[[float], float] = _exp if positive else float
    if len(values) == 1:
        return Interval(value=values[0])
    half = t_quantile(len(values) - 1) * math.sqrt(variance(numbers) / len(values))
    return Interval(value=back(middle), low=back(middle - half), high=back(middle + half))


def ratio_interval(values: Sequence[float], base: Sequence[float]) -> Interval:
    """Geometric mean of `values` over that of `base`, both positive, with its interval.

    No interval where either side has a single launch.
    """
    if not values or not base or min(*values, *base) <= 0:
        raise ValueError("a ratio needs positive values on both sides")
    return ratio_of(log_mean(values), log_mean(base))


def ratio_of(above: LogMean, below: LogMean) -> Interval:
    """The ratio of two geometric means with Welch's interval; none where either has one value."""
    middle = above.mean - below.mean
    if above.variance is None or below.variance is None:
        return Interval(value=_exp(middle))
    return _around(middle, welch_half(above.variance, above.count, below.variance, below.count))


def welch_half(a: float, count: int, b: float, other: int) -> float:
    """Half-width of Welch's 95 % interval of a difference of two means of variances `a` and `b`, of so many values."""
    if a + b == 0:
        return 0.0
    freedom = (a + b) ** 2 / (a**2 / (count - 1) + b**2 / (other - 1))
    return t_quantile(freedom) * math.sqrt(a + b)


def ratio_in_turns(values: Sequence[float], base: Sequence[float]) -> Interval:
    """The same of launches that were interleaved: `values[i]` and `base[i]` are of one turn.

    Student's t on the differences of logarithms, so that drift from turn to turn drops out; with fewer than
    `LEAST_TURNS` turns as `ratio_interval`, whose degrees of freedom are twice as many.
    """
    if len(values) != len(base) or len(values) < LEAST_TURNS:
        return ratio_interval(values, base)
    if min(*values, *base) <= 0:
        raise ValueError("a ratio needs positive values on both sides")
    return mean_interval([value / other for value, other in zip(values, base, strict=True)])


def ratio_at_equal_pace(head: Sequence[Reading], runs: Sequence[Sequence[Reading]]) -> Interval | None:
    """The ratio of one run's launches to those of others at an equal pace of the machine; None without the readings.

    Analysis of covariance (Fisher, Statistical Methods for Research Workers, 1932) on logarithms: within each run
    the time of a launch goes with the pace beside it by one common slope, from 0 to 1; what that explains of the
    difference between the runs is taken off. Then as `ratio_to_runs`, wider by the slope's own standard error.
    Noise of the readings makes that slope too small (Fuller, Measurement Error Models, 1987), so that the interval
    covers what follows from a slope of 1 as well: all of the machine's pace taken off.
    """
    groups = [head, *runs]
    freedom = sum(len(group) for group in groups) - len(groups) - 1
    known = all(item.pace is not None for group in groups for item in group)
    if min(len(group) for group in groups) < 2 or freedom < 1 or not known:
        return None
    values = [_centred([math.log(item.value) for item in group]) for group in groups]
    paces = [_centred([math.log(item.pace or 1.0) for item in group]) for group in groups]
    y, x = ([number for _, rest in of for number in rest] for of in (values, paces))
    squares = math.fsum(pace * pace for pace in x)
    if squares == 0:
        return None
    slope = math.fsum(pace * value for pace, value in zip(x, y, strict=True)) / squares
    left = math.fsum((value - slope * pace) ** 2 for pace, value in zip(x, y, strict=True)) / freedom
    apart = paces[0][0] - fmean(pace for pace, _ in paces[1:])
    unsure = t_quantile(freedom) * math.sqrt(left / squares) * abs(apart)
    value, *ends = _with_slope(groups, min(max(slope, 0.0), 1.0), unsure)
    _, *others = _with_slope(groups, 1.0, 0.0)
    return Interval(value=value, low=min(*ends, *others), high=max(*ends, *others))


def _with_slope(groups: Sequence[Sequence[Reading]], slope: float, unsure: float) -> tuple[float, float, float]:
    """Ratio, low and high of the first group to the others with so much pace taken off; `unsure` widens them."""
    head, *runs = (log_mean([item.value / (item.pace or 1.0) ** slope for item in group]) for group in groups)
    ratio = ratio_to_runs(head, runs)
    assert ratio.low is not None and ratio.high is not None  # each group has two launches
    half = math.hypot(math.log(ratio.high / ratio.low) / 2, unsure)
    return ratio.value, ratio.value * math.exp(-half), ratio.value * math.exp(half)


def pace_apart(head: Sequence[Reading], runs: Sequence[Sequence[Reading]]) -> float | None:
    """The machine's pace beside one run over that beside others (1.05: 5 % slower); None where it was not taken."""
    groups = [[item.pace for item in group if item.pace is not None] for group in (head, *runs)]
    if not all(groups):
        return None
    means = [fmean(math.log(pace) for pace in group) for group in groups]
    return _exp(means[0] - fmean(means[1:]))


def _centred(numbers: Sequence[float]) -> tuple[float, list[float]]:
    """The mean, and what each number differs from it."""
    middle = fmean(numbers)
    return middle, [number - middle for number in numbers]


def _of_one_more_run(means: Sequence[float]) -> float:
    """Half-width of the prediction interval for one more run of a kind; 0 for too few to tell."""
    if len(means) < LEAST_RUNS:
        return 0.0
    return t_quantile(len(means) - 1) * math.sqrt(variance(means) * (1 + 1 / len(means)))


def ratio_to_runs(head: LogMean, runs: Sequence[LogMean]) -> Interval:
    """The ratio of one run to the geometric mean of several, with the interval for one more run of their kind.

    With `LEAST_RUNS` runs or more their own spread is the measure: t x s x sqrt(1 + 1 / runs), with s the standard
    deviation of the runs' means (the prediction interval of a next observation), since what changes from one run
    to the next, such as a day or a boot, is in no launch's spread. The launches' interval holds if it is wider,
    and alone with fewer runs. No interval for a single launch against runs of several. ValueError for no runs.
    """
    if not runs:
        raise ValueError("no runs to compare with")
    among = ratio_of(head, pooled(runs))
    # The runs' spread holds the noise of as many launches as they have: one launch alone may differ by more.
    if len(runs) < LEAST_RUNS or head.count < min(2, *(run.count for run in runs)):
        return among
    means = [run.mean for run in runs]
    middle = head.mean - fmean(means)
    half = _of_one_more_run(means)
    if among.low is not None and among.high is not None:
        half = max(half, math.log(among.high / among.low) / 2)
    return _around(middle, half)


def pooled(runs: Sequence[LogMean]) -> LogMean:
    """The mean of the runs' means, each run counting alike; its variance from their launches, as far as it is known."""
    known = [run.variance for run in runs if run.variance is not None]
    complete = len(known) == len(runs)
    return LogMean(
        mean=fmean(run.mean for run in runs),
        variance=sum(known) / len(runs) ** 2 if complete else None,
        # Each run's own mean is taken out: as many degrees of freedom are lost.
        count=sum(run.count - 1 for run in runs) + 1,
    )


def _around(middle: float, half: float) -> Interval:
    return Interval(value=_exp(middle), low=_exp(middle - half), high=_exp(middle + half))


def _exp(value: float) -> float:
    # Two launches that lie many powers of ten apart have an interval beyond what a float holds.
    return math.exp(max(-700.0, min(700.0, value)))
