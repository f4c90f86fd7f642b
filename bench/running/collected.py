"""Which of the tests that pytest collected are launches or searches, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.running.items import LaunchItem
from bench.running.searches import SearchItem

FIXTURES = ("measure", "parity", "search")


def is_sweep(module: Any) -> bool:
    """Whether a scenario's module is measured only when asked for."""
    return bool(getattr(module, "SWEEP", False))


def is_scenario(test: Any) -> bool:
    """Whether a test belongs to a scenario."""
    fixtures = getattr(test, "fixturenames", [])
    module = getattr(test, "module", None)
    return (hasattr(module, "cases") or hasattr(module, "searches")) and any(name in fixtures for name in FIXTURES)


def launch_of(test: Any) -> LaunchItem | None:
    """The launch that a test is, None for any other test."""
    callspec = getattr(test, "callspec", None)
    found = [value for value in callspec.params.values() if isinstance(value, LaunchItem)] if callspec else []
    return found[0] if found else None


def search_of(test: Any) -> SearchItem | None:
    """The search that a test is, None for any other test."""
    callspec = getattr(test, "callspec", None)
    found = [value for value in callspec.params.values() if isinstance(value, SearchItem)] if callspec else []
    return found[0] if found else None


def turn(test: Any) -> int:
    """The round of a launch's test: parity before all launches."""
    launch = launch_of(test)
    assert launch is not None
    return -1 if launch.case.purpose == "parity" else launch.launch


def once(tests: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Each launch once, and what was left out: two scenarios may ask for the same, a sweep leaves it to the other."""
    kept: dict[str, Any] = {}
    for test in sorted(tests, key=lambda test: is_sweep(getattr(test, "module", None))):
        kept.setdefault(str(launch_of(test)), test)
    chosen = set(kept.values())
    return [test for test in tests if test in chosen], [test for test in tests if test not in chosen]
