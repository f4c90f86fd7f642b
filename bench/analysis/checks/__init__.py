"""Every reason to distrust a figure of a run, computed from what is stored. Shown by terminal, page and `compare`."""

from __future__ import annotations

from collections.abc import Iterable

from bench.analysis.checks import gauges, outcomes, steadiness
from bench.analysis.checks.base import Check, Seen
from bench.analysis.checks.outcomes import NOT_OK, SKIPPED
from bench.analysis.summary import WorkloadSummary
from bench.recording.reader import RunData

__all__ = ["REASONS", "Check", "checks"]

REASONS = (NOT_OK, SKIPPED)
"""Checks that hold what the table of cases leaves out, in the terminal."""
GRAVEST_FIRST = (
    outcomes.of_run,
    outcomes.of_plausibility,
    outcomes.of_training,
    outcomes.of_failures,
    steadiness.of_launches,
    steadiness.of_estimates,
    gauges.of_watcher,
    outcomes.of_standing_in,
    outcomes.of_skips,
)


def checks(data: RunData, summaries: Iterable[WorkloadSummary]) -> tuple[Check, ...]:
    """Every reason to distrust a figure of the run, the gravest first; empty where there is none."""
    rows = [(f"{summary.workload}: {row.title}", row) for summary in summaries for row in summary.rows]
    seen = Seen(data=data, rows=rows, names={row.result.axes.case_id: name for name, row in rows})
    return tuple(check for part in GRAVEST_FIRST for check in part(seen) if check.seen)
