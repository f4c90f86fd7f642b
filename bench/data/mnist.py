"""MNIST: the user's own full set where there is one, else the 5,000 images that ship."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.data.base import DataSource
from bench.data.files import cache_file, data_folders, file_state, row_count
from bench.data.images import save_images
from bench.errors import DataError

SIDE = 28
MEAN, STD = (0.1307,), (0.3081,)
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
MAGIC = {IMAGES: 2051, LABELS: 2049}
SHIPPED = files("bench.data").joinpath("mnist_5k.npz")

Pixels = NDArray[np.uint8]


def prepare_mnist(data_root: Path | None, cache: Path) -> DataSource:
    """The training images of torchvision's MNIST folder below the root, else the shipped subset.

    Looked for in `mnist/` below the root and in the root, each with or without `MNIST/raw`, unpacked
    or as .gz. UsageError where the root does not exist, DataError where its files are incomplete or damaged.
    """
    folder = _find_folder(data_root)
    if folder is None:
        path = _store(cache, "mnist-5k", zlib.crc32(SHIPPED.read_bytes()), shipped_mnist)
        count = row_count(path)
        text = f"MNIST subset, {count:,} real images (shipped)"
        return DataSource(kind="real", text=text, num_samples=count, path=str(path))
    sources = [_idx_file(folder, name) for name in (IMAGES, LABELS)]
    path = _store(cache, "mnist", [file_state(source) for source in sources], lambda: read_mnist(folder))
    count = row_count(path)
    return DataSource(kind="real", text=f"MNIST, {count:,} images of {folder}", num_samples=count, path=str(path))


def shipped_mnist() -> tuple[Pixels, Pixels]:
    """The shipped images (5000, 28, 28) and labels (5000,), in a fixed mixed order; see README.md beside them."""
    with as_file(SHIPPED) as path, np.load(path) as arrays:
        return arrays["images"], arrays["labels"]


def read_mnist(folder: Path) -> tuple[Pixels, Pixels]:
    """Training images (N, 28, 28) and labels (N,) of a folder of idx files; DataError where they are damaged."""
    images, labels = (_read_idx(_idx_file(folder, name), MAGIC[name]) for name in (IMAGES, LABELS))
    if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels) or not len(images):
        raise DataError(
            f"{folder} has images of shape {images.shape} and {len(labels)} labels, not as many images of "
            f"{SIDE}x{SIDE}; download MNIST again, or leave out --data-root to use the shipped subset"
        )
    if labels.max() > 9:
        raise DataError(f"{folder} has label {labels.max()}, MNIST's are 0 to 9; download MNIST again")
    return images, labels


def _store(cache: Path, label: str, key: object, read: Callable[[], tuple[Pixels, Pixels]]) -> Path:
    path = cache_file(cache, label, key)
    if not path.exists():
        images, labels = read()
        rows = ((image[None], int(label)) for image, label in zip(images, labels, strict=True))
        save_images(path, (1, SIDE, SIDE), len(images), rows)
    return path


def _find_folder(data_root: Path | None) -> Path | None:
    for root in data_folders(data_root, "mnist"):
        for folder in (root / "MNIST" / "raw", root / "raw", root):
            if any((folder / f"{IMAGES}{suffix}").exists() for suffix in ("", ".gz")):
                return folder
    return None


def _idx_file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise DataError(f"{folder} lacks {name} (or {name}.gz); download MNIST again, or leave out --data-root")


def _read_idx(path: Path, magic: int) -> Pixels:
    """Array of an idx file: a magic number whose last byte counts the dimensions, their sizes, then bytes."""
    remedy = "download it again, or leave out --data-root to use the shipped subset"
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); {remedy}") from error
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise DataError(f"{path} starts with the number {found}, an MNIST file with {magic}; {remedy}")
    start = 4 + 4 * (magic & 0xFF)
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise DataError(f"{path} has {len(content):,} bytes, not {start + math.prod(shape):,}; {remedy}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
