"""Why the warm-up and the measured rounds ended reaches the row of a launch, or is null."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from bench.measuring.launch import Clock, LaunchResult
from bench.running.rows import launch_row
from bench.schema import Case, Launch, Outcome, Trace

CASE = Case(workload="mnist_cnn", strategy="ddp", device_type="cpu", devices=(0, 1), global_batch_size=8, size="quick")


def row_of(result: LaunchResult) -> Launch:
    keys: Any = {"run_id": "r", "launch": 0, "position": 0, "started_at": datetime.now(timezone.utc), "seed": 0}
    return launch_row(CASE, result, run_as=CASE, balance=None, data_source=None, backend="gloo", threads=1, **keys)


def test_ends_of_a_launch_are_in_its_row() -> None:
    row = row_of(
        LaunchResult(
            outcome=Outcome(status="ok"),
            clock=Clock(),
            trace=Trace(case=CASE, round_seconds=(1.0, 1.0)),
            warmup_end="not steady within 20 rounds",
            steady=False,
            rounds_end="fixed by --rounds 2",
        )
    )
    assert (row.warmup_end, row.steady) == ("not steady within 20 rounds", False)
    assert (row.rounds, row.rounds_end) == (2, "fixed by --rounds 2")


def test_launch_that_did_not_come_so_far_has_none() -> None:
    row = row_of(LaunchResult(outcome=Outcome(status="oom", reason="too large"), clock=Clock()))
    assert (row.warmup_end, row.steady, row.rounds, row.rounds_end) == (None, None, None, None)
