"""When has a launch warmed up?

Compile, autotuning and the growth of the allocator fall into the first rounds; a launch measures once its rounds
are steady. They are when the last `least_rounds` of them, all of the same number of steps, show neither of

* a trend: the test of Mann and Kendall at 10 %, with Sen's slope (Mann 1945, Kendall 1975, Sen 1968);
* a step: the median of the last three lies beyond all of those before.

Either counts only if it moves the rounds by more than `tolerance`. Both are tests of ranks (`bench.series`), so noise
of any size passes, and so does a spike now and then: of series that do not move, four in five end the warm-up at the
first look, nearly all within a few more. Other rules wait for the spread itself to fall below a limit (the coefficient
of variation of Georges, Buytaert and Eeckhout, OOPSLA 2007), which a noisy machine never meets. That the start-up has
to be told from what follows in each process, by the series itself, and that it may end in a step or not at all, is
from Kalibera and Jones (ISMM 2013) and Barrett et al. (OOPSLA 2017).

What it cannot see: a step after more than `least_rounds` rounds that did not move, and a drift that the noise hides. A
drift of 1 % a round is seen to the bound of 20 rounds in 98 of 100 warm-ups where rounds scatter by 1 % (standard
deviation), in 3 of 10 at 2 %, and in none at 7 %. Rounds and seconds are bounded; at a bound the
launch measures all the same, and its row says that it was not steady, and by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench.series import LEAST_FOR_A_TREND, late_step, percent_text, trend

TREND_LEVEL = 0.10
"""Wrongly going on costs a round, wrongly ending costs the launch."""
SETTLED = 3
"""Rounds that must agree on being too short before their steps are counted anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupRule:
    """When a warm-up ends. The bounds count all rounds but the first, which carries one-off costs.

    least_rounds: how many of the same length are looked at, so the least number, too;
    tolerance: how far they may move (0.01 is 1 % of a round) without being called unsteady.
    """

    tolerance: float = 0.01
    least_rounds: int = 8
    max_rounds: int = 20
    max_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.least_rounds < LEAST_FOR_A_TREND:
            raise ValueError(
                f"least_rounds {self.least_rounds} are too few to show a trend; use {LEAST_FOR_A_TREND} or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupEnd:
    """Why a warm-up ended. steady: because the rounds were; text: a sentence with the numbers."""

    steady: bool
    text: str


def warmup_end(round_seconds: Sequence[float], rule: WarmupRule, *, before: Sequence[float] = ()) -> WarmupEnd | None:
    """Why the warm-up ends after these rounds of the same length (s), or None when it goes on.

    before: rounds (s) of another length that came first; they are not compared, but count for the bounds.
    """
    count, spent = len(before) + len(round_seconds), math.fsum([*before, *round_seconds])
    judged = None
    if len(round_seconds) >= rule.least_rounds:
        judged = _judge(round_seconds[-rule.least_rounds :], rule.tolerance)
        if judged.steady:
            return replace(judged, text=f"steady: {judged.text}")
    if count >= rule.max_rounds:
        limit = f"within {rule.max_rounds} rounds (limit)"
    elif spent >= rule.max_seconds:
        limit = f"within {spent:.1f} s (limit {rule.max_seconds:g} s)"
    else:
        return None
    few = f"{len(round_seconds)} rounds of one length are too few to tell, {rule.least_rounds} are needed"
    return WarmupEnd(steady=False, text=f"not steady {limit}: {judged.text if judged else few}")


def _judge(window: Sequence[float], tolerance: float) -> WarmupEnd:
    """Whether these rounds are steady, and what they show."""
    found, step = trend(window), late_step(window)
    assert found is not None  # a rule looks at enough of them
    numbers = f"({_signed(found.change)}, p {found.p_value:.2g})"
    if found.p_value <= TREND_LEVEL and abs(found.change) > tolerance:
        return WarmupEnd(steady=False, text=f"a trend in the last {len(window)} rounds {numbers}")
    if step is not None and abs(step) > tolerance:
        text = f"the last 3 rounds differ by {_signed(step)} from the {len(window) - 3} before"
        return WarmupEnd(steady=False, text=text)
    small = f" above {percent_text(tolerance)}" if found.p_value <= TREND_LEVEL else ""
    return WarmupEnd(steady=True, text=f"no trend{small} in the last {len(window)} rounds {numbers}")


def _signed(fraction: float) -> str:
    return f"{'+' if fraction > 0 else ''}{percent_text(fraction)}"


class WarmUp:
    """A warm-up in progress: how many steps the next round has, and whether there is a next one.

    The first two rounds are one step each: the first carries one-off costs, the second says how many steps a round
    of at least `round_seconds` needs. Where that step was still slow, the rounds come out much shorter (less than
    half, by the median of the last three), and the steps are counted anew, once. Rounds of different length are not
    compared.
    """

    def __init__(self, rule: WarmupRule, round_seconds: float) -> None:
        self._rule, self._round_seconds = rule, round_seconds
        self._compared: list[float] = []
        self._recounted = False
        self.steps = 1
        self.seconds: list[float] = []
        """All rounds so far (s)."""

    def add(self, seconds: float) -> WarmupEnd | None:
        """Take the duration (s) of a round of `steps` steps. Why the warm-up ends with it, None when it goes on."""
        self.seconds.append(seconds)
        if len(self.seconds) == 1:
            return None
        self._compared.append(seconds)
        if len(self.seconds) == 2:
            self._count_steps(seconds)
        elif not self._recounted and len(self._compared) >= SETTLED:
            usual = median(self._compared[-SETTLED:])
            if usual < self._round_seconds / 2:
                self._recounted = True
                self._count_steps(usual)
        before = self.seconds[1 : len(self.seconds) - len(self._compared)]
        return warmup_end(self._compared, self._rule, before=before)

    def _count_steps(self, seconds: float) -> None:
        """Make rounds long enough where a round of the present steps takes `seconds`."""
        steps = max(1, math.ceil(self.steps * self._round_seconds / seconds))
        if steps != self.steps:
            self.steps, self._compared = steps, []
