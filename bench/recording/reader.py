"""Reads a run back: parts, compacted files, older layouts, in any mix.

What cannot be read is named and set aside; the rest loads. Nothing is unpickled.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.errors import ResultsError
from bench.recording.columns import METRICS_KEY, TABLE_KEY, VERSION_KEY, arrow_schema, from_row
from bench.schema import SCHEMA_VERSION, TABLES, Launch, Metric, Run

PARTS = "parts"
TIMELINE = "timeline"
_PART_NAME = re.compile(r"(launches|samples|timeline)-\d+\.parquet")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "run": ("run_id",),
    "launches": ("case_id", "launch"),
    "samples": ("case_id", "launch", "metric", "device_index", "round_index"),
    TIMELINE: ("case_id", "launch", "device_index", "elapsed_seconds"),
    "estimates": ("case_id", "metric", "device_index"),
}
_LARGEST = ("peak_allocated_bytes", "peak_reserved_bytes", "host_peak_rss_bytes")
"""Metrics that stood for their largest launch before a declaration said how launches combine."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunData:
    """All that could be read of one run but its timeline, which may be long: `read_timeline` reads that.

    `samples` and `estimates` have the columns of `bench.schema`; whole numbers are `Int64`,
    so that a null stays one. `estimates` is empty where the run did not finish.
    `problems` has a sentence for each file that was set aside.
    """

    folder: Path
    run: Run
    launches: tuple[Launch, ...]
    samples: pd.DataFrame
    estimates: pd.DataFrame
    metrics: Mapping[str, Metric]
    problems: tuple[str, ...] = ()


def read_run(folder: Path) -> RunData:
    """Read the run in `folder`. ResultsError where no file of it can be read.

    Where only `run.parquet` is unreadable, `run` holds what the launches tell; the rest of it is None.
    """
    problems: list[str] = _strangers(folder)
    metrics: dict[str, Metric] = {}
    tables = {table: _read_table(folder, table, problems, metrics)[0] for table in TABLES if table != TIMELINE}
    launches = _launches(tables["launches"])
    rows = tables["run"].to_pylist()
    if not rows and not launches:
        raise ResultsError("; ".join([f"{folder} holds no readable run", *problems]))
    return RunData(
        folder=folder,
        run=from_row(Run, rows[0]) if rows else _run_of(folder, launches),
        launches=launches,
        samples=_frame(tables["samples"], _KEYS["samples"]),
        estimates=_frame(tables["estimates"], _KEYS["estimates"]),
        metrics=metrics,
        problems=tuple(problems),
    )


def read_timeline(folder: Path) -> pd.DataFrame:
    """The table `timeline` of the run in `folder`, in the order in which it was written.

    It has the columns of `bench.schema.TimelineRow`; whole numbers are `Int64`, `unavailable` stays an
    Arrow column. It is empty where nothing was watched and for runs that are older than the table.
    `.attrs["problems"]` has a sentence for each file that was set aside.
    """
    problems: list[str] = []
    frame = _frame(_read_table(folder, TIMELINE, problems, {})[0], _KEYS[TIMELINE])
    frame.attrs["problems"] = problems
    return frame


def read_parts(folder: Path, table: str, metrics: Sequence[Metric]) -> tuple[Any, list[Path]]:
    """The parts of one table as one pyarrow table, and the files that it came from."""
    paths = sorted((folder / PARTS).glob(f"{table}-*.parquet"))
    rows, used = _concat(paths, table, [], {})
    return rows.cast(arrow_schema(table, metrics)), used


def read_columns(
    folder: Path, table: str, columns: Sequence[str], *, metric: str | None = None
) -> list[dict[str, Any]]:
    """Some columns of one table of a finished run, row by row; of one metric only, where one is named.

    It reads nothing else, for a look at many runs. Empty where the file is not there or cannot be read: `read_run`
    says why.
    """
    try:
        chosen = ["metric", *columns] if metric is not None else list(columns)
        content = _read_file(folder / f"{table}.parquet", table, [], {}, list(dict.fromkeys(chosen)))
    except (ResultsError, OSError):
        return []
    if metric is not None:
        content = content.filter(pc.equal(content.column("metric"), metric))
    found: list[dict[str, Any]] = content.select(list(columns)).to_pylist()
    return found


