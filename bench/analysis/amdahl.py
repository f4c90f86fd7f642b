"""What part of a step does not become faster with more devices. Pure arithmetic, no table knows of it.

Amdahl's law (AFIPS Spring Joint Computer Conference 1967): T(n) = T(1) x (s + (1 - s) / n), with s the serial
fraction. Of one number of devices follows the fraction that Karp and Flatt determine by experiment
(CACM 33(5), 1990): e = (1 / S - 1 / n) / (1 - 1 / n), with S the speed-up. Over several, s and T(1) are fitted by least
squares on logarithms, every number of devices counting alike, as launches differ by factors.

The interval of s comes from the launches: how the fit goes with each mean (to first order), times that mean's own
variance, with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946), rounded down. This is Welch's interval
where there are two means. From `LEAST_TURNS` launches on each turn is fitted by itself, so that what hits a whole
turn drops out, and Student's t taken over the turns. It is formed for log T(N) / T(1) at the most devices N, in which
the fit is nearly linear, and carried over to s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from bench.analysis.intervals import LEAST_TURNS, Interval, t_quantile

LEAST_COUNTS = 3
"""Numbers of devices from which a fit can contradict its points."""
FAR = 3.0
"""Points that lie so many times as far from the curve as their launches explain are not described by it."""
_MOST_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The step seconds of every launch at one number of devices, all above 0."""

    count: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Amdahl's law through several points.

    serial: the fraction s, without ends where a point has a single launch; below 0 the speed-up is more than linear,
    above 1 more devices are slower than one. seconds: T(1) of the fit. off: how far each point lies above the curve, by
    its count (0.02: 2 % slower). poor: whether they lie `FAR` beyond what launches explain; None with one launch.
    """

    serial: Interval
    seconds: float
    off: tuple[tuple[int, float], ...]
    poor: bool | None

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(count for count, _ in self.off)

    @property
    def furthest(self) -> tuple[int, float]:
        """The count whose point lies furthest from the curve, and by how much."""
        return max(self.off, key=lambda item: abs(item[1]))

    def speedup(self, count: float) -> float:
        """T(1) / T(count) by the fit."""
        return 1 / (self.serial.value + (1 - self.serial.value) / count)


def serial_fraction(speedup: Interval, count: int) -> Interval:
    """Karp and Flatt's serial fraction of a speed-up on `count` >= 2 devices, with its interval carried over.

    0 for a linear speed-up, 1 for none.
    """
    if count < 2:
        raise ValueError(f"{count} device has no serial fraction; it needs 2 or more")

    def of(value: float) -> float:
        return (1 / value - 1 / count) / (1 - 1 / count)

    if speedup.low is None or speedup.high is None:
        return Interval(value=of(speedup.value))
    return Interval(value=of(speedup.value), low=of(speedup.high), high=of(speedup.low))


def fit_amdahl(points: Sequence[Point]) -> Fit:
    """Amdahl's law through points of at least `LEAST_COUNTS` numbers of devices; ValueError with fewer."""
    points = sorted(points, key=lambda point: point.count)
    counts = [point.count for point in points]
    if len(set(counts)) < max(LEAST_COUNTS, len(counts)):
        raise ValueError(f"{len(set(counts))} different numbers of devices; a fit needs {LEAST_COUNTS}, each once")
    logs = [[math.log(value) for value in point.seconds] for point in points]
    curve = _through(counts, [fmean(values) for values in logs])
    spread = _spread(counts, logs, curve)
    noise, half = (None, None) if spread is None else spread
    squares = math.fsum(value * value for value in curve.rest)
    most, middle = counts[-1], curve.log_ratio
    ends = (None, None) if half is None else (_serial(most, middle - half), _serial(most, middle + half))
    return Fit(
        serial=Interval(value=_serial(most, middle), low=ends[0], high=ends[1]),
        seconds=math.exp(curve.level),
        off=tuple((count, math.expm1(value)) for count, value in zip(counts, curve.rest, strict=True)),
        # What rounding leaves of an exact fit is no misfit.
        poor=None if noise is None else squares > max(FAR * FAR * noise, 1e-24),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """log T(1), log T(N) / T(1), what each point lies above, and how log T(N) / T(1) goes with each (first order)."""

    level: float
    log_ratio: float
    rest: tuple[float, ...]
    weights: tuple[float, ...]


def _serial(most: int, log_ratio: float) -> float:
    return (math.exp(log_ratio) - 1 / most) / (1 - 1 / most)


def _shape(count: int, most: int, log_ratio: float) -> tuple[float, float]:
    """log T(count) / T(1) where log T(most) / T(1) is `log_ratio`, and its slope, from 0 to 1."""
    part = (1 - 1 / count) / (1 - 1 / most)
    grows = part * math.exp(log_ratio)
    relative = grows + (1 / count - part / most)
    return math.log(relative), grows / relative


def _through(counts: Sequence[int], means: Sequence[float]) -> _Curve:
    """Least squares by Gauss and Newton's steps, halved until each is an improvement."""
    most, log_ratio = counts[-1], means[-1] - means[0]
    level, rest, slopes = _beside(counts, means, most, log_ratio)
    for _ in range(_MOST_STEPS):
        squares = math.fsum(value * value for value in rest)
        step = math.fsum(slope * value for slope, value in zip(slopes, rest, strict=True))
        step /= math.fsum(slope * slope for slope in slopes)
        if abs(step) < 1e-13:
            break
        while True:
            found = _beside(counts, means, most, log_ratio + step)
            if math.fsum(value * value for value in found[1]) <= squares or abs(step) < 1e-13:
                break
            step /= 2
        log_ratio += step
        level, rest, slopes = found
    total = math.fsum(slope * slope for slope in slopes)
    return _Curve(level=level, log_ratio=log_ratio, rest=rest, weights=tuple(slope / total for slope in slopes))


def _beside(
    counts: Sequence[int], means: Sequence[float], most: int, log_ratio: float
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """The best log T(1) beside a `log_ratio`, what each mean lies above the curve, and the slopes less their mean."""
    shapes = [_shape(count, most, log_ratio) for count in counts]
    level = fmean(mean - value for mean, (value, _) in zip(means, shapes, strict=True))
    middle = fmean(slope for _, slope in shapes)
    rest = tuple(mean - value - level for mean, (value, _) in zip(means, shapes, strict=True))
    return level, rest, tuple(slope - middle for _, slope in shapes)


def _spread(counts: Sequence[int], logs: Sequence[Sequence[float]], curve: _Curve) -> tuple[float, float] | None:
    """What launches explain of the sum of squares beside the curve, and the half-width of log T(N) / T(1)."""
    sizes = {len(values) for values in logs}
    if min(sizes) < 2:
        return None
    if len(sizes) == 1 and min(sizes) >= LEAST_TURNS:
        turns = [_through(counts, turn) for turn in zip(*logs, strict=True)]
        ratios = [turn.log_ratio for turn in turns]
        noise = math.fsum(variance([turn.rest[place] for turn in turns]) for place in range(len(counts))) / len(turns)
        return noise, t_quantile(len(turns) - 1) * math.sqrt(variance(ratios) / len(turns))
    means = [variance(values) / len(values) for values in logs]
    squares = math.fsum(weight * weight for weight in curve.weights)
    # A point's part of the noise that is left beside a fitted level and a fitted curve.
    left = (1 - 1 / len(counts) - weight * weight / squares for weight in curve.weights)
    noise = math.fsum(part * value for part, value in zip(left, means, strict=True))
    return noise, _satterthwaite_half([w * w * v for w, v in zip(curve.weights, means, strict=True)], logs)


def _satterthwaite_half(variances: Sequence[float], logs: Sequence[Sequence[float]]) -> float:
    """Half-width of the 95 % interval of a sum of means; `variances`: what each adds, from so many launches."""
    total = math.fsum(variances)
    if total == 0:
        return 0.0
    freedom = total**2 / math.fsum(v * v / (len(of) - 1) for v, of in zip(variances, logs, strict=True))
    return t_quantile(freedom) * math.sqrt(total)
