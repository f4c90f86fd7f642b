"""pytest's side of a run: options, scenario parameters, order, progress, and the end of it.

A scenario is a module with `cases(plan) -> list[Case]` and tests that use the fixtures
`measure` (one timed launch) and `parity` (one check of the training). Each launch is a test.
One with `searches(plan) -> list[Search]` and a test that uses `search` adds one test a search, after all others.
A module with `SWEEP = True` is measured only when asked for: by `--sweeps`, by its file, by the preset.
pytest-benchmark is driven natively: after a launch its rounds are replayed under a timer that
advances by their duration, so that its tables and files hold seconds per step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.planning.cli import add_options, nearest_option, read_options
from bench.planning.plan import Plan, make_plan
from bench.running.asking import run_search
from bench.running.collected import FIXTURES, is_scenario, is_sweep, launch_of, once, search_of, turn
from bench.running.items import (
    LaunchItem,
    check_strategies,
    check_sweeps,
    hears_strategies,
    items_of,
    scenario_name,
)
from bench.running.machinery import Machinery, open_run
from bench.running.progress import Progress, write_plan, write_report, write_summary
from bench.running.replay import ReplayClock, replay
from bench.running.searches import SearchItem
from bench.running.session import Finished, RunSession
from bench.running.typed import typed
from bench.running.verdicts import XDIST_REFUSAL, conclude

Measure = Callable[[], None]


@dataclass(slots=True)
class State:
    """What the hooks of one pytest session share."""

    machinery: Machinery = field(default_factory=Machinery)
    plan: Plan | None = None
    refusal: str | None = None
    session: RunSession | None = None
    unfinished: str | None = None
    progress: Progress | None = None
    sweeps: set[str] = field(default_factory=set)
    """Names of the sweeps among the collected scenarios."""
    hears: dict[str, bool] = field(default_factory=dict)
    """By name of a scenario that has cases: whether `--strategies` decides on them."""


STATE = pytest.StashKey[State]()
FINISHED = pytest.StashKey[Finished]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    group = parser.getgroup("dpbench", "dpbench: compare data-parallel strategies")
    add_options(group)
    config: Any = pluginmanager.get_plugin("pytestconfig")
    known = [name for option in group.options for name in option.names()]
    if hint := nearest_option(config.invocation_params.args, known):
        parser.extra_info["hint"] = hint  # shown by pytest only if it refuses the command line


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STATE] = State()
    # A launch that ends as skipped or failed has no rounds to replay.
    config.addinivalue_line("filterwarnings", "ignore:Benchmark fixture was not used at all")
    distributed = getattr(config.option, "numprocesses", None) or getattr(config.option, "tx", None)
    # An early refusal where it is plain; workers that meet a scenario all the same refuse each test.
    paths = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    if distributed and any((path if path.is_dir() else path.parent).name == "scenarios" for path in paths):
        raise pytest.UsageError(XDIST_REFUSAL)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per launch of each case of the module's `cases(plan)`, and per search of its `searches(plan)`."""
    fixture = next((name for name in FIXTURES if name in metafunc.fixturenames), None)
    makes = getattr(metafunc.module, "cases" if fixture != "search" else "searches", None)
    if fixture is None or makes is None:
        return
    if hasattr(metafunc.config, "workerinput"):
        # Under pytest-xdist one test says why there are no others; raising here would only crash the worker.
        metafunc.parametrize(fixture, [None], ids=["refused"], indirect=True)
        return
    items: Sequence[LaunchItem | SearchItem] = []
    plan = _plan(metafunc.config)
    if plan is not None and _asked_for(metafunc.module, metafunc.config, plan):
        found: list[Any] = makes(plan)
        if found:
            name = scenario_name(Path(metafunc.module.__file__))
            metafunc.config.stash[STATE].hears[name] = hears_strategies(makes, plan)
        items = items_of(fixture, found, plan)
    metafunc.parametrize(fixture, items, ids=[str(item) for item in items], indirect=True)


def _asked_for(module: Any, config: pytest.Config, plan: Plan) -> bool:
    """A sweep is measured if its name, its file or the preset asks for it, every other scenario always."""
    if not is_sweep(module):
        return True
    file = Path(module.__file__).resolve()
    name = scenario_name(file)
    config.stash[STATE].sweeps.add(name)
    folder = config.invocation_params.dir
    named = any((folder / argument.split("::")[0]).resolve() == file for argument in config.args)
    return named or plan.preset.sweeps or name in plan.sweeps


