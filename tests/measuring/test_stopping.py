"""When measured rounds end: the interval, the budget, a fixed number; never another case."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from bench.measuring.stopping import StoppingRule, rounds_end

RULE = StoppingRule(max_rounds=30, max_seconds=100.0, target=0.01)


def noise(scale: float, *, seed: int = 1) -> Iterator[float]:
    generator = random.Random(seed)
    while True:
        yield math.exp(scale * generator.gauss(0, 1))


def run(series: Iterator[float], rule: StoppingRule | None = RULE, least: int = 10) -> tuple[int, str]:
    """How many rounds it takes, and why they end."""
    seconds: list[float] = []
    while True:
        end = rounds_end(seconds, least, rule)
        if end is not None:
            return len(seconds), end
        seconds.append(next(series))


def test_interval_that_is_narrow_ends_it_with_its_half_width() -> None:
    # Ten rounds: from the second smallest, 0.992, to the second largest, 1.008; the median is 1.
    rounds = [0.5, 0.992, *[1.0] * 6, 1.008, 5.0]
    assert rounds_end(rounds, 10, RULE) == "interval within 0.8 % after 10 rounds"
    assert rounds_end(rounds[::-1], 10, RULE) == "interval within 0.8 % after 10 rounds"
    wider = [0.5, 0.98, *[1.0] * 6, 1.008, 5.0]  # (1.008 - 0.98) / 2 = 1.4 %
    assert rounds_end(wider, 10, RULE) is None


def test_least_number_comes_first_whatever_the_interval_and_the_budget() -> None:
    assert rounds_end([1.0] * 9, 10, RULE) is None
    assert rounds_end([60.0] * 9, 10, RULE) is None  # 540 s
    assert rounds_end([1.0] * 10, 10, RULE) == "interval within 0 % after 10 rounds"


def test_budget_of_rounds_is_told_with_what_was_reached() -> None:
    # Twelve rounds: from the third smallest, 0.9, to the third largest, 1.1.
    rule = StoppingRule(max_rounds=12, max_seconds=100.0)
    rounds = [0.9, 1.1] * 6
    assert rounds_end(rounds[:11], 5, rule) is None
    assert rounds_end(rounds, 5, rule) == "budget of 12 rounds spent at 10 % after 12 rounds (target 1 %)"


def test_budget_of_time_is_told_with_what_was_reached() -> None:
    rule = StoppingRule(max_rounds=99, max_seconds=8.0, target=0.005)
    rounds = [0.9, 1.1] * 4  # 8 s; of eight rounds the smallest and the largest
    assert rounds_end(rounds[:7], 5, rule) is None
    assert rounds_end(rounds, 5, rule) == "budget of 8 s spent at 10 % after 8 rounds (target 0.5 %)"


def test_budget_that_is_spent_before_there_is_an_interval_says_so() -> None:
    rule = StoppingRule(max_rounds=99, max_seconds=1.0)
    assert rounds_end([0.5] * 5, 5, rule) == "budget of 1 s spent after 5 rounds: an interval needs 6"


@pytest.mark.parametrize("scale", [0.0, 0.003, 0.07])
@pytest.mark.parametrize("fixed", [1, 4, 50])
def test_fixed_number_stops_nothing_earlier_or_later(scale: float, fixed: int) -> None:
    assert run(noise(scale), None, fixed) == (fixed, f"fixed by --rounds {fixed}")


def test_quiet_rounds_end_at_the_least_number_and_noisy_ones_with_the_budget() -> None:
    assert {run(noise(0.003, seed=seed))[0] for seed in range(50)} == {10}
    assert {run(noise(0.07, seed=seed))[0] for seed in range(50)} == {30}
    between = [run(noise(0.015, seed=seed))[0] for seed in range(50)]
    assert min(between) < 20 and len(set(between)) > 5


@pytest.mark.parametrize("scale", [0.003, 0.01, 0.02, 0.05])
def test_speed_does_not_decide(scale: float) -> None:
    """A case that is a hundred times faster measures as many rounds, as far as time lasts."""
    long = StoppingRule(max_rounds=30, max_seconds=1e6)
    slow, fast = ((factor * value for value in noise(scale)) for factor in (1.0, 0.01))
    assert run(slow, long) == run(fast, long)
