"""95 % intervals that keep their promise at two to six launches. Pure arithmetic, no table knows of it.

Launches of one case differ by factors, so the logarithms are averaged: the estimate is the
geometric mean and the interval is Student's t on the logarithms (Student, Biometrika 6, 1908;
a percentile bootstrap over 2 or 3 launches covers only 71 or 86 %). Two cases are compared
with Welch's t on the logarithms (Welch, Biometrika 34, 1947), degrees of freedom rounded down.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its 95 % interval; `low` and `high` are None with fewer than two launches."""

    value: float
    low: float | None = None
    high: float | None = None

    def contains(self, value: float) -> bool | None:
        """Whether `value` lies inside; None where there is no interval."""
        return None if self.low is None or self.high is None else self.low <= value <= self.high


def t_quantile(freedom: float) -> float:
    """t(0.975) at `freedom` >= 1 degrees of freedom, rounded down.

    Beyond 30 the expansion around the normal quantile (Abramowitz and Stegun, 26.7.5), good to 1e-6.
    """
    whole = math.floor(freedom)
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
    above, below = [math.log(value) for value in values], [math.log(value) for value in base]
    middle = fmean(above) - fmean(below)
    if len(above) < 2 or len(below) < 2:
        return Interval(value=_exp(middle))
    a, b = variance(above) / len(above), variance(below) / len(below)
    if a + b == 0:
        return Interval(value=_exp(middle), low=_exp(middle), high=_exp(middle))
    freedom = (a + b) ** 2 / (a**2 / (len(above) - 1) + b**2 / (len(below) - 1))
    # Rounding in the formula may fall a hair below 1, its least possible value.
    half = t_quantile(max(freedom, 1.0)) * math.sqrt(a + b)
    return Interval(value=_exp(middle), low=_exp(middle - half), high=_exp(middle + half))


def _exp(value: float) -> float:
    # Two launches that lie many powers of ten apart have an interval beyond what a float holds.
    return math.exp(max(-700.0, min(700.0, value)))
