"""Adaptive searches: a scenario whose next launch depends on how the last one ended.

A scenario with `searches(plan) -> list[Search]` and a test that uses the fixture `search` is run
after all launches that were planned, each search as one test. A search knows nothing of how launches
are made or kept: it asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.planning.plan import Plan
from bench.running.session import Finished
from bench.schema import Case


class Ask(Protocol):
    """What a search may ask for. Every launch is recorded at once, with the search's name."""

    @property
    def plan(self) -> Plan:
        """The run's plan."""

    def num_samples(self, case: Case) -> int | None:
        """Samples that the case's data holds, None where there is none (its probe says why)."""

    def probe(self, case: Case) -> Finished:
        """One fresh launch of a few steps, recorded as a search's: no timing, no comparison, no history."""

    def skip(self, case: Case, reason: str) -> Finished:
        """Record that a probe is not tried, and why."""

    def measure(self, cases: Sequence[Case]) -> Mapping[Case, Sequence[Finished]]:
        """Time cases as a scenario's are: `plan.launches` of each, interleaved in a seeded random order.

        Launches that a case already has in this run count. A case that does not end ok is not launched again.
        """

    def say(self, text: str) -> None:
        """A line of progress."""


class Search(Protocol):
    """A search that a scenario asks for."""

    @property
    def name(self) -> str:
        """Its name in ids and rows: the scenario's, then what it is about, e.g. max_batch-resnet50."""

    @property
    def cases(self) -> Sequence[Case]:
        """One for each that it will time, at some batch: their data and devices are made ready before any launch."""

    @property
    def most_probes(self) -> int:
        """How many probes it asks for at the most."""

    def run(self, ask: Ask) -> None:
        """Search. What it finds is in the rows of its launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchItem:
    """The parameter of a search's test."""

    search: Search

    def __str__(self) -> str:
        return self.search.name