def _plan(config: pytest.Config) -> Plan | None:
    """The run's plan, made when the first scenario is collected; None when it was refused."""
    state = config.stash[STATE]
    if state.plan is None and state.refusal is None:
        try:
            options = read_options(config.option)
            state.plan = make_plan(options, state.machinery.find(options.device_type))
        except BenchError as error:
            state.refusal = str(error)
    return state.plan


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Parity first, then launch by launch, each time in a new seeded random order."""
    state = config.stash[STATE]
    if state.refusal is not None:
        raise pytest.UsageError(state.refusal)
    if state.plan is None:
        return
    try:
        check_sweeps(state.plan, state.sweeps)
        check_strategies(state.plan, state.hears)
    except BenchError as error:
        raise pytest.UsageError(str(error)) from None
    order = random.Random(state.plan.options.seed)
    launches, repeated = once([item for item in items if launch_of(item) is not None])
    searches = [item for item in items if search_of(item) is not None]
    rest = [item for item in items if launch_of(item) is None and search_of(item) is None]
    # A scenario without a case in this run leaves one unparametrized test behind.
    empty = [item for item in rest if is_scenario(item)]
    config.hook.pytest_deselected(items=[*empty, *repeated])
    order.shuffle(launches)
    launches.sort(key=turn)
    items[:] = [*(item for item in rest if not is_scenario(item)), *launches, *searches]


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Say what will happen; on a dry run stop there; else make everything ready before the first launch."""
    config, state = session.config, session.config.stash[STATE]
    cases = [launch.case for item in session.items if (launch := launch_of(item)) is not None]
    searches = [found.search for item in session.items if (found := search_of(item)) is not None]
    only_shown = config.option.collectonly or getattr(config.option, "setupplan", False)
    if state.plan is None or not (cases or searches) or only_shown:
        return None
    reporter = _reporter(config)
    every = [*cases, *(case for search in searches for case in search.cases)]
    try:
        run = state.machinery.describe(state.plan, typed(config), every, state.hears)
        run = replace(run, planned_launches=len(cases))
        if not state.plan.options.dry_run:
            state.session = open_run(state.plan, state.machinery, run)
    except BenchError as error:
        raise pytest.UsageError(str(error)) from None
    write_plan(reporter, state.plan, run, cases, searches, dry_run=state.session is None)
    if state.session is None:
        return True
    state.progress = Progress(reporter, state.plan, cases, searches)
    for problem in state.session.prepare(every):
        reporter.write_line(problem, red=True)
    return None


def _reporter(config: pytest.Config) -> Any:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        raise pytest.UsageError("a run needs pytest's terminal plugin; leave out -p no:terminal")
    return reporter


@pytest.fixture
def replay_clock(request: pytest.FixtureRequest) -> ReplayClock:
    """Set before `benchmark` is made, which takes its timer from the marker."""
    clock = ReplayClock()
    item = launch_of(request.node)
    if item is None:
        pytest.fail(XDIST_REFUSAL, pytrace=False)
    group = item.case.workload
    request.node.add_marker(pytest.mark.benchmark(timer=clock.timer(), group=group))
    return clock


@pytest.fixture
def measure(request: pytest.FixtureRequest, replay_clock: ReplayClock, benchmark: Any) -> Iterator[Measure]:
    """Run one timed launch, record it, and hand its rounds to pytest-benchmark."""
    item: LaunchItem = request.param

    def run() -> None:
        finished = _recorded(request, lambda session: session.time(item.case, item.launch))
        conclude(finished.row)
        assert finished.trace is not None
        replay(benchmark, replay_clock, finished.trace, finished.row)

    yield run


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Measure:
    """Check that a case trains what one device trains, in a launch of its own."""
    if request.param is None:
        pytest.fail(XDIST_REFUSAL, pytrace=False)
    item: LaunchItem = request.param

    def run() -> None:
        finished = _recorded(request, lambda session: session.check_parity(item.case))
        conclude(finished.row)

    return run


@pytest.fixture
def search(request: pytest.FixtureRequest) -> Measure:
    """Run one search to its end, with every launch that it asks for."""
    if request.param is None:
        pytest.fail(XDIST_REFUSAL, pytrace=False)
    state = request.config.stash[STATE]
    assert state.session is not None and state.progress is not None
    return partial(run_search, request.param.search, state.session, state.progress)


def _recorded(request: pytest.FixtureRequest, launch: Callable[[RunSession], Finished]) -> Finished:
    session = request.config.stash[STATE].session
    if session is None:
        pytest.fail("no run was opened for this launch", pytrace=False)
    try:
        finished = launch(session)
    except BenchError as error:
        pytest.fail(f"the launch could not be recorded: {error}", pytrace=False)
    request.node.stash[FINISHED] = finished
    return finished


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """Launches have their own progress line instead of dots."""
    state = config.stash.get(STATE, None)
    if state is None or state.progress is None or report.nodeid not in state.progress.known:
        return None
    return (report.outcome, "", "") if report.when == "call" or not report.passed else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A progress line around every launch."""
    state, launch, search = item.config.stash[STATE], launch_of(item), search_of(item)
    if state.progress is not None and search is not None:
        state.progress.search(item.nodeid, search.search)
    if state.progress is None or launch is None:
        return (yield)
    state.progress.start(item.nodeid, str(launch), launch.case)
    result = yield
    finished = item.stash.get(FINISHED, None)
    state.progress.finish(launch.case, finished.row if finished else None, finished.trace if finished else None)
    if finished is not None and finished.row.balance is not None and turn(item) == 0:
        _reporter(item.config).write_line(f"  gpu0_bsz=auto: {finished.row.balance}")
    return result


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Compact the tables, also after a failure or Ctrl-C."""
    state = session.config.stash[STATE]
    if state.session is None:
        return
    try:
        state.session.finish()
    except BenchError as error:
        state.unfinished = f"the tables could not be compacted, their parts are kept: {error}"
    finally:
        state.session.close()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What each strategy reached, and where the report lies."""
    state = config.stash[STATE]
    if state.session is not None and state.plan is not None:
        if state.unfinished is not None:
            terminalreporter.write_line(state.unfinished, red=True)
        write_summary(terminalreporter, state.session.folder)
        write_report(terminalreporter, state.session.folder, state.plan.options.reports)
