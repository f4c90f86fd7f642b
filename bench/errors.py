"""The errors a person meets. Each message states the fact, the number and the remedy."""

from __future__ import annotations

from collections.abc import Iterable

MOST_QUOTED = 160


class BenchError(Exception):
    """Base of every error that this suite raises on purpose."""


class UsageError(BenchError):
    """The request cannot be honoured as written; nothing was measured."""


class UnknownNameError(UsageError):
    """A name that no registry knows. The message lists the names that exist."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {name!r}; there is: {', '.join(sorted(known)) or 'none'}")


class RefusedError(BenchError):
    """A strategy cannot take a model as it is: a result, not a fault. The message says why, and what helps."""


class DataError(BenchError):
    """Data that is there but damaged or unfit. The message names the file and the remedy."""


class ResultsError(BenchError):
    """A results file that cannot be read or written. The message names the file."""


def text_of(error: BaseException) -> str:
    """The error's message; some have none that can be printed."""
    try:
        return str(error)
    except Exception as second:
        return f"(its message cannot be printed: {type(second).__name__})"


def in_short(error: BaseException) -> str:
    """An error in one line: its type, and how its message begins. Some of torch's are pages long."""
    first = next(iter(text_of(error).splitlines()), "")
    return f"{type(error).__name__}: {first[:MOST_QUOTED]}{'...' * (len(first) > MOST_QUOTED)}".removesuffix(": ")
