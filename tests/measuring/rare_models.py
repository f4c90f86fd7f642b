"""Models and data of rarer forms: what trains must pass the check, what cannot must be refused for its true reason."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from bench.workloads import Batch
from tests.measuring.own_models import Net, PlainNet


class GraphNodes(PlainNet):
    """Three nodes a sample, all in one row: the first input has no samples in dimension 0."""

    class model(Net):  # noqa: N801
        def forward(self, nodes: Tensor, sample_of: Tensor) -> Any:
            pooled = torch.zeros(int(sample_of[-1]) + 1, 8, dtype=nodes.dtype).index_add(0, sample_of, nodes)
            return super().forward(pooled)

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(3, 8),), kwargs={}, targets=torch.randint(4, ()))

    def collate(self, examples: Any) -> Batch:
        batch = super().collate(examples)
        sample_of = torch.arange(len(examples)).repeat_interleave(3)
        return Batch(args=(batch.args[0].flatten(0, 1), sample_of), kwargs={}, targets=batch.targets)


class PackedInput(PlainNet):
    """A packed sequence, which is a named tuple with places that may be None."""

    class model(Net):  # noqa: N801
        def forward(self, packed: PackedSequence) -> Any:
            return super().forward(packed.data.reshape(2, -1, 8).mean(dim=0))

    def collate(self, examples: Any) -> Batch:
        batch = super().collate(examples)
        packed = pack_sequence([sample.repeat(2, 1) for sample in batch.args[0]])
        return Batch(args=(packed,), kwargs={}, targets=batch.targets)


class DefaultDictOutput(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            output: Any = defaultdict(list)
            output["logits"] = super().forward(x)
            return output

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return super().loss(output["logits"], targets)


class Communicates(PlainNet):
    """Averages over the ranks where there are any, without a part in the gradient."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            if dist.is_initialized():
                dist.all_reduce(x.detach().mean())
            return super().forward(x)


class ReturnsNothing(PlainNet):
    """`train` and `to` without `return self`, as often with frozen layers."""

    class model(Net):  # noqa: N801
        def train(self, mode: bool = True) -> Any:
            super().train(mode)

        def to(self, *args: Any, **kwargs: Any) -> Any:
            super().to(*args, **kwargs)


class EmptyParameter(PlainNet):
    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.nothing = nn.Parameter(torch.zeros(0, 8))

        def forward(self, x: Tensor) -> Any:
            return super().forward(x) + self.nothing.sum()


class HookOnParameter(PlainNet):
    """Half of a weight does not move."""

    def build(self) -> nn.Module:
        model = Net()
        model.head.weight.register_hook(lambda gradient: gradient * (torch.arange(4)[:, None] < 2))
        return model


class StacksParameters(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) + 1e-3 * torch.stack([weight.sum() for weight in self.parameters()]).sum()


class FaultyAndReads(PlainNet):
    """Sums its own parameters(), which replicas bear, and has a fault that all strategies come to."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) + sum(weight.sum() for weight in self.parameters())

    def loss(self, output: Any, targets: Any) -> Any:
        raise KeyError("a fault of the loss")


class AsksForAParameter(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) * self.get_parameter("head.bias")


class CompiledModel(PlainNet):
    def build(self) -> Any:
        return torch.compile(Net(), backend="eager")


class ScriptedHead(PlainNet):
    def build(self) -> nn.Module:
        model = Net()
        model.head = torch.jit.script(model.head)
        return model


class LimitedWeights(PlainNet):
    """An embedding that shrinks its own rows as it looks them up."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 8, max_norm=0.5)

        def forward(self, ids: Tensor) -> Any:
            return super().forward(self.embedding(ids))

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.tensor(index % 5),), kwargs={}, targets=torch.randint(4, ()))


class MovingAverage(PlainNet):
    """A second head follows the first; at the start they are equal."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.average = deepcopy(self.head).requires_grad_(False)

        def forward(self, x: Tensor) -> Any:
            with torch.no_grad():
                for old, new in zip(self.average.parameters(), self.head.parameters(), strict=True):
                    old.lerp_(new, 0.1)
            for layer in self.layers:
                x = layer(x)
            return self.head(x) + self.average(x)


class GrowsInForward(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            if not hasattr(self, "extra"):
                self.extra = nn.Linear(8, 8).to(x)
            return super().forward(self.extra(x))


class NothingCounts(PlainNet):
    def weight(self, dataset: Any, indices: Any) -> float:
        return 0.0


class LossOfShape(PlainNet):
    def loss(self, output: Any, targets: Any) -> Any:
        return super().loss(output, targets)[0].reshape(1)


class NoGraphOnRank(PlainNet):
    """On rank 1 nothing counts, and the loss is a constant there."""

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(8),), kwargs={}, targets=torch.tensor(-100 if index // 2 % 2 else 1))

    def loss(self, output: Any, targets: Any) -> Any:
        counts = targets != -100
        if not bool(counts.any()):
            return torch.zeros(()), torch.tensor(float(len(targets)))
        return super().loss(output[counts], targets[counts])[0], torch.tensor(float(len(targets)))
