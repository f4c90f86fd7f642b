"""What the watcher read over the time of a launch, cut down to what a chart can show. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bench.analysis.summary import Row

POINTS = 120
"""Most points of a line; more readings are averaged over this many equal spans of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A gauge of one device: the values and their time since the launch began (s)."""

    device_index: int
    seconds: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A gauge of one launch.

    seconds: last reading of the launch; measured: from where to where the rounds were measured, None
    where it did not come to that; absent: why a device has no line, one reason a device.
    """

    title: str
    launch: int
    seconds: float
    measured: tuple[float, float] | None
    lines: tuple[Line, ...]
    absent: tuple[str, ...]


def watched_launches(timeline: pd.DataFrame, rows: Iterable[Row]) -> dict[str, pd.DataFrame]:
    """For each case one launch that was watched: the first that ended ok, else the first."""
    places: Mapping[Any, Any] = timeline.groupby(["case_id", "launch"], sort=False).indices if len(timeline) else {}
    found = {}
    for row in rows:
        launches = sorted(row.result.launches, key=lambda launch: launch.status != "ok")
        keys = [(launch.case_id, launch.launch) for launch in launches]
        chosen = next((key for key in keys if key in places), None)
        if chosen is not None:
            found[chosen[0]] = timeline.take(places[chosen])
    return found


def panels(watched: Mapping[str, pd.DataFrame], rows: Iterable[Row], gauge: str) -> list[Panel]:
    """A panel for each case of `rows` that has a reading of `gauge`, in their order."""
    chosen = [(row, watched[row.result.axes.case_id]) for row in rows if row.result.axes.case_id in watched]
    return [_panel(row, frame, gauge) for row, frame in chosen if frame[gauge].notna().any()]


def _panel(row: Row, frame: pd.DataFrame, gauge: str) -> Panel:
    launch = int(frame["launch"].iloc[0])
    status = {item.launch: item.status for item in row.result.launches}[launch]
    inside = frame.loc[frame["measured"].astype(bool), "elapsed_seconds"]
    lines, absent = [], []
    for index, of_device in frame.groupby("device_index"):
        read = of_device.loc[of_device[gauge].notna(), ["elapsed_seconds", gauge]]
        if len(read):
            lines.append(_line(int(str(index)), read["elapsed_seconds"].to_numpy(float), read[gauge].to_numpy(float)))
        else:
            absent.append(_reason(of_device, gauge))
    return Panel(
        title=row.title if status == "ok" else f"{row.title}: {status}",
        launch=launch,
        seconds=float(frame["elapsed_seconds"].max()),
        measured=(float(inside.min()), float(inside.max())) if len(inside) else None,
        lines=tuple(lines),
        absent=tuple(absent),
    )


def _reason(frame: pd.DataFrame, gauge: str) -> str:
    listed = frame["unavailable"].iloc[-1]
    reasons = listed if isinstance(listed, list) else []  # null in files without the column
    return next((str(item["value"]) for item in reasons if item["name"] == gauge), "no reading")


def _line(device_index: int, seconds: Any, values: Any) -> Line:
    """The readings by time; means over equal spans of time where there are more than `POINTS`."""
    order = np.argsort(seconds, kind="stable")
    seconds, values = seconds[order], values[order]
    if len(seconds) > POINTS:
        span = (seconds[-1] - seconds[0]) or 1.0
        place = np.minimum((POINTS * (seconds - seconds[0]) / span).astype(int), POINTS - 1)
        counts = np.bincount(place, minlength=POINTS)
        kept = counts > 0
        seconds, values = (np.bincount(place, part, POINTS)[kept] / counts[kept] for part in (seconds, values))
    return Line(device_index=device_index, seconds=tuple(seconds.tolist()), values=tuple(values.tolist()))
