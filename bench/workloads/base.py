"""What a workload is: a model with its data, loss and optimizer. It knows no strategy."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from bench.data.base import Batch, DataSource
from bench.errors import UnknownNameError, UsageError
from bench.registry import Registry
from bench.workloads._blocks import repeated_layers
from bench.workloads._examples import SYNTHETIC_SAMPLES, Examples, check_example, stack
from bench.workloads._objectives import mean_loss_of_each_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of a workload. Exactly one of the two batch fields is set."""

    text: str
    global_batch_size: int | None = None
    batch_per_device: int | None = None
    tokens_per_sample: int | None = None


class Workload(ABC):
    """A model with its data, loss and optimizer, at one of its sizes.

    The least that a model of your own needs is `build` and `example`:

        class Mine(Workload):
            def build(self):
                return Net()

            def example(self, index):
                return Batch(args=(torch.randn(32),), kwargs={}, targets=torch.randint(10, ()))

    Everything else has a default: `name` (from the class's name) and `summary` (from its docstring),
    `sizes` (32 samples a device; quick: 8 in all), `blocks` (the repeated layers), `prepare` and
    `dataset` (a million samples of `example`), `loss` (cross-entropy, or the squared error) and
    `optimizer` (AdamW). `--workload FILE.py:Mine` finds such a class; a file in this folder
    registers its class with `@register`, and nothing else in the suite needs an edit.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    address: ClassVar[str | None] = None
    """What `--workload` said to find this class; None for one that the suite holds."""
    sizes: ClassVar[Mapping[str, Size]] = {
        "standard": Size(text="own samples", batch_per_device=32),
        "quick": Size(text="own samples", global_batch_size=8),
    }
    default_data: ClassVar[str] = "synthetic"
    sample_word: ClassVar[str] = "samples"
    epoch_data: ClassVar[str | None] = None
    epoch_samples: ClassVar[int | None] = None
    """Name and samples of the full data set that an epoch stands for, where there is a usual one."""
    parity_learning_rate: ClassVar[float | None] = None
    """Plain SGD's in the parity check; None: steps are tiny, and in float64 where the model can."""
    low_precision: ClassVar[bool] = False
    """The standard preset measures in bf16 autocast where the card has it."""
    compare_loss_placements: ClassVar[bool] = False
    """The main comparison shows DataParallel with both placements of the loss."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A class has a name and a summary of its own; neither is taken from the class it extends."""
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "name" not in own:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        if "summary" not in own:
            cls.summary = ((own.get("__doc__") or "").strip() or cls.__name__).splitlines()[0]

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

    def example(self, index: int) -> Batch:
        """Sample `index`, unbatched. torch's random numbers are seeded for it: the same in every process."""
        raise UsageError(
            f"workload {self.name} ({type(self).__qualname__}) has neither example() nor dataset(); write "
            "example(self, index), which returns one unbatched sample as a Batch"
        )

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Submodules that FSDP shards one by one, in forward order; parameters may not be shared between them.

        By default the repeated layers (see `repeated_layers`); with none, FSDP shards the model as one.
        """
        return repeated_layers(model)

    def prepare(self, data: str, data_root: Path | None, cache: Path) -> DataSource:
        """Make `data` (synthetic or real) ready, once, before any worker starts.

        Files that have to be unpacked or decoded go into `cache`, written atomically.
        Raises UsageError with the remedy when the data is not there, DataError when it is damaged.
        """
        if data != "synthetic":
            raise UsageError(
                f"workload {self.name} has no {data} data; leave out --data {data}, or write its prepare() and "
                "dataset()"
            )
        source = DataSource(kind="synthetic", text=f"made by {type(self).__qualname__}", num_samples=SYNTHETIC_SAMPLES)
        dataset = self.dataset(source, 0)
        if isinstance(dataset, Examples):
            check_example(self.example, f"{type(self).__qualname__}.example")
        elif not isinstance(first := dataset[0], Batch):
            raise UsageError(
                f"{type(self).__qualname__}.dataset gives samples of type {type(first).__name__}; make each a "
                "Batch(args=(...,), kwargs={...}, targets=...)"
            )
        elif hasattr(dataset, "__len__"):
            source = replace(source, num_samples=len(dataset))
        return source

    def dataset(self, source: DataSource, seed: int) -> Dataset[Batch]:
        """A map-style dataset; item i is one sample as an unbatched `Batch`, the same for every process."""
        return Examples(self.example, source.num_samples, seed)

    def collate(self, examples: Sequence[Batch]) -> Batch:
        """Stack samples into a batch along a new dimension 0; texts, None and flags have to be alike and stay one."""
        return Batch(
            args=tuple(stack(column) for column in zip(*(item.args for item in examples), strict=True)),
            kwargs={key: stack([item.kwargs[key] for item in examples]) for key in examples[0].kwargs},
            targets=stack([item.targets for item in examples]),
        )

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """`(loss_sum, weight)`, two scalars: the loss summed over what counts, and how much that was.

        Training divides by the weight of the whole global batch, so that unequal shards and
        chunks are exact; `loss_sum` is never averaged here. By default the mean loss of each
        sample, summed over the samples (see `mean_loss_of_each_sample`); the weight is their number.
        """
        return mean_loss_of_each_sample(output, targets)

    def weight(self, dataset: Dataset[Batch], indices: Iterable[int]) -> float:
        """Weight of a global batch, known before it is split: here the number of samples."""
        return float(sum(1 for _ in indices))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The workload's own optimizer at its default implementation; AdamW with a rate of 1e-4 by default."""
        return torch.optim.AdamW(parameters, lr=1e-4)


registry: Registry[type[Workload]] = Registry("workload", "bench.workloads")

WorkloadClass = TypeVar("WorkloadClass", bound=type[Workload])


def register(cls: WorkloadClass) -> WorkloadClass:
    """Class decorator: make a workload known under its `name`."""
    registry.add(cls.name, cls)
    return cls
