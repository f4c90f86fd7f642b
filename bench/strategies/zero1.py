"""ZeRO stage 1: DDP whose optimizer state is split over the ranks (Rajbhandari et al., SC 2020)."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from bench.remaking import OptimizerFactory, remade
from bench.strategies.base import register
from bench.strategies.ddp import DDP


@register
class Zero1(DDP):
    name = "zero1"
    summary = "DistributedDataParallel with torch.distributed.optim.ZeroRedundancyOptimizer (ZeRO stage 1)"
    splits_optimizer = True

    def optimizer(self, make: OptimizerFactory, wrapped: nn.Module) -> torch.optim.Optimizer:
        """Each rank steps whole parameters of about the same number of elements, and broadcasts them."""
        whole = make(wrapped.parameters())
        return remade(whole, lambda groups, **arguments: ZeroRedundancyOptimizer(groups, type(whole), **arguments))
