"""What a search asks for, answered by a run: launches that are recorded, and lines on the terminal."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from bench.errors import BenchError
from bench.planning.plan import Plan
from bench.running.progress import Progress
from bench.running.searches import Search
from bench.running.session import Finished, RunSession
from bench.running.verdicts import conclude_search
from bench.schema import Case, Launch

Tell = Callable[[Finished], None]


def run_search(search: Search, session: RunSession, progress: Progress) -> None:
    """Run a search to its end, with every launch that it asks for, and conclude its test."""
    ask = SessionAsk(session, search, say=progress.say, tell=progress.tell)
    try:
        search.run(ask)
    except BenchError as error:
        pytest.fail(f"the search could not go on: {error}", pytrace=False)
    conclude_search(ask.rows)


class SessionAsk:
    """Answers one search out of a run's session. `tell` hears of every launch as it ends, `say` of what is said."""

    def __init__(self, session: RunSession, search: Search, *, say: Callable[[str], None], tell: Tell) -> None:
        self._session, self._name = session, search.name
        self._say, self._tell = say, tell
        self._order = random.Random(f"{session.plan.options.seed} {search.name}")
        self.rows: list[Launch] = []
        """What the search has recorded so far."""

    @property
    def plan(self) -> Plan:
        return self._session.plan

    def num_samples(self, case: Case) -> int | None:
        return self._session.num_samples(case)

    def probe(self, case: Case) -> Finished:
        return self._told(self._session.probe(case, self._name))

    def skip(self, case: Case, reason: str) -> Finished:
        return self._told(self._session.probe(case, self._name, skipped=reason))

    def measure(self, cases: Sequence[Case]) -> Mapping[Case, Sequence[Finished]]:
        cases = list(dict.fromkeys(cases))
        for launch in range(self.plan.launches):
            due = [case for case in cases if len(self._ended(case)) == launch and self._is_well(case)]
            self._order.shuffle(due)
            for case in due:
                self._told(self._session.time(case, launch, self._name))
        return {case: tuple(self._ended(case)) for case in cases}

    def say(self, text: str) -> None:
        self._say(text)

    def _ended(self, case: Case) -> Sequence[Finished]:
        return self._session.timed.get(case, ())

    def _is_well(self, case: Case) -> bool:
        return all(launch.row.status == "ok" for launch in self._ended(case))

    def _told(self, finished: Finished) -> Finished:
        self.rows.append(finished.row)
        self._tell(finished)
        return finished
