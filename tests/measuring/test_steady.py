"""When a warm-up ends, on made-up durations: noise, steps, drifts, spikes, bounds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from bench.measuring.steady import WarmUp, WarmupEnd, WarmupRule, warmup_end

RULE = WarmupRule(max_seconds=1000.0)
TRIALS = 300


def noise(generator: random.Random, scale: float) -> Iterator[float]:
    """Rounds of 1 s that do not move, `scale` the standard deviation of their logarithm."""
    while True:
        yield math.exp(scale * generator.gauss(0, 1))


def end_of(series: Iterator[float], rule: WarmupRule = RULE) -> tuple[int, WarmupEnd]:
    """How many rounds it takes, and why it ends."""
    seconds: list[float] = []
    while True:
        seconds.append(next(series))
        end = warmup_end(seconds, rule)
        if end is not None:
            return len(seconds), end


def ends(
    shape: Callable[[int, float], float], scale: float, rule: WarmupRule = RULE
) -> tuple[list[int], list[WarmupEnd]]:
    """The ends of many series: `shape` of the round's index and its noise."""
    generator = random.Random(5)
    found = [
        end_of((shape(index, value) for index, value in enumerate(noise(generator, scale))), rule)
        for _ in range(TRIALS)
    ]
    return [count for count, _ in found], [end for _, end in found]


def share(of: list[bool]) -> float:
    return sum(of) / len(of)


# --- what is steady ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.003, 0.02, 0.07, 0.3])
def test_pure_noise_ends_early_however_large_it_is(scale: float) -> None:
    counts, found = ends(lambda _, value: value, scale)
    assert min(counts) == 8 and share([count == 8 for count in counts]) > 0.7
    assert share([count <= 11 for count in counts]) > 0.9
    assert share([end.steady for end in found]) > 0.99


def test_noise_with_spikes_now_and_then_ends_early() -> None:
    generator = random.Random(3)
    counts, found = ends(lambda _, value: value * (1.5 if generator.random() < 0.1 else 1), 0.05)
    assert share([count == 8 for count in counts]) > 0.7 and share([end.steady for end in found]) > 0.99


@pytest.mark.parametrize("scale", [0.003, 0.05])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_every_fourth_round_half_as_long_again_is_steady(scale: float, place: int) -> None:
    counts, found = ends(lambda index, value: value * (1.5 if index % 4 == place else 1), scale)
    assert share([count == 8 for count in counts]) > 0.75 and all(end.steady for end in found)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_spikes_over_rounds_that_are_equal_are_steady(place: int) -> None:
    count, end = end_of(1.5 if index % 4 == place else 1.0 for index in range(8))
    assert (count, end.steady) == (8, True)


def test_a_movement_too_small_to_matter_is_steady() -> None:
    # 0.1 % a round is 0.7 % over eight; 0.2 % would be 1.4 %.
    # S = -28, variance 8 * 7 * 21 / 18, z = 27 / 8.08 = 3.34.
    count, end = end_of(0.999**index for index in range(8))
    assert (count, end.steady) == (8, True)
    assert end.text == "steady: no trend above 1 % in the last 8 rounds (-0.7 %, p 0.00084)"
    assert warmup_end([0.998**index for index in range(8)], RULE) is None


# --- what is not -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 0.003, 0.05])
@pytest.mark.parametrize("slow", [1, 3, 6])
def test_a_step_down_is_waited_for(scale: float, slow: int) -> None:
    counts, found = ends(lambda index, value: value * (1.3 if index < slow else 1), scale)
    assert min(counts) >= 8 and all(end.steady for end in found)
    if slow == 6:  # two fast rounds are seen at the eighth, and the slow ones have to leave the window
        assert share([count >= 10 for count in counts]) > 0.9 and max(counts) <= 16


def test_a_step_up_is_waited_for() -> None:
    counts, found = ends(lambda index, value: value * (1 if index < 6 else 1.3), 0.02)
    assert share([count >= 10 for count in counts]) > 0.9 and all(end.steady for end in found)


def test_a_slow_drift_goes_on_to_the_bound_and_is_told_with_its_size() -> None:
    counts, found = ends(lambda index, value: 0.99**index * value, 0.003)
    assert set(counts) == {20} and not any(end.steady for end in found)
    # 8 rounds: 7 steps of 1 %
    assert found[0].text.startswith("not steady within 20 rounds (limit): a trend in the last 8 rounds (-")
    exact = end_of(0.99**index for index in range(20))[1]
    assert exact.text == "not steady within 20 rounds (limit): a trend in the last 8 rounds (-7 %, p 0.00084)"


def test_a_slow_drift_under_noise_of_its_own_size_is_seen() -> None:
    _, found = ends(lambda index, value: 0.99**index * value, 0.01)
    assert share([not end.steady for end in found]) > 0.9


def test_a_drift_that_ends_is_waited_for() -> None:
    # 2 % a round for ten rounds; then nothing moves, and the window forgets it within eight.
    counts, found = ends(lambda index, value: 0.98 ** min(index, 10) * value, 0.003)
    assert min(counts) >= 12 and max(counts) <= 19 and all(end.steady for end in found)


def test_a_start_up_that_fades_is_waited_for() -> None:
    # 50 % slower at first, less by a third each round: below 1 % after 10 (50 x 0.67^10 = 0.9).
    counts, found = ends(lambda index, value: (1 + 0.5 * 0.67**index) * value, 0.003)
    assert min(counts) >= 11 and share([end.steady for end in found]) > 0.95


