"""Models that do different things on different ranks. Samples 0 and 1 of four go to rank 0, samples 2 and 3 to rank 1.

Their weights are sums over samples all the same, except where said.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.workloads import Batch
from tests.measuring.own_models import Experts, Net, PlainNet, SkipsLayers, SparseExperts


class TogglesGradients(PlainNet):
    """Freezes and frees a block by turns, on all ranks alike."""

    class model(Net):  # noqa: N801
        forwards = 0

        def forward(self, x: Tensor) -> Any:
            self.forwards += 1
            self.layers[1].requires_grad_(self.forwards % 2 == 1)
            return super().forward(x)


class FreezesByData(SparseExperts):
    """The gradient of a batch is not the sum of those of its parts."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor, choice: Tensor) -> Any:
            self.layers[0].requires_grad_(not bool(choice.any()))
            return super().forward(x)


class NoGradientByData(SparseExperts):
    """Its first layer, in no block, takes part in the gradient where the data say so. Not a sum over samples either."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor, choice: Tensor) -> Any:
            with torch.set_grad_enabled(not bool(choice.any())):
                x = self.layers[0](x)
            return self.head(self.layers[1](x))

    def blocks(self, model: Any) -> list[nn.Module]:
        return [model.layers[1]]


class PreparedExperts(Experts):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)

    def forward(self, x: Tensor, choice: Tensor) -> Any:
        return super().forward(self.before(x), choice)


class CheckpointedExperts(PreparedExperts):
    def forward(self, x: Tensor, choice: Tensor) -> Any:
        return checkpoint(super(PreparedExperts, self).forward, self.before(x), choice, use_reentrant=True)


class PartsInTheFirstPiece(SparseExperts):
    """Of two micro-batches, every device chooses another expert in the first, and both in the second."""

    def example(self, index: int) -> Batch:
        choice = index // 2 % 2 if index % 8 < 4 else index % 2
        return Batch(args=(torch.randn(8), choice), kwargs={}, targets=torch.randint(4, ()))


class ExpertsInCheckpoint(SparseExperts):
    """A reentrant checkpoint in each block: its graph is made in the backward pass."""

    class model(SparseExperts.model):  # noqa: N801
        block: type[PreparedExperts] = CheckpointedExperts

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(self.block() for _ in range(2))


class CheckpointAroundExperts(ExpertsInCheckpoint):
    class model(ExpertsInCheckpoint.model):  # noqa: N801
        block = PreparedExperts

        def forward(self, x: Tensor, choice: Tensor) -> Any:
            x.requires_grad_()
            for layer in self.layers:
                x = checkpoint(layer, x, choice, use_reentrant=True)
            return self.head(x)


class ExpertsOutsideBlocks(ExpertsInCheckpoint):
    def blocks(self, model: Any) -> list[nn.Module]:
        return []


class PartsLate(PlainNet):
    """Rank 1 leaves a block out from its sixth step in training on."""

    class model(Net):  # noqa: N801
        forwards = 0

        def forward(self, x: Tensor) -> Any:
            self.forwards += 1
            rank = dist.get_rank() if dist.is_initialized() else 0
            for number, layer in enumerate(self.layers):
                if not (self.training and rank == 1 and number == 0 and self.forwards > 5):
                    x = layer(x)
            return self.head(x)


class LeavesLayersOut(PlainNet):
    """Weights, and in training its layers, by the generators of Python and numpy."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            nn.init.constant_(self.head.weight, 0.1 + 0.1 * np.random.rand())

        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                if not self.training or max(random.random(), np.random.rand()) > 0.5:
                    x = layer(x)
            return self.head(x)


class UsesAnotherExpertLate(ExpertsInCheckpoint):
    """Each rank uses both experts at first, and one of its own from its sixth step on."""

    class model(ExpertsInCheckpoint.model):  # noqa: N801
        block = PreparedExperts
        forwards = 0

        def forward(self, x: Tensor, choice: Tensor) -> Any:
            self.forwards += 1
            if self.forwards <= 5:
                choice = torch.arange(len(x)) % 2
            return super().forward(x, choice)


