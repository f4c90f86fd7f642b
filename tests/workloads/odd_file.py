"""Workloads with mistakes that people make."""

from __future__ import annotations

import torch
from torch import nn

from bench.workloads import Batch, Size, Workload


class Plain(Workload):
    """ """

    def build(self) -> nn.Module:
        return nn.Linear(4, 3)

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(4),), kwargs={}, targets=torch.randint(3, ()))


class OwnInit(Plain):
    def __init__(self, size: str) -> None:
        self.width = 4


class MoreArguments(Plain):
    def __init__(self, size: str, width: int) -> None:
        super().__init__(size)


class NoSizes(Plain):
    sizes = {}  # noqa: RUF012


class NoBatch(Plain):
    sizes = {"standard": Size(text="x"), "quick": Size(text="x")}  # noqa: RUF012


class Ragged(Plain):
    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(4 + index % 2),), kwargs={}, targets=torch.randint(3, ()))


class Tuples(Plain):
    def dataset(self, source: object, seed: int) -> list[tuple[torch.Tensor, int]]:  # type: ignore[override]
        return [(torch.zeros(4), 0)] * 8


class NotANumber(Plain):
    def example(self, index: int) -> Batch:
        return Batch(args=(torch.full((4,), float("nan")),), kwargs={}, targets=torch.tensor(0))