def _read_table(folder: Path, table: str, problems: list[str], metrics: dict[str, Metric]) -> tuple[Any, list[Path]]:
    whole = folder / f"{table}.parquet"
    paths = ([whole] if whole.exists() else []) + sorted((folder / PARTS).glob(f"{table}-*.parquet"))
    if table == "run" and not paths:
        problems.append(f"{whole}: missing, so the environment of the run is unknown")
    return _concat(paths, table, problems, metrics)


def _concat(
    paths: Sequence[Path], table: str, problems: list[str], metrics: dict[str, Metric]
) -> tuple[Any, list[Path]]:
    found, used = [_lenient(table).empty_table()], []
    for path in paths:
        try:
            found.append(_read_file(path, table, problems, metrics))
            used.append(path)
        except ResultsError as error:
            problems.append(str(error))
    return pa.concat_tables(found), used


@functools.cache
def _lenient(table: str) -> Any:
    return pa.schema([pa.field(item.name, item.type) for item in arrow_schema(table)])


def _read_file(
    path: Path, table: str, problems: list[str], metrics: dict[str, Metric], only: Sequence[str] | None = None
) -> Any:
    """The file with exactly the columns of `table`, or `only` some; ResultsError says why it is set aside."""
    if path.stat().st_size == 0:
        raise ResultsError(f"{path}: set aside, the file is empty")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata = file.schema_arrow.metadata or {}
            _check_origin(path, table, metadata)
            there = file.schema_arrow.names
            content = file.read(None if only is None else [name for name in only if name in there])
    except (pa.ArrowException, OSError, ValueError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ResultsError(f"{path}: set aside, not a readable parquet file ({first_line})") from error
    # A column that came with a later layout has a default; without one it was always there.
    required = [item.name for item in fields(TABLES[table]) if item.default is MISSING]
    lacking = [name for name in required if name not in there]
    if lacking:
        raise ResultsError(f"{path}: set aside, column {lacking[0]} is missing")
    schema = _lenient(table)
    if only is not None:
        return pa.table([_column(content, schema.field(name), path) for name in only], names=list(only))
    metrics |= _metrics(metadata.get(METRICS_KEY), path, problems)
    unknown = [name for name in content.column_names if name not in schema.names]
    if unknown:
        problems.append(f"{path}: left out unknown columns {', '.join(unknown)}")
    columns = [_column(content, item, path) for item in schema]
    return pa.table(columns, schema=schema)


def _check_origin(path: Path, table: str, metadata: Mapping[bytes, bytes]) -> None:
    version, of = metadata.get(VERSION_KEY, b""), metadata.get(TABLE_KEY, b"").decode(errors="replace")
    if not version.isdigit() or of not in TABLES:
        raise ResultsError(f"{path}: set aside, not written by dpbench")
    if int(version) > SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: set aside, layout {int(version)} is newer than the {SCHEMA_VERSION} this dpbench reads; update it"
        )
    if of != table:
        raise ResultsError(f"{path}: set aside, it holds the table {of}")


def _column(content: Any, wanted: Any, path: Path) -> Any:
    if wanted.name not in content.column_names:
        return pa.nulls(content.num_rows, wanted.type)
    try:
        found = content.column(wanted.name)
        if pa.types.is_nested(wanted.type) and found.type != wanted.type:
            # An older layout: its structs lack the fields that came later, and not every pyarrow casts those.
            return pa.array(found.to_pylist(), wanted.type)
        return found.cast(wanted.type)
    except pa.ArrowException as error:
        raise ResultsError(f"{path}: set aside, column {wanted.name} is not {wanted.type} ({error})") from error


