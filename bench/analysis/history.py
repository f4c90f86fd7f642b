"""Many runs, each as little as a comparison needs: its environment, and one metric of each of its cases."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from bench.analysis.cases import Parity, case_results, worst
from bench.analysis.environments import why_not_comparable
from bench.analysis.estimates import launch_values
from bench.analysis.intervals import LogMean, Reading, log_mean_of
from bench.errors import ResultsError
from bench.recording.reader import find_run, is_run, read_columns, read_run, read_run_row, runs, runs_with_rows
from bench.schema import MAX_BATCH, UNTIMED, Run

COMPARED = "step_p10_seconds"
"""What runs are compared by, unless another metric is named."""
PACE = "machine_pace_seconds"
MOST_WITH_READINGS = 20
"""Runs of a baseline up to which every launch is read; beyond, their estimates alone."""
DEFAULT_WINDOW = 10
_WINDOW = re.compile(r"last(?::(\d{1,6}))?")
_LAUNCH_COLUMNS = (
    "case_id", "purpose", "status", "reason", "emulated", "oversubscribed", "data_source", "chunk_sizes", "rounds",
    "search",
)  # fmt: skip
_ESTIMATE_COLUMNS = ("case_id", "device_index", "value", "low", "high", "launches")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecord:
    """One timed case of one run. value: the compared metric over its launches, None where none has it."""

    case_id: str
    status: str
    reason: str | None
    trusted: bool
    """Neither emulated nor oversubscribed."""
    data_source: str
    chunk_sizes: tuple[int, ...]
    value: LogMean | None
    rounds: float | None = None
    """Measured rounds a launch, the median."""
    readings: tuple[Reading, ...] = ()
    """The value of each launch with the machine's pace beside it; empty where they were not read."""
    parity: Parity = field(default_factory=Parity)
    """Whether it trains what one device trains; unknown where launches were not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run: where it lies, its environment, and its timed cases by their text."""

    folder: Path
    run: Run
    cases: Mapping[str, CaseRecord]


def read_record(folder: Path, metric: str = COMPARED, run: Run | None = None) -> RunRecord:
    """A run's cases with one metric; `run`: its environment, if that was read. ResultsError where all is unreadable."""
    run = run or read_run_row(folder)
    launches = read_columns(folder, "launches", _LAUNCH_COLUMNS)
    rows = read_columns(folder, "estimates", _ESTIMATE_COLUMNS, metric=metric)
    if run is None or not launches or not rows:
        return _read_whole(folder, metric)
    values = {row["case_id"]: _log_mean(row) for row in rows if row["device_index"] is None}
    return RunRecord(folder=folder, run=run, cases=_cases(launches, values))


def with_readings(record: RunRecord, metric: str = COMPARED) -> RunRecord:
    """The record with what each launch says, and each case's parity: what a comparison with few runs looks at."""
    data = read_run(record.folder)
    values = launch_values(data.samples, data.launches)
    parities = {result.axes.case_id: result.parity for result in case_results(data)}
    cases = {}
    for case_id, case in record.cases.items():
        paces = {item.launch: item.value for item in values.get((case_id, PACE, None), ())}
        readings = tuple(
            Reading(value=item.value, pace=paces.get(item.launch))
            for item in values.get((case_id, metric, None), ())
            if item.value is not None and item.value > 0
        )
        cases[case_id] = replace(case, readings=readings, parity=parities.get(case_id, case.parity))
    return replace(record, cases=cases)


def _read_whole(folder: Path, metric: str) -> RunRecord:
    """The same of a run that did not finish: from its parts, and its samples."""
    data = read_run(folder)
    rows = [{name: getattr(launch, name) for name in _LAUNCH_COLUMNS} for launch in data.launches]
    values = {}
    for result in case_results(data):
        if found := result.of(metric):
            values[found.case_id] = _log_mean({name: getattr(found, name) for name in _ESTIMATE_COLUMNS})
    return RunRecord(folder=folder, run=data.run, cases=_cases(rows, values))


def _log_mean(row: Mapping[str, object]) -> LogMean | None:
    value, low, high, launches = (row[name] for name in ("value", "low", "high", "launches"))
    return log_mean_of(value, low, high, launches)  # type: ignore[arg-type]


def _cases(launches: Iterable[Mapping[str, object]], values: Mapping[str, LogMean | None]) -> dict[str, CaseRecord]:
    of: dict[str, list[Mapping[str, object]]] = defaultdict(list)
    for row in launches:
        if row["purpose"] not in UNTIMED:
            of[str(row["case_id"])].append(row)
    return {case_id: _case(case_id, rows, values.get(case_id)) for case_id, rows in of.items() if not _given_up(rows)}


