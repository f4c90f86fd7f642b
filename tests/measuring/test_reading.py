"""A cause is named only where it matters: each suspect is brought about on one device, without workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from bench.measuring.reading import misread
from bench.strategies import registry
from tests.measuring import peculiar_models
from tests.measuring.own_models import Net

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def found(model: nn.Module, strategy: str, blocks: list[nn.Module] | None = None) -> str | None:
    blocks = list(getattr(model, "layers", [])) if blocks is None else blocks
    return misread(registry.get(strategy), model, blocks, lambda: model(X).double().square().sum())


class Listed(peculiar_models.ListsItsWeights.model):
    """Keeps a weight too that it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.without_decay = [self.layers[0][0].bias]


class Enclosed(Net):
    def __init__(self) -> None:
        super().__init__()
        weight = self.head.weight
        self.last: Callable[[Tensor], Tensor] = lambda x: x @ weight.T

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + self.last(x)


class Counts(Net):
    def forward(self, x: Tensor) -> Any:
        self.number = sum(1 for _ in self.parameters())
        return super().forward(x).to(next(self.parameters()).dtype)


class Sums(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + sum(weight.sum() for weight in self.parameters())


class Asks(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * self.get_parameter("layers.1.0.bias").sum()


class AsksForItsOwn(Net):
    """What lies in no block is whole while the model runs."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * self.get_parameter("head.bias")


class ChangesItself(Net):
    forwards = 0

    def forward(self, x: Tensor) -> Any:
        self.forwards += 1
        return super().forward(x) * self.forwards + sum(weight.sum() for weight in self.parameters())


class Outside(Net):
    """Reads a type there, which a shard has too, and then a weight."""

    def forward(self, x: Tensor) -> Any:
        x = x.to(self.layers[1][0].bias.dtype)
        return super().forward(x @ self.layers[0][0].weight)


class OutsideType(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.to(self.layers[0][0].weight.dtype))


class Block(nn.Module):
    """Reads its own parameters() and weights, in a checkpoint too, where it runs."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.inner = nn.utils.weight_norm(nn.Linear(8, 8)), inner

    def _run(self, x: Tensor) -> Tensor:
        return self.linear(x) * sum(weight.square().sum() for weight in self.linear.parameters())

    def forward(self, x: Tensor) -> Any:
        x = checkpoint(self._run, x, use_reentrant=False).tanh()
        return x if self.inner is None else self.inner(x) + self.inner.linear.weight_g.sum()


class OfBlocks(Net):
    def __init__(self, inner: Callable[[], nn.Module | None] = lambda: None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(inner()) for _ in range(2))


class Hyper(nn.Module):
    """The last layer's weights come from another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.makes = Net(), nn.Linear(8, 4 * 8 + 4)

    def forward(self, x: Tensor) -> Any:
        weight, bias = self.makes(torch.ones_like(x[0])).split([4 * 8, 4])
        made = {"head.weight": weight.view(4, 8), "head.bias": bias}
        return torch.func.functional_call(self.net, made, (x,))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8), parametrizations.weight_norm(nn.Linear(8, 4))
        self.other = nn.ParameterList([self.head.bias, nn.Parameter(torch.ones(4))])

    def forward(self, x: Tensor) -> Any:
        return self.head(self.lstm(x)[0]) * self.other[1]


@pytest.mark.parametrize("strategy", ["dp", "fsdp", "fsdp1"])
@pytest.mark.parametrize("model", [Net, Recurrent, ChangesItself, OutsideType])
def test_nothing_is_found_where_nothing_matters(model: type[nn.Module], strategy: str) -> None:
    assert found(model(), strategy) is None


def test_weights_in_the_place_of_others_are_seen_where_parameters_are_hidden() -> None:
    blocks = [*(model := Hyper()).net.layers]
    assert "puts other tensors in the place of parameters" in str(found(model, "fsdp1", blocks))
    assert all(found(model, strategy, blocks) is None for strategy in ("dp", "fsdp"))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp1"])
@pytest.mark.parametrize("model", [AsksForItsOwn, OfBlocks])
def test_what_runs_is_whole(model: type[nn.Module], strategy: str) -> None:
    assert found(model(), strategy) is None


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_an_inner_block_is_a_shard_where_the_outer_one_reads_it() -> None:
    model = OfBlocks(Block)
    inner = [layer.inner for layer in model.layers]
    reason = str(found(model, "fsdp", blocks=[*inner, *model.layers]))
    assert "reads layers.0.inner.linear.weight_g while its block does not run" in reason
    assert found(model, "fsdp") is None


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp1"])
def test_shards_have_a_type_and_a_number(strategy: str) -> None:
    assert found(Counts(), strategy) is None
    assert "reads the model's own parameters()" in str(found(Counts(), "dp"))  # a replica has not even one


@pytest.mark.parametrize("strategy", ["dp", "balanced_dp", "fsdp", "fsdp1"])
def test_parameters_that_matter_are_found(strategy: str) -> None:
    assert "reads the model's own parameters()" in str(found(Sums(), strategy))


def test_a_parameter_that_is_asked_for_is_none_of_a_replica_and_a_shard_outside_its_block() -> None:
    assert "reads the model's own parameters()" in str(found(Asks(), "dp"))
    assert "reads layers.1.0.bias while its block does not run" in str(found(Asks(), "fsdp"))


@pytest.mark.parametrize("strategy", ["dp", "fsdp", "fsdp1"])
@pytest.mark.parametrize("model", [Listed, Enclosed])
def test_a_weight_that_is_read_from_elsewhere_is_named(model: type[nn.Module], strategy: str) -> None:
    assert "reads head.weight from a place of its own" in str(found(model(), strategy))


def test_gradients_count_where_the_loss_is_the_same() -> None:
    assert "reads the model's own parameters()" in str(found(peculiar_models.TogglesGradients.model(), "dp"))


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp1"])
def test_a_weight_that_is_read_while_its_block_does_not_run_is_found(strategy: str) -> None:
    assert "while its block does not run" in str(found(Outside(), strategy))
    assert found(Outside(), strategy, blocks=[]) is None


def test_ddp_has_whole_parameters() -> None:
    assert found(Sums(), "ddp") is None
