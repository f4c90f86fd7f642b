"""Can a workload's optimizer train parameters as a strategy hands them over: in shards, or flattened?

The parity check does not show it, since its steps are plain SGD.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from bench.errors import BenchError, RefusedError, in_short

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

STEPS, SHAPE = 3, (8, 6)
SAME = 1e-3
"""Relative difference of two movements that rounding does not make."""


def check_closure(optimizer: torch.optim.Optimizer) -> None:
    """BenchError where `step` cannot be called without a closure, as that of LBFGS."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise BenchError(
            f"{type(optimizer).__name__} needs a closure that computes the loss anew, which the training step does not "
            "give; use an optimizer whose step() needs no argument"
        )


def check_pieces(make: OptimizerFactory, device: torch.device, strategy: str) -> None:
    """RefusedError where the optimizer treats flattened pieces of a matrix otherwise than the whole.

    Nothing is said of one that cannot be made for a single matrix.
    """
    whole = _values(0, device)
    gradients = [_values(step, device) for step in range(1, STEPS + 1)]
    try:
        moved = _trained(make, [whole], [[gradient] for gradient in gradients]) - whole.flatten()
    except Exception:
        return
    try:
        halves = [list(gradient.flatten().chunk(2)) for gradient in gradients]
        in_pieces = _trained(make, list(whole.flatten().chunk(2)), halves) - whole.flatten()
        apart = float((moved - in_pieces).norm() / moved.norm().clamp_min(torch.finfo(moved.dtype).tiny))
        difference = f"moves a matrix {apart:.0%} otherwise in two of them" if apart > SAME else None
    except Exception as error:
        difference = f"does not take those ({in_short(error)})"
    if difference is not None:
        raise RefusedError(
            f"{strategy} gives the optimizer flattened pieces of the parameters, and the workload's {difference}; use "
            "ddp, or an optimizer that takes each number by itself"
        )


def refuse_optimizer(error: Exception, make: OptimizerFactory, build: Callable[[], nn.Module], strategy: str) -> None:
    """RefusedError where the optimizer that failed by `error` moves the whole parameters of a model from `build`."""
    try:
        model = build()
        optimizer = make(model.parameters())
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, SAME) if weight.requires_grad else None
        optimizer.step()
    except Exception:
        return  # it fails on whole parameters too
    raise RefusedError(
        f"the optimizer {type(optimizer).__name__} takes whole parameters, and not what {strategy} makes of them "
        f"({in_short(error)}); use ddp, or another optimizer"
    ) from error


def _trained(make: OptimizerFactory, start: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> Tensor:
    """All numbers of these parameters, in one row, after a step along each of the gradients."""
    parameters = [nn.Parameter(tensor.clone()) for tensor in start]
    optimizer = make(parameters)
    for of_step in gradients:
        for parameter, gradient in zip(parameters, of_step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def _values(seed: int, device: torch.device) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(device)
