"""A small convolutional network on MNIST: many steps a second, so that overheads show."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from bench.data.base import Batch, DataSource
from bench.data.files import is_real
from bench.data.images import NoiseImages, StoredImages
from bench.data.mnist import MEAN, STD, prepare_mnist
from bench.workloads.base import Size, Workload, register

TEXT = "1x28x28 images"


@register
class MnistCnn(Workload):
    """Two convolutions and two linear layers, 1.2 million parameters, in the shape of PyTorch's MNIST example."""

    name = "mnist_cnn"
    summary = "two convolutions and two linear layers on 28x28 digits"
    parity_learning_rate = 0.05
    sizes = {
        "standard": Size(text=TEXT, global_batch_size=512),
        # 512 take a second of one CPU thread for each step.
        "quick": Size(text=TEXT, global_batch_size=128),
    }
    default_data = "real"
    sample_word = "images"
    epoch_data = "MNIST training set, 60,000 images"
    epoch_samples: ClassVar[int | None] = 60_000

    def build(self) -> nn.Module:
        """Maps images (N, 1, 28, 28) to logits (N, 10)."""
        features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 32, 3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(32, 64, 3),
                relu2=nn.ReLU(),
                pool=nn.MaxPool2d(2),
                dropout=nn.Dropout(0.25),
            )
        )
        head = nn.Sequential(
            OrderedDict(
                flatten=nn.Flatten(),
                fc1=nn.Linear(9216, 128),
                relu=nn.ReLU(),
                dropout=nn.Dropout(0.5),
                fc2=nn.Linear(128, 10),
            )
        )
        return nn.Sequential(OrderedDict(features=features, head=head))

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        return [model.get_submodule("features"), model.get_submodule("head")]

    def prepare(self, data: str, data_root: Path | None, cache: Path) -> DataSource:
        if is_real(data):
            return prepare_mnist(data_root, cache)
        return DataSource(kind="synthetic", text="seeded normal noise, 1x28x28", num_samples=60_000)

    def dataset(self, source: DataSource, seed: int) -> Dataset[Batch]:
        if source.path is not None:
            return StoredImages(source.path, MEAN, STD)
        return NoiseImages((1, 28, 28), 10, source.num_samples, seed)

    def loss(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of logits (N, 10) and labels (N,), summed; the weight is N."""
        loss = nn.functional.cross_entropy(output, targets, reduction="sum")
        return loss, loss.new_full((), len(targets))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01)
