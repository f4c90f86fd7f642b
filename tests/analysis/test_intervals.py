import math
from collections.abc import Sequence

import numpy as np
import pytest

from bench.analysis.intervals import (
    Reading,
    log_mean,
    mean_interval,
    pace_apart,
    ratio_at_equal_pace,
    ratio_interval,
    ratio_to_runs,
    t_quantile,
)

SIMULATED = 4000


def test_t_quantile_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in [*range(1, 61), 100, 1000]:
        assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)
    assert t_quantile(2.9) == t_quantile(2)
    with pytest.raises(ValueError, match="at least 1"):
        t_quantile(0.5)


def test_mean_by_hand() -> None:
    # logs 0 and ln 4: mean ln 2, sd ln4/sqrt2, half = 12.7062 * (ln4/sqrt2)/sqrt2 = 12.7062 * ln 2
    found = mean_interval([1.0, 4.0])
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0 / 2**12.706204736174694)
    assert found.high == pytest.approx(2.0 * 2**12.706204736174694)


def test_values_that_are_not_positive_are_averaged_as_they_are() -> None:
    # mean 1, sd 1, half = 4.30265 / sqrt 3
    found = mean_interval([0.0, 1.0, 2.0])
    assert found.value == 1.0
    assert found.high == pytest.approx(1 + 4.302652729749462 / math.sqrt(3))


def test_one_launch_has_no_interval() -> None:
    assert (mean_interval([3.0]).low, mean_interval([3.0]).high) == (None, None)
    assert ratio_interval([3.0], [2.0, 2.0]).contains(1.0) is None
    assert ratio_interval([3.0], [2.0]).value == pytest.approx(1.5)


def test_extremes_do_not_overflow() -> None:
    assert math.isfinite(mean_interval([1e-300, 1e300]).high or 0.0)


def test_ratio_by_hand() -> None:
    # logs (0, 2) and (0, 2): each variance 2 / 2 launches = 1; Welch df = 4 / (1 + 1) = 2; half = 4.30265 * sqrt 2
    found = ratio_interval([1.0, math.e**2], [1.0, math.e**2])
    assert found.value == pytest.approx(1.0)
    assert found.high == pytest.approx(math.exp(4.302652729749462 * math.sqrt(2)))
    assert found.contains(1.0) is True
    same = ratio_interval([2.0, 2.0], [1.0, 1.0])
    assert (same.value, same.low, same.high) == pytest.approx((2.0, 2.0, 2.0))
    with pytest.raises(ValueError, match="positive"):
        ratio_interval([1.0], [0.0])


@pytest.mark.parametrize("launches", [2, 3, 6])
def test_coverage_of_the_mean(launches: int) -> None:
    noise = np.random.default_rng(0).lognormal(math.log(100.0), 0.05, size=(SIMULATED, launches))
    inside = sum(mean_interval(row.tolist()).contains(100.0) is True for row in noise)
    assert 0.93 <= inside / SIMULATED <= 0.97


@pytest.mark.parametrize("launches", [2, 3, 6])
def test_coverage_of_a_ratio_is_at_least_its_promise(launches: int) -> None:
    """Rounding Welch's degrees of freedom down makes few launches wider than need be, never narrower."""
    noise = np.random.default_rng(1)
    above = noise.lognormal(math.log(200.0), 0.02, size=(SIMULATED, launches))
    below = noise.lognormal(math.log(100.0), 0.05, size=(SIMULATED, launches))
    pairs = zip(above, below, strict=True)
    inside = sum(ratio_interval(a.tolist(), b.tolist()).contains(2.0) is True for a, b in pairs)
    assert inside / SIMULATED >= 0.94


def readings(values: Sequence[float], paces: Sequence[float]) -> list[Reading]:
    pairs = zip(values, paces, strict=True)
    return [Reading(value=math.exp(value), pace=math.exp(pace)) for value, pace in pairs]


def test_ratio_at_equal_pace_by_hand() -> None:
    # Paces -0.1, 0, 0.1 within the base, 0.1, 0.2, 0.3 within the head: means 0 and 0.2, SS 0.02 + 0.02 = 0.04.
    # Times follow with slope 1/2, and 0.05 on top in the head, but for 0.01, -0.02, 0.01 in both: no slope explains it.
    rest = (0.01, -0.02, 0.01)
    base = readings([x / 2 + r for x, r in zip((-0.1, 0.0, 0.1), rest, strict=True)], (-0.1, 0.0, 0.1))
    head = readings([x / 2 + 0.05 + r for x, r in zip((0.1, 0.2, 0.3), rest, strict=True)], (0.1, 0.2, 0.3))
    found = ratio_at_equal_pace(head, [base])
    assert found is not None and found.low is not None and found.high is not None
    assert math.log(found.value) == pytest.approx(0.05)
    # Slope 1/2: what is left has variance 0.0006 / 2 in both, so Welch's half is t(4) x sqrt(2 x 0.0003 / 3);
    # the slope's standard error is sqrt(0.0012 / 3 / 0.04), with t(3) and the paces 0.2 apart.
    half = math.hypot(2.776445105197793 * math.sqrt(0.0002), 3.182446305283708 * math.sqrt(0.0004 / 0.04) * 0.2)
    assert math.log(found.high) == pytest.approx(0.05 + half)
    # Slope 1: 0.05 + 0.1 - 0.2 = -0.05, and sums of squares 0.02 / 4 + 0.0006 = 0.0056 in both.
    whole = 2.776445105197793 * math.sqrt(2 * 0.0056 / 2 / 3)
    assert math.log(found.low) == pytest.approx(-0.05 - whole)
    assert pace_apart(head, [base]) == pytest.approx(math.exp(0.2))


@pytest.mark.parametrize("noise_of_readings", [0.0, 0.01, 0.03])
def test_noisy_readings_of_the_pace_cause_no_alarm(noise_of_readings: float) -> None:
    """The same code on a machine that became 8 % slower; the noisier the readings, the smaller the slope they show."""
    noise, alarms = np.random.default_rng(3), 0
    for _ in range(500):
        groups = []
        for pace in (0.08, 0.0):
            paces = pace + noise.normal(0, 0.01, size=6)
            seen = paces + noise.normal(0, noise_of_readings, size=6)
            groups.append(readings((paces + noise.normal(0, 0.01, size=6)).tolist(), seen.tolist()))
        found = ratio_at_equal_pace(groups[0], groups[1:])
        assert found is not None and found.low is not None
        alarms += found.low > 1.03
    assert alarms / 500 <= 0.01


def test_a_single_launch_against_runs_of_several_has_no_interval() -> None:
    many = log_mean([1.0, 1.1, 0.9])
    assert ratio_to_runs(log_mean([1.2]), [many] * 4).low is None
    assert ratio_to_runs(log_mean([1.2]), [log_mean([1.0]), log_mean([1.1]), log_mean([0.9])]).low is not None


def test_without_a_pace_or_with_one_launch_nothing_can_be_allowed_for() -> None:
    paced, single = readings([0.0, 0.1], [0.0, 0.1]), readings([0.0], [0.0])
    bare = [Reading(value=1.0), Reading(value=2.0)]
    assert ratio_at_equal_pace(paced, [bare]) is None and pace_apart(paced, [bare]) is None
    assert ratio_at_equal_pace(paced, [single]) is None and ratio_at_equal_pace(single, [paced]) is None
    still = readings([0.0, 0.1], [0.0, 0.0])
    assert ratio_at_equal_pace(still, [still]) is None, "a pace that never moved explains nothing"
