"""Which rank failed first, and of what: peers of a failed rank fail as well, a moment later."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measuring.control import Failure
from bench.schema import Outcome

# A killed rank is seen to end at once, but its peer's "connection reset" may be posted a moment before.
SIGNAL_SLACK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """A worker that ended: its exit code, negative for a signal, and when that was seen (s since the epoch)."""

    rank: int
    code: int
    seen_at: float


def first_cause(failures: Sequence[Failure], exits: Sequence[Exit], phase: Callable[[int], str]) -> Outcome:
    """The outcome of a launch from what its unanswering ranks posted, earliest first, and how they ended.

    A signal counts if it was seen no later than the first posted error; SIGABRT without slack,
    since libraries abort because their peer has left. Of the errors an exhausted memory counts
    first: its peers fail too, sometimes a moment earlier.
    """
    first_error = min((failure.time for failure in failures), default=math.inf)
    for ended in exits:
        slack = 0.0 if ended.code == -signal.SIGABRT else SIGNAL_SLACK_SECONDS
        if ended.code < 0 and ended.seen_at <= first_error + slack:
            return Outcome(status="error", reason=_killed(ended), rank=ended.rank, phase=phase(ended.rank))
    if failures:
        first = next((failure for failure in failures if failure.out_of_memory), failures[0])
        return Outcome(
            status="oom" if first.out_of_memory else "skipped" if first.refused else "error",
            reason=first.message,
            rank=first.rank,
            phase=first.phase,
            traceback=first.traceback,
        )
    left = exits[0]
    reason = f"rank {left.rank} left with exit status {left.code} before its results arrived"
    return Outcome(status="error", reason=reason, rank=left.rank, phase=phase(left.rank))


def _killed(ended: Exit) -> str:
    name = signal.Signals(-ended.code).name
    hint = "; the kernel's out-of-memory killer does that, see dmesg" if name == "SIGKILL" else ""
    return f"rank {ended.rank} was ended by {name}{hint}"
