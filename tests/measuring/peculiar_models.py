"""Models that one device trains, and some strategies do not, for reasons that only torch's own errors tell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

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


class MissesAKeyOnRank(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            rank = dist.get_rank() if dist.is_initialized() else 0
            return super().forward(x * {0: 1.0}[rank])


class FixedBatch(PlainNet):
    """It takes the four samples of the check on one device, and no piece of them."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.view(4, 8))


class SparseInTraining(PlainNet):
    """What the parity check, in evaluation mode, does not see."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            output = super().forward(x)
            return output.to_sparse() if self.training else output

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return super().loss(output.to_dense() if output.is_sparse else output, targets)


class HarmlessOddities(SparseOutput):
    """It keeps a weight that it does not read, and reads how many parameters it has: neither matters."""

    class model(SparseOutput.model):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.without_decay = [self.head.bias]

        def forward(self, x: Tensor) -> Any:
            self.number = sum(1 for _ in self.parameters())
            return super().forward(x)


class WritesToAList(PlainNet):
    """Blocks leave what they made in a list that they are given, as the halves of a U-Net do."""

    class model(Net):  # noqa: N801
        class block(nn.Sequential):  # noqa: N801
            def forward(self, x: Tensor, skips: Any) -> Any:
                skips.append(x)
                return super().forward(x)

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(self.block(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))

        def forward(self, x: Tensor) -> Any:
            skips: list[Tensor] = []
            for layer in self.layers:
                x = layer(x, skips)
            return self.head(sum(skips, x))


@dataclass
class Counter:
    """Where a model is in its forward."""

    step: int = 0


class CountsItsBlocks(PlainNet):
    """Blocks count themselves in an object without tensors."""

    class model(Net):  # noqa: N801
        class block(nn.Sequential):  # noqa: N801
            def forward(self, x: Tensor, counter: Counter) -> Any:
                counter.step += 1
                return super().forward(x) * counter.step

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(self.block(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

        def forward(self, x: Tensor) -> Any:
            counter = Counter()
            for layer in self.layers:
                x = layer(x, counter=counter)
            return self.head(x)


class WritesInPlace(PlainNet):
    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)) for _ in range(2))

        def forward(self, x: Tensor) -> Any:
            return super().forward(x.clone())


class WholeNumbers(PlainNet):
    """A weight in eight bits, as quantised models hold them."""

    class model(Net):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.bits = nn.Parameter(torch.randint(-99, 99, (8, 8), dtype=torch.int8), requires_grad=False)

        def forward(self, x: Tensor) -> Any:
            return super().forward(x + x @ (self.bits.to(x.dtype) / 1000))


class TogglesGradients(PlainNet):
    """Trains its head on what it is given, and all before it through a head that is frozen meanwhile."""

    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                x = layer(x)
            self.head.requires_grad_(False)
            through = self.head(x)
            self.head.requires_grad_(True)
            return through + self.head(x.detach())


class PackedOutput(PlainNet):
    class model(Net):  # noqa: N801
        def forward(self, x: Tensor) -> Any:
            return pack_sequence(list(super().forward(x).unsqueeze(1)))

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return super().loss(pad_packed_sequence(output, batch_first=True)[0].squeeze(1), targets)


class ScaledByAGain(PlainNet):
    """Reads a block's first parameter from outside: FSDP1 leaves all of it on one rank, and nothing on the other."""

    class model(Net):  # noqa: N801
        class block(nn.Sequential):  # noqa: N801
            def __init__(self) -> None:
                super().__init__(nn.Linear(8, 8), nn.Tanh())
                self.gain = nn.Parameter(torch.full((8,), 1.5))

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(self.block() for _ in range(2))

        def forward(self, x: Tensor) -> Any:
            return super().forward(x * self.layers[0].gain)
