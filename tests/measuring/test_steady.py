"""When a warm-up ends, on made-up durations."""

from __future__ import annotations

import pytest

from bench.measuring.steady import WarmupRule, warmup_end

RULE = WarmupRule(tolerance=0.10, max_rounds=6, max_seconds=10.0)


@pytest.mark.parametrize(
    "seconds",
    [
        [],
        [1.0],
        [1.0, 1.0],  # three are compared, so two never suffice
        [1.0, 1.0, 1.2],  # 1.2 / 1.0 - 1 = 20 %
        [2.0, 1.0, 1.05],
        [1.0, 1.0, 1.0, 1.5],  # steady once, but no longer
    ],
)
def test_warm_up_goes_on(seconds: list[float]) -> None:
    assert warmup_end(seconds, RULE) is None


@pytest.mark.parametrize(
    ("seconds", "spread"),
    [
        ([1.0, 1.0, 1.0], "0.0%"),
        ([1.0, 1.08, 1.04], "8.0%"),
        ([3.0, 2.0, 1.0, 1.05, 1.02], "5.0%"),  # only the last three count
        ([1.0, 1.1, 1.1], "10.0%"),  # the limit itself is within
    ],
)
def test_steady_rounds_end_it_with_their_spread(seconds: list[float], spread: str) -> None:
    rule = WarmupRule(tolerance=0.1001, max_rounds=6, max_seconds=10.0)
    reason = warmup_end(seconds, rule)
    assert reason is not None and reason.startswith("steady") and spread in reason


def test_rounds_are_bounded_and_the_reason_says_that_it_is_not_steady() -> None:
    noisy = [0.1, 0.2, 0.1, 0.2, 0.1]
    assert warmup_end(noisy, RULE) is None
    reason = warmup_end([*noisy, 0.2], RULE)
    assert reason is not None and "not steady" in reason and "6 rounds" in reason


def test_time_is_bounded_and_the_reason_says_that_it_is_not_steady() -> None:
    assert warmup_end([4.0, 5.9], RULE) is None  # 9.9 s
    reason = warmup_end([4.0, 6.0], RULE)
    assert reason is not None and "not steady" in reason and "10" in reason


def test_rounds_that_are_steady_at_the_limit_count_as_steady() -> None:
    reason = warmup_end([1.0, 2.0, 1.0, 1.0, 1.0, 1.0], RULE)
    assert reason is not None and reason.startswith("steady")
