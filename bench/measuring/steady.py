"""When has a launch warmed up?

Rounds count as steady once the last `WINDOW` of them lie within `tolerance` of each other:
the coefficient-of-range rule used by many harnesses, bounded in rounds and in time so that a
noisy machine cannot hold it for ever. The reason it ended is stored with the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupRule:
    """Bounds of a warm-up. `tolerance` is the allowed (slowest / fastest - 1) of the last rounds."""

    tolerance: float = 0.10
    max_rounds: int = 12
    max_seconds: float = 10.0


def warmup_end(round_seconds: Sequence[float], rule: WarmupRule) -> str | None:
    """Why the warm-up ends after these rounds (s), or None when it goes on."""
    last = round_seconds[-WINDOW:]
    if len(last) == WINDOW:
        spread = max(last) / min(last) - 1
        if spread <= rule.tolerance:
            return f"steady: last {WINDOW} rounds within {spread:.1%}"
    if len(round_seconds) >= rule.max_rounds:
        return f"not steady after {rule.max_rounds} rounds (limit)"
    if sum(round_seconds) >= rule.max_seconds:
        return f"not steady after {sum(round_seconds):.1f} s (limit {rule.max_seconds:g} s)"
    return None
