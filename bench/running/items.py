"""Which launches a scenario asks for, and whether it is asked for itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.planning.options import StrategyChoice
from bench.planning.plan import Plan, reason_to_skip
from bench.running.searches import SearchItem
from bench.schema import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchItem:
    """The parameter of a scenario's test: which launch of which case."""

    case: Case
    launch: int

    def __str__(self) -> str:
        return str(self.case) if self.case.purpose == "parity" else f"{self.case}-launch{self.launch}"


def timing_items(cases: Sequence[Case], plan: Plan) -> list[LaunchItem]:
    """Every launch of every case; one of a case that is known to be skipped."""
    items = []
    for case in cases:
        launches = 1 if reason_to_skip(case, plan.machine, None) else plan.launches
        items += [LaunchItem(case=case, launch=launch) for launch in range(launches)]
    return items


def parity_items(cases: Sequence[Case], plan: Plan) -> list[LaunchItem]:
    """One check per way of training among the cases that will run, and in fp32 too where they are lossy."""
    wanted = plan.parity_cases(case for case in cases if not reason_to_skip(case, plan.machine, None))
    return [LaunchItem(case=case, launch=0) for case in wanted]


def items_of(fixture: str, found: Sequence[Any], plan: Plan) -> Sequence[LaunchItem | SearchItem]:
    """The parameters of a test that uses `fixture`, from the cases or the searches of its module."""
    if fixture == "search":
        return [SearchItem(search=search) for search in found]
    return parity_items(found, plan) if fixture == "parity" else timing_items(found, plan)


def scenario_name(file: Path) -> str:
    """What `--sweeps` and messages call a scenario's file: test_load_balance.py is load_balance."""
    return file.stem.removeprefix("test_")


def check_sweeps(plan: Plan, known: Collection[str]) -> None:
    """UsageError for a sweep that is asked for and not among the scenarios that were named."""
    unknown = [name for name in plan.sweeps if name not in known]
    if unknown:
        there = f"there is: {', '.join(sorted(known))}" if known else "there is none; name the folder scenarios"
        raise UsageError(f"no sweep {unknown[0]!r} among the scenarios that were named; {there}")


def hears_strategies(make_cases: Callable[[Plan], Sequence[object]], plan: Plan) -> bool:
    """Whether what a scenario measures depends on `--strategies`; a sweep has strategies of its own."""
    other = "dp" if plan.strategies[0].name == "single" else "single"
    return list(make_cases(plan)) != list(make_cases(replace(plan, strategies=(StrategyChoice(name=other),))))


def check_strategies(plan: Plan, hears: Mapping[str, bool]) -> None:
    """UsageError for `--strategies` where it decides on the cases of no scenario (`hears`, by name)."""
    if plan.options.strategies is not None and hears and not any(hears.values()):
        raise UsageError(
            f"--strategies chooses nothing here: {', '.join(sorted(hears))} has strategies of its own; leave it out, "
            "or name the scenarios of a comparison too"
        )