class _Scaled(torch.autograd.Function):
    """Scales, and gives the scale, or the input, a gradient only where it is told to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, gives: tuple[bool, bool]) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.gives = gives
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, scale = ctx.saved_tensors
        both = gradient * scale, (gradient * x).sum(dim=0)
        return *(one if gives else None for one, gives in zip(both, ctx.gives, strict=True)), None


class ScaledLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor, choice: Tensor) -> Any:
        return _Scaled.apply(self.linear(x).tanh(), self.scale, (True, not bool(choice.any())))


class StoppingLayer(ScaledLayer):
    def forward(self, x: Tensor, choice: Tensor) -> Any:
        return self.linear(_Scaled.apply(x, self.scale, (not bool(choice.any()), False))).tanh()


class GivesNoneByData(SparseExperts):
    """The graph is the same on all ranks, but a backward pass of its own gives no gradient where the data say so."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(ScaledLayer() for _ in range(2))

        def forward(self, x: Tensor, choice: Tensor) -> Any:
            for layer in self.layers:
                x = layer(x, choice)
            return self.head(x)


class StopsByData(GivesNoneByData):
    """What lies before a block gets no gradient where the data say so."""

    class model(GivesNoneByData.model):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(StoppingLayer() for _ in range(2))


class DetachingLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        y = self.inner(x).tanh()
        return x + (y.detach() if bool(choice.any()) else y)


class DetachesInCheckpoint(SparseExperts):
    """Whether a block has a backward pass at all is seen only while the checkpoint around it runs again."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layers = nn.Linear(8, 8), nn.ModuleList(DetachingLayer() for _ in range(2))

        def forward(self, x: Tensor, choice: Tensor) -> Any:
            x = self.first(x)
            for layer in self.layers:
                x = checkpoint(layer, x, choice, use_reentrant=True)
            return self.head(x)

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return [layer.inner for layer in model.layers]  # type: ignore[union-attr]


class ChecksInByData(SparseExperts):
    """Blocks run once more, in a checkpoint, where the data say so: what is gathered and reduced stays the same."""

    use_reentrant = False

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor, choice: Tensor) -> Any:
            x.requires_grad_()
            for layer in self.layers:
                again = bool(choice.any())
                x = checkpoint(layer, x, use_reentrant=self.use_reentrant) if again else layer(x)
            return self.head(x)

    def build(self) -> nn.Module:
        model = super().build()
        model.use_reentrant = self.use_reentrant  # type: ignore[assignment]
        return model


class ChecksInReentrantlyByData(ChecksInByData):
    use_reentrant = True


class CompiledParts(SkipsLayers):
    """Each block is compiled, and what runs between them is not."""

    def build(self) -> nn.Module:
        model = super().build()
        for layer in model.layers:  # type: ignore[union-attr]
            layer.compile(backend="eager")
        return model


class CompiledWhole(PlainNet):
    """Nothing that cannot be compiled may run in a block."""

    def build(self) -> nn.Module:
        model = super().build()
        for layer in model.layers:  # type: ignore[union-attr]
            layer.compile(backend="eager", fullgraph=True)
        return model


class CuttingLayer(nn.Module):
    def __init__(self, *, cuts: bool) -> None:
        super().__init__()
        self.linear, self.cuts = nn.Linear(8, 8), cuts

    def forward(self, x: Tensor, choice: Tensor) -> Any:
        return self.linear(x.detach() if self.cuts and bool(choice.any()) else x).tanh()


class CutsByData(SparseExperts):
    """Of two blocks side by side, the later one passes no gradient on where the data say so."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layers = nn.Linear(8, 8), nn.ModuleList(CuttingLayer(cuts=each) for each in (False, True))

        def forward(self, x: Tensor, choice: Tensor) -> Any:
            x = self.first(x)
            return self.head(sum(layer(x, choice) for layer in self.layers))


class PenaltyByData(PlainNet):
    """The loss takes a gradient of its own where the targets say so."""

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        loss, weight = super().loss(output, targets)
        if bool((targets == 0).any()):
            (gradient,) = torch.autograd.grad(loss, output, retain_graph=True)
            loss = loss + (output * gradient)[targets == 0].sum()
        return loss, weight

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(8),), kwargs={}, targets=torch.tensor(index // 2 % 2))


class Pair(tuple[Tensor, Tensor]):
    """A container that is not made from its parts."""

    def __new__(cls, one: Tensor, other: Tensor) -> Pair:
        return super().__new__(cls, (one, other))


class PairedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, pair: Pair) -> Tensor:
        return self.linear(pair[0]).tanh() + pair[1]


class GivesPairs(PlainNet):
    """Blocks are called with a container that is not made from its parts."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(PairedLayer() for _ in range(2))

        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                x = layer(Pair(x, x.detach()))
            return self.head(x)
