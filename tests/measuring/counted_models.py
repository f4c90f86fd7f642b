"""Models whose FLOPs can be worked out by hand, or cannot be counted at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from bench.workloads import Batch, Workload
from tests.measuring.own_models import Normalised, PlainNet

FLOPS_OF_NET = 2 * (2 * 8 * 8 + 3 * 8 * 8 + 3 * 8 * 4)
"""Of own_models.Net, a sample: three products forward, as many for the weights' gradients, two for the inputs'."""


class NormalisedNet(Normalised):
    """Seven BatchNorms: each has a mean and a variance of 8 float32, and a count of one int64."""

    parameters = 7 * (8 * 8 + 8 + 8 + 8) + 8 * 4 + 4
    buffer_bytes = 7 * (2 * 8 * 4 + 8)


class Checkpointed(PlainNet):
    """The layers of the plain network, computed again in the backward pass. reentrant: by torch's older way."""

    reentrant = False

    def build(self) -> nn.Module:
        reentrant = self.reentrant

        class Again(PlainNet.model):  # type: ignore[misc]
            def forward(self, x: Tensor) -> Any:
                x = x.clone().requires_grad_(reentrant)
                for layer in self.layers:
                    x = checkpoint(layer, x, use_reentrant=reentrant)
                return self.head(x)

        return Again()


class CheckpointedInTheOlderWay(Checkpointed):
    reentrant = True


class Attends(Workload):
    """One attention over 4 heads of 8 and 16 tokens, and nothing else that is counted."""

    def build(self) -> nn.Module:
        class Attention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(()))

            def forward(self, x: Tensor) -> Tensor:
                x = x * self.scale
                found: Tensor = nn.functional.scaled_dot_product_attention(x, x, x)
                return found.mean(dim=(1, 2))

        return Attention()

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(4, 16, 8),), kwargs={}, targets=torch.randint(4, ()))


class Recurrent(Workload):
    """An LSTM of 6 over 5 tokens of 3."""

    def build(self) -> nn.Module:
        class Last(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lstm = nn.LSTM(3, 6, batch_first=True)

            def forward(self, x: Tensor) -> Any:
                return self.lstm(x)[0][:, -1]

        return Last()

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(5, 3),), kwargs={}, targets=torch.randint(6, ()))


class ComparesSamples(PlainNet):
    """Multiplies the batch by itself: four times the FLOPs for twice the samples."""

    class model(PlainNet.model):  # type: ignore[misc,name-defined]  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return self.head(x @ x.T @ x)


class LooksAtData(PlainNet):
    """Goes another way if the data say so."""

    class model(PlainNet.model):  # type: ignore[misc,name-defined]  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x if bool(x.sum() > 0) else -x)


class Additions(PlainNet):
    """Nothing that the counter knows."""

    class model(nn.Module):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.shift


class Ends(PlainNet):
    """The process that builds it is gone."""

    def build(self) -> nn.Module:
        import os

        os._exit(3)


class FailsWhereItIsLookedAt(PlainNet):
    """Fails in the step whose traffic is counted, on every rank."""

    class model(PlainNet.model):  # type: ignore[misc,name-defined]  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            if _get_current_dispatch_mode() is not None:
                raise ValueError("planted")
            return super().forward(x)
