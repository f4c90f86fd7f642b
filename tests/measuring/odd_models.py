"""Models whose ranks or replicas differ, or nearly do: what may be refused here must be refused for its true reason."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.workloads import Batch
from tests.measuring.own_models import Net, OwnMeanLoss, PlainNet, SparseExperts


class OwnSumLoss(OwnMeanLoss):
    """The sum over the samples: one number a replica as well, and right however many samples each takes."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor, labels: Tensor) -> Any:
            return {"loss": functional.cross_entropy(super().forward(x), labels, reduction="sum")}

    def loss(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        return output["loss"].sum(), torch.tensor(float(len(targets)))


class CrossedExperts(SparseExperts):
    """With two accumulation steps every device comes to use both experts, each in another order."""

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(8), (index // 2 + index // 4) % 2), kwargs={}, targets=torch.randint(4, ()))


class TwoHeads(PlainNet):
    """Two heads; the loss takes one of them for each sample."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.head(x), self.other(x)

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(8),), kwargs={}, targets=torch.tensor(index // 2 % 2))

    def loss(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        taken = [(logits[targets == head], targets[targets == head]) for head, logits in enumerate(output)]
        losses = [functional.cross_entropy(*pair, reduction="sum") for pair in taken if len(pair[1])]
        return torch.stack(losses).sum(), torch.tensor(float(len(targets)))


class ExtraOutput(TwoHeads):
    """The loss takes the first head alone, and the second runs where the data ask for it."""

    class model(TwoHeads.model):  # noqa: N801
        def forward(self, x: Tensor, extra: Tensor) -> Any:
            first, second = super().forward(x)
            return {"logits": first, "extra": second if bool(extra.any()) else first}

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(8), index // 2 % 2), kwargs={}, targets=torch.randint(4, ()))

    def loss(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        return PlainNet.loss(self, output["logits"], targets)


class NestedBlocks(PlainNet):
    """Outer blocks before those inside them, and one named twice."""

    def blocks(self, model: Any) -> list[nn.Module]:
        return [*model.layers, *(layer[0] for layer in model.layers), model.layers[0]]


class ForeignBlock(PlainNet):
    def blocks(self, model: Any) -> list[nn.Module]:
        return [nn.Linear(2, 2)]


class WholeModelAsBlock(PlainNet):
    def blocks(self, model: Any) -> list[nn.Module]:
        return [model]


class NoListOfBlocks(PlainNet):
    def blocks(self, model: Any) -> Any:
        return None


class MixedTypes(PlainNet):
    """A frozen table of another type inside a block."""

    def build(self) -> nn.Module:
        model = Net()
        for layer in model.layers:
            layer.table = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        model.layers = nn.ModuleList(Tabled(layer) for layer in model.layers)
        return model


class Tabled(nn.Module):
    """A layer that adds its table, which has another type."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer[0](x).tanh() + self.layer.table.to(x.dtype).sum()


class WritesItsInput(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.mul_(0.5))


class ListOfSamples(PlainNet):
    """Returns a list with one tensor for each sample, as detectors do."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return list(super().forward(x).unbind())

    def loss(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        return PlainNet.loss(self, torch.stack(output), targets)


class GradientInForward(PlainNet):
    """The gradient of its own layers by torch.func, while they do not run."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            weights = dict(self.layers[0].named_parameters())

            def energy(inputs: Tensor) -> Tensor:
                return torch.func.functional_call(self.layers[0], weights, (inputs,)).sum()

            return super().forward(x + torch.func.grad(energy)(x))


class ReadsAWeightOutside(PlainNet):
    """Applies a block's weight by itself."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(functional.linear(x, self.layers[0][0].weight))


class ScaledByABlock(PlainNet):
    """Scales its output by the square of a block's weight."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            penalty = self.layers[0][0].weight.square().sum()
            return super().forward(x) * (1 + penalty)


class GradientOfBlock(PlainNet):
    """The gradient of a block, which runs inside `torch.func.grad`."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x + torch.func.grad(lambda inputs: self.layers[0](inputs).sum())(x))


class PastItsBlocks(PlainNet):
    """Calls what is inside its blocks, and never the blocks."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                for part in layer:
                    x = part(x)
            return self.head(x)


class HeadInTrainingAlone(PlainNet):
    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.auxiliary = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Any:
            return super().forward(x) + (self.auxiliary(x) if self.training else 0)


class MaskOfAnotherType(PlainNet):
    """Its mask holds the lowest number of the weights' type in float32, where that of float64 is minus infinity."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            lowest = torch.zeros(len(x), 1) * torch.finfo(self.head.weight.dtype).min
            return super().forward(x) + lowest
