"""A small BERT with its masked-LM head: wide outputs, which DataParallel has to gather."""

from __future__ import annotations

from bench.planning.plan import Plan
from bench.pytest_plugin import Measure
from bench.schema import Case


def cases(plan: Plan) -> list[Case]:
    """Every strategy at the same global batch sizes."""
    return plan.comparison("bert_small")


def test_training_step(measure: Measure) -> None:
    """One launch: seconds per training step."""
    measure()


def test_parity(parity: Measure) -> None:
    """The strategy trains what one device trains."""
    parity()
