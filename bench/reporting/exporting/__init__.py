"""A run in the formats of others: for trackers of benchmarks, for spreadsheets, for a comment or a job summary.

A tracker takes one figure a case, so that only cases whose every launch ended ok can go there. The
tables hold every case, with its status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.analysis.checks import REASONS, Check, checks
from bench.analysis.summary import Row, summarise
from bench.errors import ResultsError
from bench.recording.reader import RunData
from bench.reporting.exporting import bencher, csv_table, github_action, markdown

TRACKERS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "github-action": github_action.text,
    "bencher": bencher.text,
}
TABLES: Mapping[str, Callable[[RunData], str]] = {"csv": csv_table.text, "markdown": markdown.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The text in the wanted format; with a line each: what it leaves out and why, what it holds but is not ranked, and
    every reason to doubt figures that the text itself does not tell.
    """

    text: str
    left_out: tuple[str, ...] = ()
    not_ranked: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def export(data: RunData, name: str) -> Exported:
    """The run in the format `name`, a key of `TRACKERS` or `TABLES`.

    ResultsError where there is nothing to export: no timed case, or for a tracker none that ended ok.
    """
    summaries = summarise(data)
    rows = [row for summary in summaries for row in summary.rows]
    if not rows:
        raise ResultsError(f"run {data.run.run_id} holds no timed case, so there is nothing to export")
    if name in TABLES:
        return Exported(text=TABLES[name](data))
    kept = [row for row in rows if _why_left_out(row) is None]
    left_out = tuple(f"{row.result.axes.case_id}: {why}" for row in rows if (why := _why_left_out(row)))
    if not kept:
        raise ResultsError(
            f"none of the {len(rows)} cases of run {data.run.run_id} has a figure for {name}, e.g. {left_out[0]}; "
            "--format markdown shows all with their status"
        )
    not_ranked = tuple(f"{row.result.axes.case_id}: {row.excluded}" for row in kept if row.excluded)
    doubts = tuple(_doubt(check) for check in checks(data, summaries) if check.title not in REASONS)
    return Exported(text=TRACKERS[name](kept), left_out=left_out, not_ranked=not_ranked, doubts=doubts)


def _doubt(check: Check) -> str:
    rest = f" (and {len(check.seen) - 1} more; the report lists all)" if len(check.seen) > 1 else ""
    return f"{check.title}: {check.seen[0]}{rest}" + (f" -> {check.remedy}" if check.remedy else "")


def _why_left_out(row: Row) -> str | None:
    if row.result.status != "ok":
        return f"{row.result.status}, {' '.join((row.result.reason or 'no reason recorded').split())}"
    return None if row.step else "no step_seconds measured"
