"""Room for results and for temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.doctor.box import Box
from bench.doctor.findings import Note, check, gib, ok, problem, warning

AREA = "disk"
# A long run leaves some ten MiB; below a GiB something else is about to fill the disk.
LOW_BYTES, NONE_BYTES = 2**30, 64 * 2**20


@check(AREA, "results")
def results(box: Box) -> Iterator[Note]:
    yield judge_folder(box.results, "what is measured cannot be kept: a run refuses to start")


@check(AREA, "temporary files")
def temporary(box: Box) -> Iterator[Note]:
    yield judge_folder(Path(tempfile.gettempdir()), "workers cannot write their logs and no launch starts")


def judge_folder(folder: Path, effect: str) -> Note:
    """Whether a folder, or the one it would be made in, can be written to and has room."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free, remedy = shutil.disk_usage(there).free, f"free some space for {there}, or choose another folder"
    fact = f"{folder}: {gib(free)} free" + ("" if there == folder.absolute() else ", not made yet")
    if not there.is_dir() or not os.access(there, os.W_OK):
        return problem(
            f"{folder}: {there} is not a folder one may write to", effect, "choose another (--results, TMPDIR)"
        )
    if free < NONE_BYTES:
        return problem(fact, effect, remedy)
    return warning(fact, f"when it is full: {effect}", remedy) if free < LOW_BYTES else ok(fact)
