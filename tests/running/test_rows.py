"""A launch's timeline and the watcher's problems reach its rows, also where it failed."""

from datetime import datetime, timezone
from typing import Any

import pytest

from bench.measuring.launch import Clock, LaunchResult
from bench.running.rows import launch_row, timeline_of
from bench.schema import Case, Moment, NameValue, Outcome, TimelineRow

CASE = Case(workload="mnist_cnn", strategy="ddp", device_type="cpu", devices=(0, 1), global_batch_size=8, size="quick")
MOMENTS = (
    Moment(device_index=0, elapsed_seconds=0.5, measured=True, cpu_percent=99.0, host_rss_bytes=2**28),
    Moment(
        device_index=1, elapsed_seconds=0.5, measured=True, unavailable=(NameValue(name="cpu_percent", value="gone"),)
    ),
)


@pytest.mark.parametrize("outcome", [Outcome(status="ok"), Outcome(status="oom", reason="too large")])
def test_moments_become_rows_however_the_launch_ended(outcome: Outcome) -> None:
    result = LaunchResult(outcome=outcome, clock=Clock(), timeline=MOMENTS, watch_problems=("device 1: gone",))
    keys: Any = {"run_id": "r", "launch": 3, "position": 7, "started_at": datetime.now(timezone.utc), "seed": 0}
    row = launch_row(CASE, result, run_as=CASE, balance=None, data_source=None, backend="gloo", threads=1, **keys)
    assert row.watch_problems == ("device 1: gone",) and row.status == outcome.status
    rows = timeline_of(row, result.timeline)
    assert rows == [
        TimelineRow(run_id="r", case_id=str(CASE), launch=3, device_index=0, elapsed_seconds=0.5, measured=True,
                    cpu_percent=99.0, host_rss_bytes=2**28),
        TimelineRow(run_id="r", case_id=str(CASE), launch=3, device_index=1, elapsed_seconds=0.5, measured=True,
                    unavailable=(NameValue(name="cpu_percent", value="gone"),)),
    ]  # fmt: skip
