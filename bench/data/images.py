"""Images with one label each: seeded noise, and real ones from a prepared file."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from bench.data.base import Batch, DataSource
from bench.data.files import (
    cache_file,
    check_index,
    data_folders,
    file_state,
    row_count,
    sample_generator,
    save_rows,
)
from bench.errors import DataError, UsageError

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp"))
MOST_IMAGES = 2048
"""Images decoded from a folder: enough for many different batches, 308 MB at 224 px."""

Shape = tuple[int, int, int]
LabelledFile = tuple[Path, int]


class NoiseImages(Dataset[Batch]):
    """Normal noise of `shape` (channels, height, width), float32, with a random label below `classes`."""

    def __init__(self, shape: Shape, classes: int, length: int, seed: int) -> None:
        self.shape, self.classes, self.length, self.seed = shape, classes, length, seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        check_index(index, self.length)
        generator = sample_generator(self.seed, index)
        image = torch.randn(self.shape, generator=generator)
        return Batch(args=(image,), kwargs={}, targets=torch.randint(self.classes, (), generator=generator))


class StoredImages(Dataset[Batch]):
    """Images of a file that `save_images` wrote, as float32 `(pixel / 255 - mean) / std`, one value a channel.

    The file is memory-mapped: processes share its pages, and a pickled dataset is only its path.
    """

    def __init__(self, path: str, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.path, self.mean, self.std = path, mean, std
        records = np.load(path, mmap_mode="r")
        self._images, self._labels = records["image"], records["label"]
        self._scale = (1 / (255 * np.array(std))).astype(np.float32).reshape(-1, 1, 1)
        self._shift = (np.array(mean) / np.array(std)).astype(np.float32).reshape(-1, 1, 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.mean, self.std)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Batch:
        check_index(index, len(self))
        image = torch.from_numpy(self._images[index] * self._scale - self._shift)
        return Batch(args=(image,), kwargs={}, targets=torch.tensor(int(self._labels[index])))


def save_images(path: Path, shape: Shape, count: int, examples: Iterable[tuple[NDArray[np.uint8], int]]) -> None:
    """Write `count` pairs of uint8 image and label for `StoredImages`, atomically."""
    dtype = np.dtype([("label", "<i8"), ("image", "u1", shape)])
    save_rows(path, dtype, (count,), (np.array((label, image), dtype=dtype) for image, label in examples))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolder:
    """One folder of images a class, as torchvision's `ImageFolder` reads it."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[LabelledFile, ...]


def scan_image_folder(root: Path) -> ImageFolder:
    """Every image below the class folders of `root`; classes are numbered by name, files sorted by path."""
    classes: list[str] = []
    files: list[LabelledFile] = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        found = [
            Path(parent, name)
            for parent, _, names in os.walk(folder, followlinks=True)
            for name in names
            if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
        ]
        if found:
            files += [(path, len(classes)) for path in sorted(found)]
            classes.append(folder.name)
    return ImageFolder(root=root, classes=tuple(classes), files=tuple(files))


def prepare_image_folder(data_root: Path | None, cache: Path, pixels: int, most_classes: int) -> DataSource:
    """At most `MOST_IMAGES` images of the user's folder, decoded once to `pixels` x `pixels` into `cache`.

    Looked for in `images/` (and its `train/`) below the root, then in the root. UsageError where there is
    none; DataError where there are more classes than the model has, or where an image cannot be decoded.
    """
    folder = _find_image_folder(data_root)
    if len(folder.classes) > most_classes:
        raise DataError(
            f"{folder.root} has {len(folder.classes)} class folders, the model has {most_classes} classes; "
            f"keep at most {most_classes} of them"
        )
    # A fixed sample: runs on one folder see the same images, whatever their seed.
    chosen = random.Random(0).sample(folder.files, min(MOST_IMAGES, len(folder.files)))
    states = [(*file_state(path), label) for path, label in chosen]
    path = cache_file(cache, f"images-{pixels}", str(folder.root.resolve()), len(folder.files), states)
    if not path.exists():
        save_images(path, (3, pixels, pixels), len(chosen), _decoded(chosen, pixels))
    text = f"{len(chosen):,} of {len(folder.files):,} images in {len(folder.classes):,} classes of {folder.root}"
    return DataSource(kind="real", text=text, num_samples=row_count(path), path=str(path))


def _find_image_folder(data_root: Path | None) -> ImageFolder:
    wanted = "one folder of JPEG or PNG files per class"
    if data_root is None:
        raise UsageError(f"real images need {wanted}; name it with --data-root, or use --data synthetic")
    for root in data_folders(data_root, "images/train", "images", "train"):
        if root.is_dir() and (folder := scan_image_folder(root)).files:
            return folder
    raise UsageError(
        f"no images in {data_root} or its folder images/: looked for {wanted}, e.g. {data_root}/images/cat/1.jpg; "
        "correct --data-root, or use --data synthetic"
    )


def _decoded(files: Sequence[LabelledFile], pixels: int) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Pairs of uint8 image (3, pixels, pixels) and label; after the last one a DataError names all bad files."""

    def decode(path: Path) -> NDArray[np.uint8] | str:
        try:
            return decode_image(path, pixels)
        except Exception as error:  # PIL raises nearly anything on a damaged file
            return f"{path} ({error})"

    bad: list[str] = []
    with ThreadPoolExecutor() as pool:  # PIL decodes without the GIL
        for start in range(0, len(files), 64):  # in parts, so that memory stays small
            part = files[start : start + 64]
            for (_, label), image in zip(part, pool.map(decode, [path for path, _ in part]), strict=True):
                if isinstance(image, str):
                    bad.append(image)
                else:
                    yield image, label
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise DataError(
            f"{len(bad)} of {len(files)} images cannot be decoded: {'; '.join(bad[:5])}{more}; "
            "replace or remove them, then start again"
        )


def decode_image(path: Path, pixels: int) -> NDArray[np.uint8]:
    """RGB image (3, pixels, pixels): shorter side scaled to `pixels`, centre cut out."""
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
        fitted = ImageOps.fit(upright, (pixels, pixels), method=Image.Resampling.BILINEAR)
    channels_first: NDArray[np.uint8] = np.asarray(fitted, dtype=np.uint8).transpose(2, 0, 1)
    return channels_first
