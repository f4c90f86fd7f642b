"""Which launches a scenario asks for, and whether it is asked for itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UsageError
from bench.planning.plan import Plan, reason_to_skip
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


def sweep_name(file: Path) -> str:
    """What `--sweeps` calls a scenario's file: test_load_balance.py is load_balance."""
    return file.stem.removeprefix("test_")


def check_sweeps(plan: Plan, known: Collection[str]) -> None:
    """UsageError for a sweep that is asked for and not among the scenarios that were named."""
    unknown = [name for name in plan.sweeps if name not in known]
    if unknown:
        there = f"there is: {', '.join(sorted(known))}" if known else "there is none; name the folder scenarios"
        raise UsageError(f"no sweep {unknown[0]!r} among the scenarios that were named; {there}")
