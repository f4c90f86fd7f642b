"""`bench.load`: every case of every run as one wide pandas table."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from bench.analysis.cases import CaseResult, case_results, settings_text
from bench.analysis.overhead import Overhead, run_overheads
from bench.errors import ResultsError
from bench.recording.reader import RunData, is_run, read_run, runs
from bench.schema import Metric

AXES = (
    "run_id", "case_id", "workload", "strategy", "device_type", "num_devices", "world_size", "global_batch_size",
    "size", "size_text", "data", "data_source", "precision", "accumulation_steps",
)  # fmt: skip


def load(results: str | Path = "results") -> pd.DataFrame:
    """One row per timed case and run, the newest run first.

    `results` is the folder of all runs, or of one. Columns: the axes of the case, `status`
    with `reason`, the number of `launches` and of `launches_ok`; for each metric `<metric>`
    with its 95 % interval `<metric>_low` and `<metric>_high`; for a metric that each device
    has, `<metric>_max`, `<metric>_min` and the list `<metric>_per_device` (and `<metric>` too
    where the whole case has a value of its own, as for energy); `parallel_overhead_seconds` with
    its interval (see `bench.analysis.overhead`), null where the run has no case of `single` at the largest
    chunk; `parity_error`
    (in fp32, or in float64 where the note of its sample says so) with `parity_status` and
    `parity_reason`, and `reduced_precision_error`. Units are those of the parquet files: seconds,
    bytes, per second.

    What could not be read is left out, with a warning each, and listed in `.attrs["problems"]`.
    ResultsError where there is no run.
    """
    folder = Path(results)
    problems: list[str] = []
    if is_run(folder):
        folders = [folder]
    else:
        folders = runs(folder)
        problems += _strangers(folder, folders)
    frames = []
    for run_folder in folders:
        try:
            data = read_run(run_folder)
        except ResultsError as error:
            problems.append(str(error))
            continue
        problems += data.problems
        frames.append(case_table(data))
    if not frames:
        raise ResultsError("; ".join([f"no run in {folder.absolute()}; measure one or name its folder", *problems]))
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    # A frame without rows has no types to add, and would turn those of the others into objects.
    table: pd.DataFrame = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
    table.attrs["problems"] = problems
    return table


def _strangers(folder: Path, known: list[Path]) -> list[str]:
    if not folder.is_dir():
        return []
    others = [path for path in sorted(folder.iterdir()) if path not in known and not path.name.startswith(".")]
    return [f"{path}: set aside, not a run" for path in others if path.is_file()]


def case_table(data: RunData) -> pd.DataFrame:
    """The rows of `load` for one run."""
    results = case_results(data)
    overheads = run_overheads(data, results)
    rows = [_row(result, data.metrics) | _overhead_columns(overheads[result.axes.case_id]) for result in results]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def _row(result: CaseResult, metrics: Mapping[str, Metric]) -> dict[str, object]:
    axes = result.axes
    row: dict[str, object] = {name: getattr(axes, name) for name in AXES}
    row |= {
        "settings": settings_text(axes),
        "chunk_sizes": list(axes.chunk_sizes),
        "emulated": result.emulated,
        "oversubscribed": result.oversubscribed,
        "status": result.status,
        "reason": result.reason,
        "launches": len(result.launches),
        "launches_ok": result.launches_ok,
    }
    for name, metric in metrics.items():
        if name == "parity_error":
            continue
        if metric.per_device:
            row |= _device_columns(result, name)
        if not metric.per_device or (name, None) in result.estimates:
            row |= _case_columns(result, name)
    return row | {
        "parity_error": _float(result.parity.error),
        "parity_status": result.parity.status,
        "parity_reason": result.parity.reason,
        "reduced_precision_error": _float(result.parity.reduced_precision_error),
    }


def _case_columns(result: CaseResult, name: str) -> dict[str, object]:
    found = result.of(name)
    ends = (found.value, found.low, found.high) if found else (None, None, None)
    return {column: _float(value) for column, value in zip((name, f"{name}_low", f"{name}_high"), ends, strict=True)}


def _overhead_columns(overhead: Overhead) -> dict[str, object]:
    found = overhead.seconds
    return {
        f"parallel_overhead_seconds{end}": _float(getattr(found, part) if found else None)
        for end, part in (("", "value"), ("_low", "low"), ("_high", "high"))
    }


def _device_columns(result: CaseResult, name: str) -> dict[str, object]:
    values = result.per_device(name)
    known = [value for value in values if value is not None]
    return {
        f"{name}_max": _float(max(known, default=None)),
        f"{name}_min": _float(min(known, default=None)),
        f"{name}_per_device": values or None,
    }


def _float(value: float | None) -> float:
    # NaN is pandas' null of a float column; None would make it a column of objects.
    return float("nan") if value is None else value
