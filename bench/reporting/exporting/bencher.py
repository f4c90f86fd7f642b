"""Bencher Metric Format: JSON for `bencher run --adapter json` (bencher.dev/docs/reference/bencher-metric-format).

An object of cases, each an object of measures. Bencher's own two have fixed units: `latency` is in
nanoseconds, here of one step; `throughput` in operations per second, here samples.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from bench.analysis.spreads import Spread
from bench.analysis.summary import Row

NANOSECONDS = 1e9


def text(rows: Sequence[Row]) -> str:
    """By case id: `latency` and `throughput`, each with `value` and the 95 % interval where there is one."""
    cases = {}
    for row in rows:
        measures = {"latency": (row.step, NANOSECONDS), "throughput": (row.throughput, 1.0)}
        cases[row.result.axes.case_id] = {
            name: _metric(spread, factor) for name, (spread, factor) in measures.items() if spread
        }
    return json.dumps(cases, indent=2, allow_nan=False) + "\n"


def _metric(spread: Spread, factor: float) -> dict[str, float]:
    values = {"value": spread.value, "lower_value": spread.low, "upper_value": spread.high}
    return {name: value * factor for name, value in values.items() if value is not None}
