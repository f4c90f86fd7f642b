"""Writing a file so that a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from bench.errors import ResultsError


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place of `path`.

    The data are on the disk before the name is. ResultsError names the path where the system refuses.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResultsError(f"cannot write {path}: {reason}; free space or choose another folder") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    # The file itself is safe by now; some network file systems cannot sync a folder.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_writable(folder: Path, *, what: str, option: str) -> None:
    """ResultsError unless a file can be written in `folder`, which is made if it is missing.

    The error says that `what` (`the results`) has no place there, and that `option` chooses another.

    It writes a probe: permission bits say nothing to root, and nothing about a full or read-only disk.
    """
    probe = folder / f".probe-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(probe, "wb") as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResultsError(
            f"{what} cannot be written to {folder}: {reason}; choose a folder you may write with {option} DIR"
        ) from error
