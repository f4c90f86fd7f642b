"""Stored rounds for pytest-benchmark: replayed under a timer that advances by their duration.

So its tables, `--benchmark-json`, `--benchmark-compare` and histograms hold seconds per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.schema import Launch, Trace


class ReplayClock:
    """A timer that stands still but for `advance`; pytest-benchmark reads it."""

    def __init__(self) -> None:
        self._now = 0.0

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def timer(self) -> Callable[[], float]:
        def replayed_seconds_per_step() -> float:
            return self._now

        return replayed_seconds_per_step


def replay(benchmark: Any, clock: ReplayClock, trace: Trace, row: Launch) -> None:
    """Give `benchmark` the launch's rounds, each as long as its seconds per step."""
    seconds = [duration / trace.steps_per_round for duration in trace.round_seconds]
    rounds = iter(seconds)
    benchmark.extra_info.update(
        case_id=row.case_id,
        run_id=row.run_id,
        launch=row.launch,
        strategy=row.strategy,
        workload=row.workload,
        num_devices=row.num_devices,
        global_batch_size=row.global_batch_size,
        precision=row.precision,
        device_type=row.device_type,
        emulated=row.emulated,
        samples_per_step=row.global_batch_size,
    )
    benchmark.pedantic(lambda: clock.advance(next(rounds, 0.0)), rounds=len(seconds), iterations=1)
