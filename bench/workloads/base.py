"""What a workload is: a model with its data, loss and optimizer. It knows no strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from bench.data.base import Batch, DataSource
from bench.errors import UnknownNameError
from bench.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of a workload. Exactly one of the two batch fields is set."""

    text: str
    global_batch_size: int | None = None
    batch_per_device: int | None = None
    tokens_per_sample: int | None = None


class Workload(ABC):
    """A model with its data, loss and optimizer, at one of its sizes.

    A subclass declares the class variables and the abstract methods, and registers itself
    with `@register`; nothing else in the suite needs an edit.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    address: ClassVar[str | None] = None
    """What `--workload` said to find this class; None for one that the suite holds."""
    sizes: ClassVar[Mapping[str, Size]]
    default_data: ClassVar[str] = "synthetic"
    sample_word: ClassVar[str] = "samples"
    epoch_data: ClassVar[str | None] = None
    epoch_samples: ClassVar[int | None] = None
    """Name and samples of the full data set that an epoch stands for, where there is a usual one."""
    parity_learning_rate: ClassVar[float] = 0.05
    """Plain SGD's in the parity check: small enough to train, large enough that every parameter
    moves by more than float32 resolves within 3 steps."""
    low_precision: ClassVar[bool] = False
    """The standard preset measures in bf16 autocast where the card has it."""
    compare_loss_placements: ClassVar[bool] = False
    """The main comparison shows DataParallel with both placements of the loss."""

    def __init__(self, size: str) -> None:
        if size not in self.sizes:
            raise UnknownNameError(f"size of {self.name}", size, self.sizes)
        self.size_name = size

    @property
    def size(self) -> Size:
        return self.sizes[self.size_name]

    @abstractmethod
    def build(self) -> nn.Module:
        """A new model on the CPU in float32. The caller has seeded torch."""

    @abstractmethod
    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Submodules that FSDP shards one by one, in forward order; parameters may not be shared between them."""

    @abstractmethod
    def prepare(self, data: str, data_root: Path | None, cache: Path) -> DataSource:
        """Make `data` (synthetic or real) ready, once, before any worker starts.

        Files that have to be unpacked or decoded go into `cache`, written atomically.
        Raises UsageError with the remedy when the data is not there, DataError when it is damaged.
        """

    @abstractmethod
    def dataset(self, source: DataSource, seed: int) -> Dataset[Batch]:
        """A map-style dataset; item i is one sample as an unbatched `Batch`, the same for every process."""

    def collate(self, examples: Sequence[Batch]) -> Batch:
        """Stack samples into a batch along a new dimension 0."""
        return Batch(
            args=tuple(default_collate(list(column)) for column in zip(*(item.args for item in examples), strict=True)),
            kwargs={key: default_collate([item.kwargs[key] for item in examples]) for key in examples[0].kwargs},
            targets=default_collate([item.targets for item in examples]),
        )

    @abstractmethod
    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """`(loss_sum, weight)`, two scalars: the loss summed over what counts, and how much that was.

        Training divides by the weight of the whole global batch, so that unequal shards and
        chunks are exact; `loss_sum` is never averaged here.
        """

    def weight(self, dataset: Dataset[Batch], indices: Iterable[int]) -> float:
        """Weight of a global batch, known before it is split: here the number of samples."""
        return float(sum(1 for _ in indices))

    @abstractmethod
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The workload's own optimizer at its default implementation."""


registry: Registry[type[Workload]] = Registry("workload", "bench.workloads")

WorkloadClass = TypeVar("WorkloadClass", bound=type[Workload])


def register(cls: WorkloadClass) -> WorkloadClass:
    """Class decorator: make a workload known under its `name`."""
    registry.add(cls.name, cls)
    return cls


def find(address: str) -> type[Workload]:
    """The workload called `address`."""
    return registry.get(address)