def _given_up(rows: Sequence[Mapping[str, object]]) -> bool:
    """A largest batch that ran out of memory when it was timed: the search times a smaller one in its place.

    Whether that happens is luck, a few megabytes from the limit: not a case that broke.
    """
    searched = all(str(row["search"] or "").startswith(MAX_BATCH) for row in rows)
    return searched and any(row["status"] == "oom" for row in rows)


def _case(case_id: str, rows: Sequence[Mapping[str, object]], value: LogMean | None) -> CaseRecord:
    status, reason = worst([(_text(row["status"]), _text(row["reason"])) for row in rows])
    chunks = rows[0]["chunk_sizes"]
    rounds = [row["rounds"] for row in rows if isinstance(row["rounds"], int)]
    return CaseRecord(
        case_id=case_id,
        status=status,
        reason=reason,
        trusted=not any(row["emulated"] or row["oversubscribed"] for row in rows),
        data_source=str(rows[0]["data_source"]),
        chunk_sizes=tuple(chunks) if isinstance(chunks, (list, tuple)) else (),
        value=value,
        rounds=median(rounds) if rounds else None,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a run is compared with, the newest first. words: what it is; left_out: runs that could not be read."""

    runs: tuple[RunRecord, ...]
    words: str
    left_out: tuple[str, ...] = ()


def find_baseline(results: Path, name: str, head: RunRecord, metric: str = COMPARED) -> Baseline:
    """The runs that `name` says `head` is to be compared with.

    `name`: a run id, `latest`, the folder of a run, a folder of runs (all that are comparable), or `last:N`
    (the last N comparable runs that began before `head`). A single run is given whether it is comparable or not.
    Without runs where a window holds no comparable one. ResultsError where there is no such run.
    """
    if not name.strip():
        raise ResultsError("the baseline has no name; give a run id, latest, a folder, or last:10")
    window, folder = _WINDOW.fullmatch(name.strip()), Path(name)
    if window is None and name.strip().startswith("last:") and not folder.exists():
        raise ResultsError(
            f"{name} is no window of runs; after last: comes their number, of at most 6 digits, e.g. last:10"
        )
    if window is not None:
        most = int(window[1] or DEFAULT_WINDOW)
        if most == 0:
            raise ResultsError("last:0 is a window without a run; write last:1 or more")
        found, left_out = _comparable(results, head, metric, most, earlier=True)
        before = f"comparable runs before {head.folder.resolve().name} in {results}"
        return Baseline(runs=found, words=f"the last {_count(found)}" if found else before, left_out=left_out)
    if folder.is_dir() and not is_run(folder) and runs(folder):
        found, left_out = _comparable(folder, head, metric, None, earlier=False)
        words = f"the {_count(found)} in {folder}" if found else f"comparable runs in {folder}"
        return Baseline(runs=found, words=words, left_out=left_out)
    found_run = find_run(results, name)
    return Baseline(runs=(read_record(found_run, metric),), words=f"run {found_run.resolve().name}")


def _count(found: Sequence[RunRecord]) -> str:
    return "comparable run" if len(found) == 1 else f"{len(found)} comparable runs"


def _comparable(
    where: Path, head: RunRecord, metric: str, most: int | None, *, earlier: bool
) -> tuple[tuple[RunRecord, ...], tuple[str, ...]]:
    found: list[RunRecord] = []
    left_out: list[str] = []
    unlike: list[str] = []
    for candidate, run in runs_with_rows(where):
        if len(found) == most:
            break
        if candidate.resolve() == head.folder.resolve() or (run and earlier and not _before(run, head.run)):
            continue
        if run is None:
            left_out.append(f"{candidate.name}: its environment cannot be read, so that it may be another machine's")
        elif why := why_not_comparable(run, head.run):
            unlike.append(f"{candidate.name}, the newest of those that are not comparable: {why}")
        else:
            try:
                record = read_record(candidate, metric, run)
            except ResultsError as error:
                left_out.append(str(error))
                continue
            if any(case.value is not None and name in head.cases for name, case in record.cases.items()):
                found.append(record)
            else:
                left_out.append(f"{candidate.name}: none of the cases has a figure of {metric} there")
    return tuple(found), tuple(left_out if found else [*left_out, *unlike[:1]])


def _before(run: Run, head: Run) -> bool:
    return run.started_at is not None and head.started_at is not None and run.started_at < head.started_at
