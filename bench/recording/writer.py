"""Parquet files of a run: one part a launch while it runs, one file a table when it is over.

    results/<run_id>/run.parquet
    results/<run_id>/parts/launches-00012.parquet, samples-00012.parquet, timeline-00012.parquet   (one launch)
    results/<run_id>/launches.parquet, samples.parquet, timeline.parquet, estimates.parquet        (after `finish`)

A crash loses the launch under way at the most.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.errors import ResultsError
from bench.recording.columns import arrow_table
from bench.recording.files import write_atomically
from bench.recording.reader import PARTS, TIMELINE, read_parts
from bench.schema import Estimate, Launch, Metric, Run, Sample, TimelineRow

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run_id(run_id: str) -> None:
    """ResultsError unless `run_id` is a plain folder name."""
    if not _RUN_ID.fullmatch(run_id) or run_id == "latest":
        raise ResultsError(
            f"run id {run_id!r} cannot name a folder; use letters, digits, '.', '_' and '-', "
            "at most 100 of them, and not 'latest'"
        )


class RunWriter:
    """Writes one run. `folder` is where: `results/<run_id>`.

    ResultsError for a run id that is no plain folder name, and for a run that exists.
    """

    def __init__(self, results: Path, run: Run, metrics: Sequence[Metric]) -> None:
        check_run_id(run.run_id)
        self.folder = results / run.run_id
        self._run = run
        self._metrics = tuple(metrics)
        try:
            results.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir()
            (self.folder / PARTS).mkdir()
        except FileExistsError:
            raise ResultsError(f"{self.folder} exists; choose another --run-id or remove the folder") from None
        except OSError as error:
            raise ResultsError(f"cannot make {self.folder}: {error.strerror}; choose another --results DIR") from error
        try:
            self._write("run", [run], self.folder / "run.parquet")
        except ResultsError:
            shutil.rmtree(self.folder)
            raise

    def describe(self, run: Run) -> None:
        """Put another row of the run in the place of the first: what was found out since."""
        self._write("run", [run], self.folder / "run.parquet")
        self._run = run

    def add(self, launch: Launch, samples: Sequence[Sample], timeline: Sequence[TimelineRow] = ()) -> None:
        """Put a finished launch, its samples and what was watched on the disk at once.

        The launch is written last: where it can be read, all the rest can.
        """
        parts = self.folder / PARTS
        path = parts / f"launches-{launch.position:05d}.parquet"
        if path.exists():
            raise ResultsError(f"{path} exists; two launches claim position {launch.position}")
        self._write("samples", samples, parts / f"samples-{launch.position:05d}.parquet")
        if timeline:
            self._write(TIMELINE, timeline, parts / f"{TIMELINE}-{launch.position:05d}.parquet")
        self._write("launches", [launch], path)

    def finish(self, estimates: Sequence[Estimate], finished_at: datetime) -> None:
        """Compact the parts to one file a table, add the estimates, then remove the parts.

        A part that cannot be read stays where it is; the reader will name it.
        """
        used: list[Path] = []
        for table in ("launches", "samples", TIMELINE):
            rows, files = read_parts(self.folder, table, self._metrics)
            _write_table(rows, self.folder / f"{table}.parquet")
            used += files
        self._write("estimates", estimates, self.folder / "estimates.parquet")
        self._write("run", [replace(self._run, finished_at=finished_at)], self.folder / "run.parquet")
        for path in used:
            path.unlink(missing_ok=True)
        parts = self.folder / PARTS
        if not any(parts.iterdir()):
            parts.rmdir()

    def _write(self, table: str, rows: Sequence[object], path: Path) -> None:
        _write_table(arrow_table(table, rows, metrics=self._metrics, file=path), path)


def _write_table(table: Any, path: Path) -> None:
    write_atomically(path, lambda file: pq.write_table(table, file, write_page_checksum=True))
