"""Models of your own: whatever `--workload` names. See docs/workloads.md."""

from __future__ import annotations

from bench.planning.plan import Plan
from bench.pytest_plugin import Measure
from bench.schema import Case


def cases(plan: Plan) -> list[Case]:
    """Every strategy at the same global batch sizes, for each of them; none without `--workload`."""
    return [case for name in plan.own_workloads for case in plan.comparison(name)]


def test_training_step(measure: Measure) -> None:
    """One launch: seconds per training step."""
    measure()


def test_parity(parity: Measure) -> None:
    """The strategy trains what one device trains."""
    parity()
