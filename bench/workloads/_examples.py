"""Samples that a workload makes one by one, and how samples become a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from bench.data.base import Batch
from bench.data.files import check_index, sample_generator
from bench.errors import DataError, UsageError
from bench.structure import tensors_of

SYNTHETIC_SAMPLES = 1_000_000

Example = Callable[[int], Batch]


class Examples(Dataset[Batch]):
    """`length` samples of `example`, each made under a seed that comes from `seed` and its index."""

    def __init__(self, example: Example, length: int, seed: int) -> None:
        self.example, self.length, self.seed = example, length, seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        check_index(index, self.length)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(sample_generator(self.seed, index).initial_seed())
            return self.example(index)


def check_example(example: Example, name: str) -> None:
    """DataError where `example` makes no Batch, or not the same one each time: parity would mean nothing."""
    dataset = Examples(example, 1, 0)
    first, again = dataset[0], dataset[0]
    if not isinstance(first, Batch):
        raise DataError(
            f"{name} returns {type(first).__name__}, not a Batch; return Batch(args=(...,), kwargs={{...}}, "
            "targets=...)"
        )
    pairs = list(zip(tensors_of(first), tensors_of(again), strict=True))
    if any(not bool(one.isfinite().all()) for one, _ in pairs):
        raise DataError(f"{name}(0) holds a number that is not finite; no model trains on that")
    if not all(torch.equal(one, other) for one, other in pairs):
        raise DataError(
            f"{name}(0) makes another sample each time; draw random numbers with torch, which is seeded for "
            "each sample, or seed your own generator with the index"
        )


def _alike(values: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    if any(value != values[0] for value in values):
        raise UsageError(
            f"an input that is no tensor differs between samples: {sorted({str(value) for value in values})[:4]}; give "
            "every sample the same, or write collate()"
        )
    return values[0]


COLLATE = default_collate_fn_map | {bool: _alike, str: _alike, type(None): _alike}


def stack(values: Sequence[Any]) -> Any:
    """Tensors and numbers stacked along a new dimension 0, at any depth; flags, texts and None kept once."""
    try:
        return collate(list(values), collate_fn_map=COLLATE)
    except RuntimeError as error:
        raise UsageError(
            f"samples cannot be stacked: {str(error).splitlines()[0]}; make them of one shape (pad them), or write "
            "collate()"
        ) from error
