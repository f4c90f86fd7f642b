"""What a check says, and the list of checks.

A check is one small function from a `Box` to notes. It stands in the list by `@check(area, title)`;
the area and the title make its notes findings, and name it when it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bench.doctor.box import Box

Status: TypeAlias = Literal["problem", "warning", "info", "ok"]
STATUSES: tuple[Status, ...] = ("problem", "warning", "info", "ok")
"""The worst first."""
AREAS = ("software", "gpus", "links", "host", "limits", "network", "disk", "environment")
"""In the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A fact, what it does to a run, and the remedy; None where there is nothing to say."""

    status: Status
    fact: str
    effect: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A note with its place. problem: a run fails or is wrong; warning: its figures suffer; info: worth knowing."""

    area: str
    title: str
    status: Status
    fact: str
    effect: str | None = None
    remedy: str | None = None


Look: TypeAlias = Callable[[Box], Iterable[Note]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    area: str
    title: str
    look: Look


CHECKS: list[Check] = []


def check(area: str, title: str) -> Callable[[Look], Look]:
    """Put a function into the list of checks."""

    def enter(look: Look) -> Look:
        CHECKS.append(Check(area=area, title=title, look=look))
        return look

    return enter


def ok(fact: str) -> Note:
    return Note(status="ok", fact=fact)


def info(fact: str, effect: str | None = None, remedy: str | None = None) -> Note:
    return Note(status="info", fact=fact, effect=effect, remedy=remedy)


def warning(fact: str, effect: str, remedy: str) -> Note:
    return Note(status="warning", fact=fact, effect=effect, remedy=remedy)


def problem(fact: str, effect: str, remedy: str) -> Note:
    return Note(status="problem", fact=fact, effect=effect, remedy=remedy)


def gib(size: float) -> str:
    """Bytes as a person reads them."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
