"""Classes for the tests of `find`, as they would lie in a user's file."""

from __future__ import annotations

import torch
from torch import nn

from bench.workloads import Batch, Workload


class LeastOfAll(Workload):
    """Nothing but what has to be written."""

    def build(self) -> nn.Module:
        return nn.Linear(4, 3)

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(4),), kwargs={}, targets=torch.randint(3, ()))


class NoData(Workload):
    def build(self) -> nn.Module:
        return nn.Linear(4, 3)


class NoModel(Workload):
    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(4),), kwargs={}, targets=torch.randint(3, ()))


class TakesAName(LeastOfAll):
    name = "resnet50"


class BadName(LeastOfAll):
    name = "my net"


class AnotherEachTime(LeastOfAll):
    calls = 0

    def example(self, index: int) -> Batch:
        type(self).calls += 1
        return Batch(args=(torch.full((4,), float(self.calls)),), kwargs={}, targets=torch.tensor(0))


class PlainTuple(LeastOfAll):
    def example(self, index: int) -> Batch:
        return torch.randn(4), torch.tensor(0)  # type: ignore[return-value]


class NoWorkload:
    pass
