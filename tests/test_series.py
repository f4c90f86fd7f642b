"""Trend, step and interval of a series, against numbers worked out by hand and exact distributions."""

from __future__ import annotations

import math
import random
from itertools import permutations
from statistics import median

import pytest

from bench.series import (
    Trend,
    drift,
    late_step,
    median_interval,
    percent_text,
    relative_half_width,
    trend,
)


def test_a_fall_by_the_same_amount_each_time() -> None:
    # S = -6 of 6 pairs; variance 4 * 3 * 13 / 18 = 26 / 3; z = 5 / sqrt(26 / 3) = 1.698
    found = trend([4.0, 3.0, 2.0, 1.0])
    assert found is not None
    assert (
        found.p_value
        == pytest.approx(math.erfc(5 / math.sqrt(26 / 3) / math.sqrt(2)))
        == pytest.approx(0.0894, abs=1e-4)
    )
    assert found.change == pytest.approx(-3 / 2.5)  # slope -1 over 3 steps, median 2.5


def test_slope_is_the_median_over_all_pairs() -> None:
    # Slopes 10 20 30, 0 -9 / 2 ... of 1, 2, 3, 4, 50: all pairs among the first four have slope 1 (six of ten).
    found = trend([1.0, 2.0, 3.0, 4.0, 50.0])
    assert found is not None and found.change == pytest.approx(4 / 3)  # 1 * 4 steps over the median 3


def test_ties_lower_the_variance_and_equal_values_have_no_trend() -> None:
    assert trend([2.0, 2.0, 2.0, 2.0]) == Trend(change=0.0, p_value=1.0)
    # S = 4 (four pairs of a 1 and a later 2); variance (4 * 3 * 13 - 2 * (2 * 1 * 9)) / 18 = 120 / 18
    found = trend([1.0, 1.0, 2.0, 2.0])
    assert found is not None and found.p_value == pytest.approx(math.erfc(3 / math.sqrt(2 * 120 / 18)))


def test_three_values_have_no_trend_to_tell() -> None:
    assert trend([3.0, 2.0, 1.0]) is None and trend([]) is None and drift([3.0, 2.0, 1.0]) is None


@pytest.mark.parametrize("count", [4, 5, 6, 7])
def test_p_value_is_near_the_exact_one(count: int) -> None:
    """Over all orders, which are equally likely where nothing moves."""
    figures = [trend(order) for order in permutations([float(value) for value in range(1, count + 1)])]
    p_values = sorted(found.p_value for found in figures if found is not None)
    assert len(p_values) == math.factorial(count)
    for p_value in {value for value in p_values if value <= 0.15}:
        exact = sum(value <= p_value for value in p_values) / len(p_values)
        assert exact <= 0.15 and abs(exact - p_value) <= 0.011


def test_drift_must_be_clear_and_large_enough() -> None:
    falling = [1.0 - 0.002 * index for index in range(10)]  # 1.8 % over 9 steps, S = -45: p far below 0.01
    found = drift(falling)
    assert found is not None and found.change == pytest.approx(-0.018 / median(falling))
    assert drift(falling, tolerance=0.02) is None
    # 4 values in order: p = 0.089
    assert drift([4.0, 3.0, 2.0, 1.0]) is None and drift([4.0, 3.0, 2.0, 1.0], level=0.1) is not None


def test_noise_is_called_drifting_about_as_often_as_the_level_says() -> None:
    generator = random.Random(7)
    series = [[math.exp(0.07 * generator.gauss(0, 1)) for _ in range(12)] for _ in range(3000)]
    # One in a hundred, less those whose slope is below 1 %: none at a noise of 7 %.
    assert 10 <= sum(drift(values) is not None for values in series) <= 50


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.0, 2.0], 2 / 3 - 1),  # two of the last three lie below all before
        ([3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.0], None),  # one does not count, a step or not
        ([3.0, 3.1, 3.2, 3.3, 4.0, 2.0, 4.0], 4 / 3.15 - 1),  # upward, above 3.3
        ([3.0, 3.1, 4.2, 3.3, 4.0, 2.0, 4.0], None),  # 4.0 is not above the spike
        ([3.0, 3.0, 2.0, 2.0, 2.0], None),  # too few
        ([], None),
    ],
)
def test_late_step(values: list[float], expected: float | None) -> None:
    assert late_step(values) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("count", [6, 7, 8])
def test_a_series_that_does_not_move_shows_a_late_step_as_often_as_said(count: int) -> None:
    orders = list(permutations([float(value) for value in range(1, count + 1)]))
    assert sum(late_step(order) is not None for order in orders) * count * (count - 1) == 12 * len(orders)


@pytest.mark.parametrize(
    ("count", "rank"),
    [
        (6, 1),  # 2 / 64 = 3.1 % outside; with the second 14 / 64
        (8, 1),  # the second: 2 * 9 / 256 = 7.0 % outside
        (9, 2),  # 2 * 10 / 512 = 3.9 %
        (10, 2),  # 2.1 %; the third: 2 * (1 + 10 + 45) / 1024 = 10.9 %
        (12, 3),  # 2 * (1 + 12 + 66) / 4096 = 3.9 %
        (20, 6),  # 2 * (1 + 20 + 190 + 1140 + 4845 + 15504) / 2^20 = 4.1 %
    ],
)
def test_ends_of_the_medians_interval(count: int, rank: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    random.Random(count).shuffle(values)
    assert median_interval(values) == (float(rank), float(count + 1 - rank))


def test_interval_holds_the_median_as_often_as_it_says() -> None:
    generator = random.Random(11)
    held = 0
    for _ in range(4000):
        # Skewed: the median of an exponential is log 2.
        interval = median_interval([generator.expovariate(1.0) for _ in range(10)])
        assert interval is not None
        held += interval[0] <= math.log(2) <= interval[1]
    assert held / 4000 == pytest.approx(1 - 22 / 1024, abs=0.008)  # 97.9 %, three and a half standard errors


def test_half_width_is_relative() -> None:
    values = [9.0, 10.0, 10.0, 10.0, 10.0, 12.0]
    assert relative_half_width(values) == pytest.approx(0.15)  # (12 - 9) / 2 / 10
    assert relative_half_width([1000 * value for value in values]) == pytest.approx(0.15)
    assert relative_half_width(values[:5]) is None and median_interval(values[:5]) is None


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0083, "0.83 %"), (0.024, "2.4 %"), (0.12, "12 %"), (1.234, "123 %"), (-0.07, "-7 %"), (0, "0 %")],
)
def test_percent_text(fraction: float, text: str) -> None:
    assert percent_text(fraction) == text