def _metrics(text: bytes | None, path: Path, problems: list[str]) -> dict[str, Metric]:
    names = {item.name for item in fields(Metric)}
    try:
        listed = json.loads(text or b"[]")
        found = [_metric({key: value for key, value in item.items() if key in names}) for item in listed]
    except (ValueError, TypeError, AttributeError) as error:
        problems.append(f"{path}: its declarations of metrics cannot be read ({error})")
        return {}
    return {metric.name: metric for metric in found}


def _metric(declared: Mapping[str, Any]) -> Metric:
    older: dict[str, Any] = {"combine": "largest" if declared.get("name") in _LARGEST else "mean"}
    return Metric(**{**older, **declared})


def _launches(table: Any) -> tuple[Launch, ...]:
    unique: dict[tuple[str, int], Launch] = {}
    for row in table.to_pylist():
        launch = from_row(Launch, row)
        unique.setdefault((launch.case_id, launch.launch), launch)
    return tuple(sorted(unique.values(), key=lambda launch: launch.position or 0))


def _pandas_type(kind: Any) -> Any:
    if pa.types.is_nested(kind):
        return pd.ArrowDtype(kind)  # not a Python object a row
    return pd.Int64Dtype() if kind == pa.int64() else None


def _frame(table: Any, keys: Sequence[str]) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper=_pandas_type)
    # A run that stopped while it compacted has the same rows in a part and in the whole file.
    unique: pd.DataFrame = frame.drop_duplicates(subset=list(keys), ignore_index=True)
    return unique


def _run_of(folder: Path, launches: Sequence[Launch]) -> Run:
    first = launches[0]
    known = {"run_id": first.run_id or folder.name, "device_type": first.device_type, "started_at": first.started_at}
    return from_row(Run, known)


def _strangers(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ResultsError(f"{folder} is no folder; give the folder of a run")
    known = {f"{table}.parquet" for table in TABLES}
    files = [path for path in sorted(folder.iterdir()) if path.name not in known and path.name != PARTS]
    parts = folder / PARTS
    if parts.is_dir():
        files += [path for path in sorted(parts.iterdir()) if not _PART_NAME.fullmatch(path.name)]
    return [f"{path}: set aside, not a results file" for path in files if not path.name.startswith(".")]


def is_run(folder: Path) -> bool:
    """Whether `folder` looks like the folder of a run."""
    return folder.is_dir() and ((folder / PARTS).is_dir() or any((folder / f"{t}.parquet").exists() for t in TABLES))


def runs(results: Path) -> list[Path]:
    """Folders of the runs in `results`, the newest first; empty where there is none."""
    return [folder for folder, _ in runs_with_rows(results)]


def runs_with_rows(results: Path) -> list[tuple[Path, Run | None]]:
    """The same, each with its environment; None where that cannot be read."""
    if not results.is_dir():
        return []
    found = [(path, read_run_row(path)) for path in results.iterdir() if is_run(path)]
    return sorted(found, key=lambda item: _started(*item), reverse=True)


def read_run_row(folder: Path) -> Run | None:
    """The environment of a run, nothing else of it; None where `run.parquet` cannot be read."""
    try:
        rows = _read_file(folder / "run.parquet", "run", [], {}).to_pylist()
    except (ResultsError, OSError):
        return None
    return from_row(Run, rows[0]) if rows else None


def _started(folder: Path, run: Run | None) -> tuple[datetime, str]:
    started = run.started_at if run is not None else None
    return started or datetime.fromtimestamp(folder.stat().st_mtime, timezone.utc), folder.name


def find_run(results: Path, name: str = "latest") -> Path:
    """Folder of a run: `latest`, a run id in `results`, or a path. ResultsError lists what there is."""
    found = runs(results)
    if name == "latest" and found:
        return found[0]
    for folder in (results / name, Path(name)):
        if name != "latest" and is_run(folder):
            return folder
    if not found:
        raise ResultsError(f"no run in {results.absolute()}; measure one, or name its folder with --results DIR")
    listed = ", ".join(folder.name for folder in found[:5])
    raise ResultsError(f"no run {name!r} in {results.absolute()}; there is: {listed}{', ...' if found[5:] else ''}")
