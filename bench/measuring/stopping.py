"""When has a launch measured enough rounds?

Rounds go on until the 95 % interval of their median (`bench.series.median_interval`) reaches no further than
`target` of the median to either side on average, or the budget is spent. Only the launch's own rounds
decide, never another launch or case: which strategy is ahead cannot make a launch longer or shorter. The width is
relative, so neither can its speed, as long as a round is no longer than planned.

That interval steers how long a launch lasts and nothing else. The rounds of one launch are not independent: positive
autocorrelation makes it too narrow, as does looking at it after each round until it fits, and what differs from launch
to launch does not show in it. The interval that is reported rests on launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.series import LEAST_FOR_AN_INTERVAL, percent_text, relative_half_width


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRule:
    """When measured rounds end. target: half-width of the median's 95 % interval over the median.

    max_rounds, max_seconds: the budget of a launch; it ends with the round that reaches either.
    """

    max_rounds: int
    max_seconds: float
    target: float = 0.01


def rounds_end(round_seconds: Sequence[float], least_rounds: int, rule: StoppingRule | None) -> str | None:
    """Why the measured rounds end after these (s), None when they go on. Without a rule they are `least_rounds`."""
    count, spent = len(round_seconds), sum(round_seconds)
    if count < least_rounds:
        return None
    if rule is None:
        return f"fixed by --rounds {least_rounds}"
    width = relative_half_width(round_seconds)
    if width is not None and width <= rule.target:
        return f"interval within {percent_text(width)} after {count} rounds"
    if count < rule.max_rounds and spent < rule.max_seconds:
        return None
    budget = f"{rule.max_seconds:g} s" if spent >= rule.max_seconds else f"{rule.max_rounds} rounds"
    if width is None:
        return f"budget of {budget} spent after {count} rounds: an interval needs {LEAST_FOR_AN_INTERVAL}"
    return (
        f"budget of {budget} spent at {percent_text(width)} after {count} rounds (target {percent_text(rule.target)})"
    )
