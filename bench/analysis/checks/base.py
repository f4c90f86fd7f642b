"""What a check is: a reason to distrust figures, where it was seen, and what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.analysis.summary import Row
from bench.recording.reader import RunData

MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A reason to distrust figures. seen: each with its number; empty where there is none. remedy: None where `seen`
    says what to do, or nothing can be done.
    """

    title: str
    seen: tuple[str, ...] = ()
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What checks look at: a run, and every case of it with its name on the page; `names` by the case's text."""

    data: RunData
    rows: Sequence[tuple[str, Row]]
    names: Mapping[str, str]


def listed(titles: Sequence[str]) -> str:
    """The first few, and how many more."""
    shown = " / ".join(titles[:MOST_NAMED])
    return f"{shown} and {len(titles) - MOST_NAMED} more" if len(titles) > MOST_NAMED else shown


def by_reason(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A line a reason, whole: it may hold what to copy. With the cases that share it."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in found:
        names[reason].append(name)
    return tuple(f"{listed(of)}: {reason}" for reason, of in names.items())
