"""Models that one device trains, and some strategies do not, for reasons that only torch's own errors tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bench.workloads import Batch
from tests.measuring.own_models import Net, PlainNet


class JaggedInput(PlainNet):
    """Samples of one row or two, as a nested tensor."""

    layout = torch.jagged

    class model(Net):  # noqa: N801
        def forward(self, rows: Tensor) -> Any:
            return super().forward(torch.stack([sample.mean(dim=0) for sample in rows.unbind()]))

    def collate(self, examples: Any) -> Batch:
        batch = super().collate(examples)
        rows = [sample.repeat(1 + number % 2, 1) for number, sample in enumerate(batch.args[0])]
        nested = torch.nested.nested_tensor(rows, layout=self.layout)
        return Batch(args=(nested,), kwargs={}, targets=batch.targets)


class NestedInput(JaggedInput):
    layout = torch.strided


class SparseInput(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.to_dense())

    def collate(self, examples: Any) -> Batch:
        batch = super().collate(examples)
        return Batch(args=(batch.args[0].to_sparse(),), kwargs={}, targets=batch.targets)


class SparseOutput(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x).to_sparse()

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return super().loss(output.to_dense(), targets)


class ListsItsWeights(PlainNet):
    """It reads the head through a list of its own."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.of_head = [self.head.weight, self.head.bias]

        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                x = layer(x)
            return nn.functional.linear(x, *self.of_head)


class BatchStatistics(PlainNet):
    """A BatchNorm that knows no others: it couples the samples of a batch in the parity check too."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8, track_running_stats=False)

        def forward(self, x: Tensor) -> Any:
            return super().forward(self.norm(x))


class FreezesInForward(PlainNet):
    """A layer that is frozen once the model is wrapped, and a spare one."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Any:
            self.layers[0].requires_grad_(False)
            return super().forward(x)


class RaisesOnRank(PlainNet):
    """A fault that only rank 1 comes to."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            if dist.is_initialized() and dist.get_rank() == 1:
                raise RuntimeError("a fault of rank 1")
            return super().forward(x)


class MissesAFile(PlainNet):
    """A fault of the machine, where there are ranks."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            if dist.is_initialized():
                Path("/no/such/file").read_text()
            return super().forward(x)


class WithMuon(PlainNet):
    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
            self.head = nn.Linear(8, 4, bias=False)

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.Muon(list(parameters), lr=1e-3)


class WithAdafactor(PlainNet):
    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.Adafactor(parameters, lr=1e-3)


class FlatSGD(torch.optim.SGD):
    """Takes plain tensors alone, as optimizers in C do."""

    def step(self, closure: Any = None) -> Any:
        assert not any(isinstance(weight, DTensor) for weight in self.param_groups[0]["params"])
        return super().step(closure)


class WithFlatSGD(PlainNet):
    def optimizer(self, parameters: Any) -> Any:
        return FlatSGD(parameters, lr=1e-3)


class WithClosure(PlainNet):
    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.LBFGS(list(parameters))


class DecaysMatrices(PlainNet):
    """Weight decay for matrices alone, as transformers are trained."""

    def optimizer(self, parameters: Any) -> Any:
        weights = list(parameters)
        matrices, others = [w for w in weights if w.dim() > 1], [w for w in weights if w.dim() < 2]
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
