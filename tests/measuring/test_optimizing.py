"""Which optimizers treat the pieces of a matrix as they treat the whole: tried on one, without workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bench.errors import BenchError, RefusedError
from bench.measuring.optimizing import check_closure, check_pieces, refuse_optimizer

CPU = torch.device("cpu")


class ClipsItsUpdate(torch.optim.SGD):
    """Each parameter's step has the length of its rate, as in LAMB and LARS."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad /= weight.grad.norm()
        return super().step(closure)


class AddsNoise(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for weight in self.param_groups[0]["params"]:
            weight.grad += torch.randn_like(weight.grad)
        return super().step(closure)


class ClipsAllTogether(torch.optim.SGD):
    """By the norm over all its parameters, which each rank would take over its own pieces."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


class CentresKernels(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for weight in self.param_groups[0]["params"]:
            if weight.dim() > 2:
                weight.grad -= weight.grad.mean(dim=(1, 2, 3), keepdim=True)
        return super().step(closure)


def decays(weights: Any, rate: float) -> torch.optim.Optimizer:
    """Matrices and kernels alone, as ResNets are trained."""
    listed = list(weights)
    wide, narrow = [w for w in listed if w.dim() > 1], [w for w in listed if w.dim() < 2]
    return torch.optim.SGD([{"params": wide, "weight_decay": rate}, {"params": narrow}], lr=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.SGD(weights, lr=0.1),
        lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda weights: torch.optim.AdamW(weights, lr=0.1),
        lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=True),
        lambda weights: torch.optim.RMSprop(weights),
        lambda weights: torch.optim.Adagrad(weights),
        lambda weights: torch.optim.NAdam(weights),
        lambda weights: torch.optim.SGD(weights, lr=0.0),
    ],
)
def test_optimizers_that_take_each_number_by_itself_pass(make: Callable[[Any], Any]) -> None:
    check_pieces(make, CPU, "fsdp1")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda weights: torch.optim.Adafactor(weights), "moves these otherwise"),
        (lambda weights: ClipsItsUpdate(weights, lr=0.1), "moves these otherwise"),
        (lambda weights: ClipsAllTogether(weights, lr=0.1), "moves these otherwise"),
        (lambda weights: CentresKernels(weights, lr=0.1), "moves these otherwise"),
        (lambda weights: decays(weights, 1e-4), "moves these otherwise"),
        (lambda weights: torch.optim.Muon([weight for weight in weights if weight.dim() == 2]), "does not take these"),
    ],
)
def test_optimizers_that_look_at_whole_parameters_are_refused(make: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(
        RefusedError, match=f"fsdp1 gives each rank's optimizer flattened pieces .* the workload's {why}"
    ):
        check_pieces(make, CPU, "fsdp1")


def test_nothing_is_said_of_an_optimizer_that_wants_other_parameters() -> None:
    check_pieces(lambda weights: torch.optim.SGD(list(weights)[3:], lr=0.1), CPU, "fsdp1")


def test_nothing_is_said_of_an_optimizer_that_moves_otherwise_each_time() -> None:
    check_pieces(lambda weights: AddsNoise(weights, lr=0.1), CPU, "fsdp1")


def test_a_closure_is_asked_for_only_where_step_needs_one() -> None:
    weights = [nn.Parameter(torch.ones(2, 2))]
    check_closure(torch.optim.AdamW(weights))
    with pytest.raises(BenchError, match="LBFGS needs a closure"):
        check_closure(torch.optim.LBFGS(weights))


def test_an_optimizer_that_fails_on_whole_parameters_too_is_no_refusal() -> None:
    def fails(weights: Any) -> Any:
        raise KeyError("a fault")

    refuse_optimizer(KeyError("a fault"), fails, lambda: nn.Linear(2, 2), "fsdp")  # says nothing

    def trains(weights: Any) -> Any:
        return torch.optim.SGD(weights, lr=0.1)

    with pytest.raises(RefusedError, match=r"SGD takes whole parameters, and not what fsdp makes of them \(KeyError: "):
        refuse_optimizer(KeyError("a fault"), trains, lambda: nn.Linear(2, 2), "fsdp")
