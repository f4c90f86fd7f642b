"""ResNet50 on images of 1,000 classes: much arithmetic for each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from bench.data.base import Batch, DataSource
from bench.data.files import is_real
from bench.data.images import NoiseImages, StoredImages, prepare_image_folder
from bench.workloads.base import Size, Workload, register

CLASSES = 1000
IMAGENET_TRAIN_IMAGES = 1_281_167
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PIXELS = {"standard": 224, "quick": 64}


@register
class ResNet50(Workload):
    """torchvision's ResNet50, 25.6 million parameters, untrained."""

    name = "resnet50"
    summary = "torchvision's ResNet50, 1,000 classes"
    sizes = {
        "standard": Size(text="3x224x224 images", batch_per_device=64),
        "quick": Size(text="3x64x64 images", global_batch_size=8),
    }
    sample_word = "images"
    epoch_data = "ImageNet-1k training set, 1,281,167 images"
    epoch_samples: ClassVar[int | None] = IMAGENET_TRAIN_IMAGES
    low_precision = True
    # At 0.05 some 30 BatchNorm weights inside the zero-initialised branches move by less than float32
    # resolves, at 0.1 some 10; at 0.3 rounding at a ReLU's edge grew to an error of 1e-3 in 2 of 4 trials.
    parity_learning_rate = 0.1

    @property
    def pixels(self) -> int:
        """Height and width of an image."""
        return PIXELS[self.size_name]

    def build(self) -> nn.Module:
        """Maps images (N, 3, pixels, pixels) to logits (N, 1000)."""
        from torchvision.models import resnet50

        model: nn.Module = resnet50(weights=None, zero_init_residual=True)
        return model

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        from torchvision.models.resnet import Bottleneck

        return [module for module in model.modules() if isinstance(module, Bottleneck)]

    def prepare(self, data: str, data_root: Path | None, cache: Path) -> DataSource:
        if is_real(data):
            return prepare_image_folder(data_root, cache, self.pixels, CLASSES)
        text = f"seeded normal noise, {self.size.text.removesuffix(' images')}"
        return DataSource(kind="synthetic", text=text, num_samples=IMAGENET_TRAIN_IMAGES)

    def dataset(self, source: DataSource, seed: int) -> Dataset[Batch]:
        if source.path is not None:
            return StoredImages(source.path, IMAGENET_MEAN, IMAGENET_STD)
        return NoiseImages((3, self.pixels, self.pixels), CLASSES, source.num_samples, seed)

    def loss(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of logits (N, 1000) and labels (N,), summed; the weight is N."""
        loss = nn.functional.cross_entropy(output, targets, reduction="sum")
        return loss, loss.new_full((), len(targets))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
