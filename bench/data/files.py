"""Where the user's data may lie, and how prepared files get into the cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.errors import UnknownNameError, UsageError

KINDS = ("synthetic", "real")
CACHE_LAYOUT = 1
"""Raised whenever a prepared file would look different, so that older ones are not reused."""


def is_real(data: str) -> bool:
    """Whether `data` is `real` rather than `synthetic`; UnknownNameError for any other word."""
    if data not in KINDS:
        raise UnknownNameError("kind of data", data, KINDS)
    return data == "real"


def data_folders(data_root: Path | None, *names: str) -> list[Path]:
    """Folders or files to look into, best first: `data_root/name` for each name, then `data_root` itself.

    One root can so serve every workload. Empty without a root; UsageError where the root does not exist.
    """
    if data_root is None:
        return []
    root = data_root.expanduser()
    if not root.exists():
        raise UsageError(f"data root {root} does not exist; check --data-root, or leave it out")
    return [path for path in (*(root / name for name in names), root) if path.exists()]


def cache_file(cache: Path, label: str, *key: object) -> Path:
    """Path in `cache` that is new whenever anything in `key` is, e.g. the names, sizes and times of the sources."""
    digest = hashlib.sha256(repr((CACHE_LAYOUT, *key)).encode()).hexdigest()[:16]
    return cache / f"{label}-{digest}.npy"


def file_state(path: Path) -> tuple[str, int, int]:
    """Absolute path, bytes and modification time of a file: what tells a stale cache."""
    state = path.stat()
    return str(path.resolve()), state.st_size, state.st_mtime_ns


def save_rows(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], rows: Iterable[NDArray[Any]]) -> None:
    """Write a .npy file row by row, so that it appears under `path` complete or not at all.

    `rows` yields `shape[0]` rows of `shape[1:]`. Written with plain writes: a full disk is then
    an OSError, where a memory map would kill the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for row in rows:
                file.write(np.ascontiguousarray(row, dtype=dtype).tobytes())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def row_count(path: Path) -> int:
    """Rows of a prepared .npy file, from its header."""
    return int(np.load(path, mmap_mode="r").shape[0])


def sample_generator(seed: int, index: int) -> torch.Generator:
    """Random numbers that depend on the seed and the number of the sample alone.

    torch's generator keeps 32 bits of its seed; this mixing gives every index below 2**32 its own.
    """
    return torch.Generator().manual_seed((seed * 0x9E3779B1 + index) & 0xFFFFFFFF)


def check_index(index: int, length: int) -> None:
    """IndexError outside 0..length-1, which also ends a `for` loop over a dataset."""
    if not 0 <= index < length:
        raise IndexError(f"sample {index} of {length}")
