"""Amdahl's law and Karp and Flatt's fraction: numbers worked out by hand, and coverage by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from bench.analysis.amdahl import Fit, Point, fit_amdahl, serial_fraction
from bench.analysis.intervals import Interval, ratio_interval

SIMULATED = 600
# Three standard errors of so many simulations below 95 %.
LEAST_COVERED = 0.95 - 3 * math.sqrt(0.05 * 0.95 / SIMULATED)


def points(times: dict[int, Sequence[float]]) -> list[Point]:
    return [Point(count=count, seconds=tuple(seconds)) for count, seconds in times.items()]


def exact(serial: float, counts: Sequence[int], seconds: float = 1.0) -> list[Point]:
    """One launch each, on the curve."""
    return points({count: [seconds * (serial + (1 - serial) / count)] for count in counts})


# --- Karp and Flatt -------------------------------------------------------------------------------------


def test_serial_fraction_by_hand() -> None:
    # S = 1.6 on 2: (0.625 - 0.5) / 0.5 = 0.25. S = 2.5 on 4: (0.4 - 0.25) / 0.75 = 0.2.
    assert serial_fraction(Interval(value=1.6), 2) == Interval(value=pytest.approx(0.25))
    assert serial_fraction(Interval(value=2.5), 4).value == pytest.approx(0.2)
    assert serial_fraction(Interval(value=4.0), 4).value == pytest.approx(0.0), "linear"
    assert serial_fraction(Interval(value=1.0), 4).value == pytest.approx(1.0), "no speed-up"
    # S = 5 on 4: (0.2 - 0.25) / 0.75 = -1/15. S = 0.8: (1.25 - 0.25) / 0.75 = 4/3.
    assert serial_fraction(Interval(value=5.0), 4).value == pytest.approx(-1 / 15), "more than linear"
    assert serial_fraction(Interval(value=0.8), 4).value == pytest.approx(4 / 3), "slower than one"


def test_the_faster_end_is_the_smaller_fraction() -> None:
    found = serial_fraction(Interval(value=1.6, low=1.25, high=2.0), 2)
    # 1 / 2 is linear: 0. 1 / 1.25 = 0.8: 0.6.
    assert (found.low, found.high) == (pytest.approx(0.0), pytest.approx(0.6))


def test_one_device_has_no_serial_fraction() -> None:
    with pytest.raises(ValueError, match="needs 2 or more"):
        serial_fraction(Interval(value=1.0), 1)


# --- Amdahl ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serial", [-0.05, 0.0, 0.1, 0.5, 1.0, 1.2])
@pytest.mark.parametrize("counts", [(1, 2, 4), (1, 2, 3, 4, 5, 6, 7, 8), (2, 3, 8)])
def test_points_on_a_curve_give_that_curve(serial: float, counts: tuple[int, ...]) -> None:
    fit = fit_amdahl(exact(serial, counts, seconds=0.25))
    assert fit.serial.value == pytest.approx(serial, abs=1e-9)
    assert fit.seconds == pytest.approx(0.25)
    assert fit.counts == counts and max(abs(off) for _, off in fit.off) < 1e-9
    assert fit.speedup(4) == pytest.approx(1 / (serial + (1 - serial) / 4))


def test_by_hand() -> None:
    # s = 0.1: T(2) = 0.1 + 0.45 = 0.55, T(4) = 0.1 + 0.225 = 0.325 of T(1).
    fit = fit_amdahl(points({1: [0.2], 2: [0.11], 4: [0.065]}))
    assert fit.serial.value == pytest.approx(0.1) and fit.seconds == pytest.approx(0.2)


def test_order_does_not_matter_and_each_count_counts_alike() -> None:
    given = points({1: [1.0, 1.02], 2: [0.6, 0.61], 4: [0.4, 0.38]})
    assert fit_amdahl(given) == fit_amdahl(given[::-1])
    # A point that says the same in more launches pulls no more.
    doubled = points({1: [1.0, 1.02], 2: [0.6, 0.61] * 2, 4: [0.4, 0.38]})
    assert fit_amdahl(doubled).serial.value == pytest.approx(fit_amdahl(given).serial.value)


def test_no_other_curve_lies_nearer() -> None:
    times = {1: 1.0, 2: 0.5, 3: 0.52, 4: 0.6}
    fit = fit_amdahl(points({count: [value] for count, value in times.items()}))

    def squares(serial: float) -> float:
        logs = [math.log(value / (serial + (1 - serial) / count)) for count, value in times.items()]
        return sum((value - sum(logs) / len(logs)) ** 2 for value in logs)

    best = squares(fit.serial.value)
    assert best == pytest.approx(sum(math.log1p(off) ** 2 for _, off in fit.off))
    assert best < min(squares(fit.serial.value + step) for step in (-0.1, -0.01, -0.001, 0.001, 0.01, 0.1))


@pytest.mark.parametrize("counts", [(), (1,), (1, 2), (1, 2, 2)])
def test_fewer_than_three_counts_are_no_ground_for_a_fit(counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a fit needs 3"):
        fit_amdahl([Point(count=count, seconds=(1.0 / count,)) for count in counts])


def test_one_launch_gives_neither_an_interval_nor_a_verdict_on_the_fit() -> None:
    fit = fit_amdahl(exact(0.1, (1, 2, 4)))
    assert (fit.serial.low, fit.serial.high, fit.poor) == (None, None, None)
    mixed = points({1: [1.0, 1.01], 2: [0.55], 4: [0.325, 0.32]})
    assert fit_amdahl(mixed).serial.low is None and fit_amdahl(mixed).poor is None


def test_launches_that_are_all_equal_leave_a_point_interval() -> None:
    fit = fit_amdahl(points({1: [1.0] * 3, 2: [0.55] * 3, 4: [0.325] * 3}))
    assert fit.serial.low == pytest.approx(0.1) == fit.serial.high and fit.poor is False
    assert fit_amdahl(points({1: [1.0] * 3, 2: [0.5] * 3, 4: [0.5] * 3})).poor is True


def test_where_one_point_has_no_pull_the_interval_is_that_of_karp_and_flatt_by_welch() -> None:
    # s = 1/3: T(2) = 2/3, T(4) = 1/2. There log T(2) moves half as much as log T(4) / T(1), as their mean does: the
    # point between pulls at the level alone, and its noise does not count.
    one, two, four = (1.1, 1 / 1.1), (2 / 3 * 1.2, 2 / 3 / 1.2), (0.5 * 1.05, 0.5 / 1.05)
    fit = fit_amdahl(points({1: one, 2: two, 4: four}))
    expected = serial_fraction(ratio_interval(one, four), 4)
    assert fit.serial.value == pytest.approx(1 / 3) == expected.value
    assert (fit.serial.low, fit.serial.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_a_curve_that_turns_back_is_a_poor_fit_and_names_where() -> None:
    noise = np.random.default_rng(0)
    times = {1: 1.0, 2: 0.52, 3: 0.50, 4: 0.56}
    fit = fit_amdahl(points({n: (t * noise.lognormal(0, 0.005, size=6)).tolist() for n, t in times.items()}))
    assert fit.poor is True and fit.furthest[0] == 2 and fit.furthest[1] < -0.1


# --- coverage -------------------------------------------------------------------------------------------


def simulated(
    noise: np.random.Generator, serial: float, counts: Sequence[int], launches: int, *, turns: float = 0.0
) -> Fit:
    """Launches that differ by 5 %; `turns`: how far whole turns do."""
    drift = noise.normal(0, turns, size=launches)
    logs = {n: math.log(serial + (1 - serial) / n) + drift + noise.normal(0, 0.05, size=launches) for n in counts}
    return fit_amdahl(points({n: np.exp(values).tolist() for n, values in logs.items()}))


@pytest.mark.parametrize("launches", [2, 3, 6, 12])
@pytest.mark.parametrize(("serial", "counts"), [(0.1, (1, 2, 4)), (0.02, (1, 2, 3, 4)), (0.9, (1, 2, 4))])
def test_the_interval_covers_and_a_true_law_is_seldom_called_poor(
    launches: int, serial: float, counts: tuple[int, ...]
) -> None:
    noise = np.random.default_rng(launches)
    fits = [simulated(noise, serial, counts, launches) for _ in range(SIMULATED)]
    assert sum(fit.serial.contains(serial) is True for fit in fits) / SIMULATED >= LEAST_COVERED
    assert sum(fit.poor is True for fit in fits) / SIMULATED < (0.12 if launches == 2 else 0.07)


def test_turn_by_turn_covers_under_drift_and_is_sharper() -> None:
    noise = np.random.default_rng(0)
    fits = [simulated(noise, 0.1, (1, 2, 4), 6, turns=0.2) for _ in range(SIMULATED)]
    assert sum(fit.serial.contains(0.1) is True for fit in fits) / SIMULATED >= LEAST_COVERED
    widths = [fit.serial.high - fit.serial.low for fit in fits if fit.serial.high and fit.serial.low is not None]
    still = [simulated(noise, 0.1, (1, 2, 4), 6) for _ in range(SIMULATED)]
    alone = [fit.serial.high - fit.serial.low for fit in still if fit.serial.high and fit.serial.low is not None]
    assert np.median(widths) == pytest.approx(float(np.median(alone)), rel=0.1)
