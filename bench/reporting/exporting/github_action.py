"""JSON for the action benchmark-action/github-action-benchmark, with its `tool: customSmallerIsBetter`.

The action takes a list of objects with `name`, `unit`, `value`, and optionally `range` and `extra` (its
README, "Custom benchmarks"); it reads `range` as `± NUMBER` in the unit of the value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from bench.analysis.estimates import TOO_FEW
from bench.analysis.spreads import Spread
from bench.analysis.summary import Row

UNIT = "s/step"


def text(rows: Sequence[Row]) -> str:
    """One object a case: its id, seconds per step, and as the range the longer side of the 95 % interval."""
    entries = [_entry(row, row.step) for row in rows if row.step]
    return json.dumps(entries, indent=2, allow_nan=False) + "\n"


def _entry(row: Row, step: Spread) -> dict[str, str | float]:
    axes = row.result.axes
    entry: dict[str, str | float] = {"name": axes.case_id, "unit": UNIT, "value": step.value}
    interval = TOO_FEW
    if step.low is not None and step.high is not None:
        # The interval stands on logarithms: its upper side is the longer one, by little where it is narrow.
        entry["range"] = f"± {max(step.high - step.value, step.value - step.low):.4g}"
        interval = f"95 % interval {step.low:.6g} to {step.high:.6g} s"
    facts = [f"run {axes.run_id}", f"launches: {row.result.launches_ok}", interval]
    entry["extra"] = "\n".join([*facts, *([f"not ranked: {row.excluded}"] if row.excluded else [])])
    return entry
