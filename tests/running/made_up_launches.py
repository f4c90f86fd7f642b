"""Made-up launches for a session: what would start workers is replaced, all else is real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.measuring import yardstick
from bench.measuring.flops import FlopCount
from bench.measuring.launch import Clock, LaunchResult
from bench.measuring.products import Products
from bench.measuring.tasks import Job
from bench.planning.plan import Plan
from bench.recording.reader import read_run
from bench.running import session as running
from bench.running.session import RunSession
from bench.schema import Case, DeviceTrace, Launch, Outcome, ParityTrace, Trace
from tests.planning.made_up_machines import cpu, plan_of
from tests.recording.made_up import made_run

OK = Outcome(status="ok")


class MadeUpLaunches:
    """Stands in for the two ways to launch: ends as scripted for a case, else well."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.tried: list[str] = []
        self.jobs: list[Job] = []
        self.watchers: list[Any] = []
        self.products = Products()

    def timed(self, launcher: Any, job: Job, world_size: int, plan: Any, watcher: Any = None) -> LaunchResult:
        self.watchers.append(watcher)
        outcome = self._outcome(job)
        devices = tuple(DeviceTrace(device_index=index) for index in range(job.case.num_devices))
        trace = Trace(case=job.case, steps_per_round=2, round_seconds=(1.0, 2.0), devices=devices)
        return LaunchResult(outcome=outcome, clock=Clock(), trace=trace if outcome == OK else None)

    def parity(self, launcher: Any, job: Job, world_size: int) -> LaunchResult:
        trace = Trace(case=job.case, parity=ParityTrace(error=0.9))
        return LaunchResult(outcome=self._outcome(job), clock=Clock(), trace=trace)

    def _outcome(self, job: Job) -> Outcome:
        self.tried.append(str(job.case))
        self.jobs.append(job)
        return self.outcomes.get(str(job.case), OK)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> MadeUpLaunches:
    made = MadeUpLaunches()
    monkeypatch.setattr(running, "time_case", made.timed)
    monkeypatch.setattr(running, "parity_of", made.parity)
    monkeypatch.setattr(running, "preflight", lambda launcher, job: None)
    monkeypatch.setattr(yardstick, "measure_products", lambda launcher, job: made.products)
    monkeypatch.setattr(yardstick, "count_flops", lambda launcher, job: FlopCount(per_sample=1e6))
    return made


Open = Callable[[Plan], RunSession]


@pytest.fixture
def open_session(tmp_path: Path, launches: MadeUpLaunches) -> Iterator[Open]:
    opened = []

    def make(plan: Plan) -> RunSession:
        plan = replace(plan, options=replace(plan.options, results=tmp_path))
        launcher: Any = SimpleNamespace(threads_per_worker=1)
        opened.append(RunSession(plan, launcher, made_run(device_type=plan.machine.device_type)))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


def rows(session: RunSession) -> list[Launch]:
    return list(read_run(session.folder).launches)


def mnist(strategies: str = "single,ddp", machine: Any = None, **options: Any) -> tuple[Plan, list[Case]]:
    plan = plan_of(machine or cpu(), workloads="mnist_cnn", strategies=strategies, **options)
    return plan, plan.comparison("mnist_cnn")
