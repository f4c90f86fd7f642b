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
        (lambda weights: torch.optim.Adafactor(weights), "moves a matrix"),
        (lambda weights: ClipsItsUpdate(weights, lr=0.1), "moves a matrix"),
        (lambda weights: torch.optim.Muon(list(weights)), "does not take those"),
    ],
)
def test_optimizers_that_look_at_whole_parameters_are_refused(make: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(RefusedError, match=f"fsdp1 gives the optimizer flattened pieces .* the workload's {why}"):
        check_pieces(make, CPU, "fsdp1")


def test_nothing_is_said_of_an_optimizer_that_wants_other_parameters() -> None:
    check_pieces(lambda weights: torch.optim.SGD(list(weights)[3:], lr=0.1), CPU, "fsdp1")


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
