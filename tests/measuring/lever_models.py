"""A small model in which every lever finds something to act on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.workloads import Batch, Workload

WIDTH, HEADS = 16, 2


class Block(nn.Module):
    """Attention and a hidden layer, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.projections = nn.Linear(WIDTH, 3 * WIDTH)
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.projections(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts)
        x = x + mixed.transpose(1, 2).flatten(-2)
        return x + self.hidden(self.other_norm(x))


class SmallViT(nn.Module):
    """Convolution and BatchNorm, then blocks over the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 3, stride=2, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU())
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))  # type: ignore[no-any-return]


class Everything(Workload):
    """A small vision transformer."""

    name = "everything"

    def build(self) -> nn.Module:
        return SmallViT()

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(3, 8, 8),), kwargs={}, targets=torch.randint(4, ()))


class Plain(Workload):
    """Linear layers alone, in which most levers find nothing."""

    name = "plain"

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(8),), kwargs={}, targets=torch.randint(4, ()))


class WithoutBatchNorm(Everything):
    """The same without BatchNorm."""

    name = "without_batch_norm"

    def build(self) -> nn.Module:
        model = SmallViT()
        model.stem[1] = nn.Identity()
        return model
