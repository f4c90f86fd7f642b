"""Models with a fault of their own, which no strategy is to blame for. Workers import this module."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from bench.errors import BenchError
from bench.measuring.control import Channel
from bench.measuring.parity import check_parity
from bench.measuring.tasks import Job
from bench.strategies import Context, registry
from bench.strategies.ddp import DDP
from bench.workloads import Batch, DataSource
from tests.measuring.own_models import Net, PlainNet
from tests.measuring.planted import PLANTED, OptimizerBeforeSharding


class CastsItsHead(PlainNet):
    """Its head becomes float32 in every forward."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.head.to(torch.float32)(x.float())


class NanLoss(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return torch.log(-super().forward(x).square())


class NanGradient(PlainNet):
    """In the last step alone, so that no loss tells it: that of the square root of 0."""

    class model(Net):  # noqa: N801
        forwards = 0

        def forward(self, x: Tensor) -> Any:
            self.forwards += 1
            output = super().forward(x)
            return output + torch.sqrt(output * 0) if self.forwards == 3 else output


class InfiniteLoss(PlainNet):
    """Infinite by a constant: its gradient is as it should be."""

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        loss, weight = super().loss(output, targets)
        return loss + torch.inf, torch.as_tensor(weight)


class HalfWeights(PlainNet):
    """Weights of 16 bits that the forward names, so that the check cannot be in float64."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.to(torch.bfloat16)).float()

    def build(self) -> nn.Module:
        return super().build().to(torch.bfloat16)


class UnseededWeights(PlainNet):
    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            with torch.no_grad():
                self.head.weight.copy_(torch.from_numpy(np.random.default_rng().standard_normal((4, 8))))


class NumpyExamples(PlainNet):
    def example(self, index: int) -> Batch:
        inputs = torch.from_numpy(np.random.randn(8).astype(np.float32))
        return Batch(args=(inputs,), kwargs={}, targets=torch.randint(4, ()))


class InOrder(Dataset[Batch]):
    """Samples that come in the order in which they are asked for, whatever their index."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> Batch:
        inputs = torch.randn(8, generator=self.generator)
        return Batch(args=(inputs,), kwargs={}, targets=torch.tensor(index % 4))


class OneStream(PlainNet):
    def dataset(self, source: DataSource, seed: int) -> Dataset[Batch]:
        return InOrder()


class DropsAlways(PlainNet):
    """Dropout that does not ask whether the model trains."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(functional.dropout(x, 0.5))


class NumpyNoise(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x + torch.from_numpy(np.random.randn(*x.shape)).to(x))


class OwnGenerator(PlainNet):
    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def forward(self, x: Tensor) -> Any:
            return super().forward(x + torch.randn(x.shape, generator=self.generator, dtype=x.dtype))


class MeanLoss(PlainNet):
    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return functional.cross_entropy(output, targets), torch.tensor(float(len(targets)))


class Coupled(PlainNet):
    """Every sample's output depends on the others."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            output = super().forward(x)
            return output * (1 + output.mean(dim=0))


class BreaksTheSearch(MeanLoss):
    """Can be built three times only: at a rate of 0, as the reference, and as what the strategy trains."""

    builds = 0

    def build(self) -> nn.Module:
        BreaksTheSearch.builds += 1
        if BreaksTheSearch.builds > 3:
            raise RuntimeError("built too often")
        return super().build()


class LazyNet(PlainNet):
    def build(self) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4))


class NoModule(PlainNet):
    def build(self) -> Any:
        return Net().forward


# --- strategies ----------------------------------------------------------------------------------


class Float32Only(DDP):
    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        if any(weight.dtype == torch.float64 for weight in model.parameters()):
            raise TypeError("expected uniform gradient dtype")
        return super().wrap(model, context)


class NeverTakes(DDP):
    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        dtypes = sorted({str(weight.dtype) for weight in model.parameters()})
        raise BenchError(f"no model of {', '.join(dtypes)} is taken")


def float32_only(job: Job, channel: Channel, double: bool = True) -> None:
    registry.add(PLANTED, Float32Only())
    check_parity(job, channel, double=double)


def never_takes(job: Job, channel: Channel, double: bool = True) -> None:
    registry.add(PLANTED, NeverTakes())
    check_parity(job, channel, double=double)


def optimizer_before_sharding(job: Job, channel: Channel) -> None:
    registry.add(PLANTED, OptimizerBeforeSharding())
    check_parity(job, channel)
