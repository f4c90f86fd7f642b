"""From samples to estimates: rounds to launches, launches to cases."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high, median_low
from typing import Any, TypeAlias

import pandas as pd

from bench.analysis.intervals import mean_interval
from bench.schema import Estimate, Launch, Metric

Key: TypeAlias = tuple[str, str, "int | None"]
"""case_id, metric, device_index"""

TOO_FEW = "too few launches"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchValue:
    """What one launch says of a metric: the median of its rounds, or its one value. None with a note."""

    launch: int
    value: float | None
    rounds: int
    note: str | None = None


def launch_values(samples: pd.DataFrame, launches: Iterable[Launch]) -> dict[Key, list[LaunchValue]]:
    """The value of each launch that ended ok, in order of launches. Non-finite values are nulls here.

    A parity launch that missed ended as an error, and its value is what tells by how much. A probe of a search is too
    short to say anything.
    """
    run_ids = {
        (of.case_id, of.launch)
        for of in launches
        if of.purpose != "search" and (of.status == "ok" or of.purpose == "parity")
    }
    groups: dict[Key, dict[int, list[tuple[float | None, bool, str | None]]]] = defaultdict(lambda: defaultdict(list))
    names = ["case_id", "metric", "launch", "device_index", "round_index", "value", "note"]
    columns = [_plain(samples[name]) for name in names]
    for case_id, metric, launch, device, round_index, value, note in zip(*columns, strict=True):
        if (case_id, launch) in run_ids:
            if value is not None and math.isinf(value):
                value, note = None, note or f"{value} is not a finite number"
            groups[case_id, metric, device][launch].append((value, round_index is not None, note))
    return {key: [_of_launch(launch, rows) for launch, rows in sorted(of.items())] for key, of in groups.items()}


def _plain(column: pd.Series[Any]) -> list[Any]:
    """The column as Python values; every kind of null (NaN too) is None."""
    return [None if item is pd.NA or item != item else item for item in column.astype(object).tolist()]


def _of_launch(launch: int, rows: Sequence[tuple[float | None, bool, str | None]]) -> LaunchValue:
    values = [value for value, _, _ in rows if value is not None]
    rounds = sum(1 for value, in_round, _ in rows if in_round and value is not None)
    note = next((note for _, _, note in rows if note), None)
    return LaunchValue(launch=launch, value=_middle(values) if values else None, rounds=rounds, note=note)


def _middle(values: Sequence[float]) -> float:
    """The median; between two middle values their geometric mean where they are positive.

    So the middle of rates is the rate of the middle time: an arithmetic mean of two rates would
    flatter noisy cases, and contradict the step time beside it.
    """
    low, high = median_low(values), median_high(values)
    return math.sqrt(low * high) if low > 0 and low != high else (low + high) / 2


def estimate(samples: pd.DataFrame, launches: Sequence[Launch], metrics: Iterable[Metric]) -> list[Estimate]:
    """One estimate per case, metric and device, over the launches that ended ok.

    In a launch the median over its rounds stands for it. Over launches of a timed case:
    the geometric mean and the 95 % interval of Student's t on logarithms
    (`bench.analysis.intervals`); with one launch no interval and the note `too few launches`.
    A metric that is declared so (a memory peak) is the largest over launches, and so is every
    metric of a parity launch: no interval, as the largest is what has to fit, or to pass.
    """
    peaks = {metric.name for metric in metrics if metric.combine == "largest"}
    of_case = {launch.case_id: launch for launch in launches}
    found = []
    for (case_id, metric, device), values in launch_values(samples, launches).items():
        largest = of_case[case_id].purpose == "parity" or metric in peaks
        found.append(_estimate(of_case[case_id].run_id, (case_id, metric, device), values, largest=largest))
    return found


def _estimate(run_id: str, key: Key, launches: Sequence[LaunchValue], *, largest: bool) -> Estimate:
    values = [item.value for item in launches if item.value is not None]
    notes = [item.note for item in launches if item.note]
    case_id, metric, device = key
    if not values:
        return Estimate(
            run_id=run_id, case_id=case_id, metric=metric, device_index=device, launches=0, rounds=0,
            note=notes[0] if notes else "no launch has a value",
        )  # fmt: skip
    low: float | None = None
    high: float | None = None
    if largest:
        value = max(values)
    else:
        interval = mean_interval(values)
        value, low, high = interval.value, interval.low, interval.high
        if low is None:
            notes.insert(0, TOO_FEW)
    return Estimate(
        run_id=run_id, case_id=case_id, metric=metric, device_index=device, value=value, low=low, high=high,
        smallest=min(values), largest=max(values), launches=len(values),
        rounds=sum(item.rounds for item in launches), note="; ".join(dict.fromkeys(notes)) or None,
    )  # fmt: skip


def estimates_of(frame: pd.DataFrame) -> list[Estimate]:
    """The rows of a stored table `estimates`."""
    names = list(Estimate.__dataclass_fields__)
    columns: Mapping[str, list[Any]] = {name: _plain(frame[name]) for name in names}
    return [Estimate(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
