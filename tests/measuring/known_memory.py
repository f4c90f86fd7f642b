"""A workload whose memory is known: 32 MiB a sample, held from its forward to its backward, and little else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.workloads import Batch, Workload

SAMPLE_BYTES = 32 * 2**20


class _Hold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones(len(values), SAMPLE_BYTES // 4))
        return values * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (held,) = ctx.saved_tensors
        return gradients[0] * held[0, 0]


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = _Hold.apply(self.linear(values))
        return found


class KnownMemory(Workload):
    """32 MiB a sample."""

    def build(self) -> nn.Module:
        return Holding()

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(4),), kwargs={}, targets=torch.randint(3, ()))
