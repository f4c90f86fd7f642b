"""The largest global batch that trains, for each strategy; then the speed of each at its own.

A sweep on all devices (`single` on one): doubling, then bisection to a sample more or less on every
device, each probe in fresh workers. `--memory-limit` stands in for a smaller card, and on CPU workers
there has to be one. Its tables answer another question than those at an equal batch.
"""

from __future__ import annotations

from bench.planning.plan import Plan
from bench.pytest_plugin import Measure
from bench.running.max_batch import MaxBatch, max_batch_searches
from bench.schema import Case

SWEEP = True


def searches(plan: Plan) -> list[MaxBatch]:
    """One search for each workload, over every strategy of the comparison."""
    return max_batch_searches(plan)


def cases(plan: Plan) -> list[Case]:
    """What is searched, for the check that each strategy trains what one device trains."""
    return [case for search in searches(plan) for case in search.cases]


def test_largest_batch(search: Measure) -> None:
    """Find the largest batch of every strategy, and time each there."""
    search()


def test_parity(parity: Measure) -> None:
    """The strategy trains what one device trains."""
    parity()