# --- bounds ------------------------------------------------------------------------------------------


def test_time_is_bounded_however_few_rounds_that_is() -> None:
    rule = WarmupRule(max_seconds=10.0)
    assert warmup_end([4.0, 5.9], rule) is None  # 9.9 s
    end = warmup_end([4.0, 6.0], rule)
    assert end == WarmupEnd(
        steady=False,
        text="not steady within 10.0 s (limit 10 s): 2 rounds of one length are too few to tell, 8 are needed",
    )


def test_rounds_of_another_length_count_for_the_bounds_only() -> None:
    rule = WarmupRule(least_rounds=4, max_rounds=5, max_seconds=10.0)
    assert warmup_end([1.0] * 3, rule, before=[0.1]) is None
    assert warmup_end([1.0] * 3, rule, before=[0.1, 0.1]) is not None  # 5 rounds
    assert warmup_end([1.0] * 3, rule, before=[7.0]) is not None  # 10 s
    assert warmup_end([1.0] * 4, rule, before=[0.1]) == warmup_end([1.0] * 4, rule)


def test_rounds_that_are_steady_at_the_limit_count_as_steady() -> None:
    end = warmup_end([2.0] * 3 + [1.0] * 5, WarmupRule(least_rounds=5, max_rounds=8))
    assert end is not None and end.steady


def test_a_rule_that_could_not_see_a_trend_is_refused() -> None:
    with pytest.raises(ValueError, match="least_rounds 3 are too few to show a trend; use 4 or more"):
        WarmupRule(least_rounds=3)


# --- steps per round ---------------------------------------------------------------------------------


def warm_up(
    step_seconds: Iterator[float], rule: WarmupRule, round_seconds: float
) -> tuple[WarmUp, list[int], WarmupEnd]:
    """A warm-up whose every step takes as long as the next of `step_seconds` says; the steps of each round."""
    warmup, steps = WarmUp(rule, round_seconds), []
    while True:
        steps.append(warmup.steps)
        end = warmup.add(sum(next(step_seconds) for _ in range(warmup.steps)))
        if end is not None:
            return warmup, steps, end


def steps_lasting(*first: float, then: float) -> Iterator[float]:
    yield from first
    while True:
        yield then


RULE_OF_FIVE = WarmupRule(least_rounds=5, max_rounds=12, max_seconds=100.0)


def test_steps_are_counted_by_the_second_round() -> None:
    # ceil(1 / 0.3) = 4 steps; then five rounds of one length
    _, steps, end = warm_up(steps_lasting(9.0, then=0.3), RULE_OF_FIVE, 1.0)
    assert steps == [1, 1, 4, 4, 4, 4, 4] and end.steady


def test_steps_are_counted_anew_where_the_second_round_was_slow_too() -> None:
    # 0.5 s: 2 steps. They take 0.1 s, and the third such round shows it: ceil(2 * 1 / 0.1) = 20 steps.
    warmup, steps, end = warm_up(steps_lasting(9.0, 0.5, then=0.05), RULE_OF_FIVE, 1.0)
    assert steps == [1, 1, 2, 2, 2, 20, 20, 20, 20, 20] and end.steady
    assert warmup.seconds == pytest.approx([9.0, 0.5, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_steps_are_counted_anew_where_a_round_was_one_slow_step() -> None:
    # The second round lasts 3 s by itself, so it is compared; two of three are short then: 1 / 0.1 = 10 steps.
    _, steps, end = warm_up(steps_lasting(9.0, 3.0, then=0.1), RULE_OF_FIVE, 0.99)
    assert steps == [1, 1, 1, 1, 10, 10, 10, 10, 10] and end.steady


def test_steps_are_counted_anew_after_a_step_that_comes_later() -> None:
    slow = [0.5] * 7  # the second round and three rounds of 2 steps
    _, steps, end = warm_up(steps_lasting(9.0, *slow, then=0.2), RULE_OF_FIVE, 1.0)
    # Rounds of 0.4 s; two of the last three are below 0.5 s: ceil(2 / 0.4) = 5 steps.
    assert steps == [1, 1, 2, 2, 2, 2, 2, 5, 5, 5, 5, 5] and end.steady


def test_steps_are_counted_anew_once_only_and_within_the_bounds() -> None:
    # 20 steps, but they become so fast that another count would be due.
    slow = [0.5] + [0.05] * 6
    _, steps, _ = warm_up(steps_lasting(9.0, *slow, then=0.001), RULE_OF_FIVE, 1.0)
    assert steps == [1, 1, 2, 2, 2, 20, 20, 20, 20, 20]
    _, steps, end = warm_up(steps_lasting(9.0, *slow, then=0.05), WarmupRule(max_rounds=6), 1.0)
    assert steps == [1, 1, 2, 2, 2, 20, 20] and not end.steady


def test_rounds_that_are_a_little_short_stay_as_they_are() -> None:
    _, steps, _ = warm_up(steps_lasting(9.0, 0.5, then=0.3), RULE_OF_FIVE, 1.0)  # 0.6 s, more than half
    assert steps == [1, 1, 2, 2, 2, 2, 2]


def test_one_step_a_round_where_no_length_is_asked_for() -> None:
    _, steps, end = warm_up(steps_lasting(9.0, then=0.01), RULE_OF_FIVE, 0.0)
    assert steps == [1] * 6 and end.steady
