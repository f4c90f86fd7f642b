import math

import numpy as np
import pytest

from bench.analysis.intervals import mean_interval, ratio_interval, t_quantile

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
