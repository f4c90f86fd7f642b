"""Models that a strategy may not be able to take, as a user would bring them: classes with defaults only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.workloads import Batch, Workload


class Net(nn.Module):
    """Two repeated layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class PlainNet(Workload):
    """A plain network."""

    model: type[nn.Module] = Net

    def build(self) -> nn.Module:
        return self.model()

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(8),), kwargs={}, targets=torch.randint(4, ()))


class UnusedParameters(PlainNet):
    def build(self) -> nn.Module:
        model = Net()
        model.spare = nn.Linear(3, 3)
        return model


class TiedWeights(PlainNet):
    """The decoder is the embedding."""

    class model(nn.Module):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(20, 8)
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
            self.decoder = nn.Linear(8, 20, bias=False)
            self.decoder.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embedding(ids)
            for layer in self.layers:
                x = layer(x)
            return self.decoder(x)

    def example(self, index: int) -> Batch:
        ids = torch.randint(20, (6,))
        return Batch(args=(ids[:-1],), kwargs={}, targets=ids[1:])


class TiedBlocks(TiedWeights):
    def blocks(self, model: Any) -> list[nn.Module]:
        return [model.embedding, *model.layers, model.decoder]


@dataclass
class Output:
    logits: Tensor
    doubled: Tensor


class DataclassOutput(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Output:
            logits = super().forward(x)
            return Output(logits=logits, doubled=2 * logits)


class OpaqueOutput(PlainNet):
    """What it returns shows its tensors to nobody."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return type("Opaque", (), {"logits": super().forward(x)})()


class KeywordOnly(PlainNet):
    """Keywords alone, with a number, a text, a flag and None among them."""

    class model(Net):  # noqa: N801
        def forward(self, *, x: Tensor, scale: Tensor, mode: str, doubled: bool, mask: None) -> Tensor:
            assert (mode, doubled, mask) == ("plain", True, None)
            return super().forward(x) * scale[:, None] * 2

    def example(self, index: int) -> Batch:
        inputs = {"x": torch.randn(8), "scale": 0.5 + index % 2, "mode": "plain", "doubled": True, "mask": None}
        return Batch(args=(), kwargs=inputs, targets=torch.randn(4))


class ReadsParameters(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.to(next(self.parameters()).dtype))


class ScalarParameter(PlainNet):
    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor) -> Any:
            return super().forward(x) * self.scale


class SparseGradients(TiedWeights):
    class model(nn.Module):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 20)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embedding(ids))


class UsedTwice(PlainNet):
    """Reentrant checkpoints over layers that run twice in a row."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            from torch.utils.checkpoint import checkpoint

            x = x.requires_grad_()
            for layer in self.layers:
                x = checkpoint(layer, checkpoint(layer, x, use_reentrant=True), use_reentrant=True)
            return self.head(x)


class Normalised(PlainNet):
    """Seven BatchNorms over features, so that untrained statistics would let the signal fade."""

    def build(self) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(7):
            linear = nn.Linear(8, 8)
            nn.init.normal_(linear.weight, std=0.01)
            layers += [linear, nn.BatchNorm1d(8), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(8, 4))


class NamesAType(PlainNet):
    """Its layers get float32, whatever type they have."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.float())


class Faulty(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            raise TypeError("'Output' object is not iterable: a fault of the model itself")


class Experts(nn.Module):
    """Each sample goes through one of two experts; an expert that none chose does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        y = x.clone()
        for number, expert in enumerate(self.experts):
            chosen = choice == number
            if bool(chosen.any()):
                y[chosen] = expert(x[chosen]).tanh()
        return y


class SparseExperts(PlainNet):
    """With two devices of two samples each, every device chooses another expert."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Experts() for _ in range(2))

        def forward(self, x: Tensor, choice: Tensor) -> Any:
            for layer in self.layers:
                x = layer(x, choice)
            return self.head(x)

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(8), index // 2 % 2), kwargs={}, targets=torch.randint(4, ()))


class SkipsLayers(SparseExperts):
    """A layer runs where a sample asks for it, so that every device runs another one."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor, choice: Tensor) -> Any:
            for number, layer in enumerate(self.layers):
                asked = choice == number
                if bool(asked.any()):
                    x = torch.where(asked[:, None], layer(x), x)
            return self.head(x)


class SkipsLayersOfTheRoot(SkipsLayers):
    def blocks(self, model: Any) -> list[nn.Module]:
        return []


class TimeFirst(PlainNet):
    """An output (5, samples, 4), which joins to (10, samples / 2, 4) without an error."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.transpose(0, 1))

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(5, 8),), kwargs={}, targets=torch.randint(4, (5,)))

    def loss(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = output.transpose(0, 1).flatten(0, 1)
        return nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum"), torch.tensor(targets.numel())

    def weight(self, dataset: Any, indices: Any) -> float:
        return 5.0 * sum(1 for _ in indices)


class OwnMeanLoss(PlainNet):
    """The model computes the mean loss of its batch; loss() makes a sum of it again."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor, labels: Tensor) -> Any:
            return {"loss": nn.functional.cross_entropy(super().forward(x), labels)}

    def example(self, index: int) -> Batch:
        label = torch.randint(4, ())
        return Batch(args=(torch.randn(8), label), kwargs={}, targets=label)

    def loss(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        return output["loss"].mean() * len(targets), torch.tensor(float(len(targets)))


class OwnMeanLossAsItIs(OwnMeanLoss):
    def loss(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        return output["loss"] * len(targets), torch.tensor(float(len(targets)))


class OwnPenalty(PlainNet):
    """Its output holds a penalty on its own parameters(), of which a replica has none."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), sum(weight.square().sum() for weight in self.parameters())


class ScaledByItsNorm(PlainNet):
    """It scales the output by a norm of its own parameters(), so that nothing shows that it is lost."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) * (1 + 0.1 * sum(weight.square().sum() for weight in self.parameters()))


class SparseLater(SparseExperts):
    """All devices choose the same expert in the first step, and different ones in the second."""

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(8), index // 2 % 2 * (index > 3)), kwargs={}, targets=torch.randint(4, ()))
