"""Can a workload's optimizer train parameters as a strategy hands them over: in shards, or flattened?

The parity check does not show it, since its steps are plain SGD.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from bench.errors import BenchError, RefusedError, in_short
from bench.remaking import OptimizerFactory, remade

WORKS_IN_HOOKS = (
    "the optimizer works in hooks on parameters, which {strategy} calls before the ranks' gradients are averaged, or "
    "never; let it work in step(), or use fsdp or dp"
)

STEPS = 3
SHAPES = ((136, 130), (8, 4, 3, 3), (136,))
"""A matrix, a kernel and a bias. Optimizers that factor large matrices alone often begin at 128."""
SAME = 1e-6
"""Relative difference of two movements in float64 that rounding does not make."""
SAME_FLOAT32 = 1e-4
"""The same in float32, for kernels that add up in another order."""


def check_closure(optimizer: torch.optim.Optimizer) -> None:
    """BenchError where `step` cannot be called without a closure, as that of LBFGS."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise BenchError(
            f"{type(optimizer).__name__} needs a closure that computes the loss anew, which the training step does not "
            "give; use an optimizer whose step() needs no argument"
        )


def number_of_hooks(wrapped: nn.Module) -> int:
    """Hooks on the gradients of parameters. An optimizer that adds some works while the backward pass runs."""
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return sum(len(getattr(weight, kind, None) or ()) for weight in wrapped.parameters() for kind in kinds)


def check_pieces(make: OptimizerFactory, device: torch.device, strategy: str, *, whole: bool = False) -> None:
    """RefusedError where an optimizer moves parameters otherwise if two ranks have flattened halves of them.

    whole: each rank has some of the parameters instead, whole ones.
    Nothing is said of one that cannot be made for made-up parameters, or that moves them otherwise each time.
    """
    start, gradients = _made_up(device)
    try:
        moved, again = (_movement(make, start, gradients) for _ in range(2))
    except Exception:
        return
    if not _close(moved, again):
        return
    of_rank, of_all = (_some, "all together") if whole else (_half, "the whole")
    try:
        ranks = [_movement(make, of_rank(start, i), [of_rank(each, i) for each in gradients]) for i in range(2)]
        pieces = [*ranks[0], *ranks[1]] if whole else [torch.cat(both) for both in zip(*ranks, strict=True)]
        difference = None if _close(moved, pieces) else f"moves these otherwise than {of_all}"
    except Exception as error:
        difference = f"does not take these ({in_short(error)})"
    if difference is not None:
        given, part = ("some of the parameters", "parameter") if whole else ("flattened pieces of them", "number")
        raise RefusedError(
            f"{strategy} gives each rank's optimizer {given}, and the workload's {difference}; use ddp, or an "
            f"optimizer that takes each {part} by itself"
        )


def check_remade(plain: OptimizerFactory, other: OptimizerFactory, device: torch.device) -> None:
    """RefusedError where `other`, the same optimizer made again, moves parameters otherwise than `plain`.

    By another kernel, or since its class holds what its defaults do not tell: a hook, an attribute, an argument. The
    parity check does not show that either. Nothing is said of one that moves them otherwise each time.
    """
    if plain == other:
        return
    # In the type that is trained: a rate that is a float32 tensor rounds in another place for float64 parameters.
    start, gradients = _made_up(device, torch.float32)
    expected, again, moved = (_movement(make, start, gradients) for make in (plain, plain, other))
    if _close(expected, again, SAME_FLOAT32) and not _close(expected, moved, SAME_FLOAT32):
        difference = max(float((a - b).norm() / a.norm()) for a, b in zip(expected, moved, strict=True))
        raise RefusedError(
            f"the workload's optimizer, made again from its defaults, moves parameters otherwise: by {difference:.1e} "
            f"in {STEPS} steps; keep what it does in its class, groups and defaults, not in hooks or attributes, or "
            "leave out what makes it again (optimizer_kernel, zero1)"
        )


def made_again(make: OptimizerFactory) -> OptimizerFactory:
    """The same optimizers, each made again from what it holds, as a strategy does that splits them over ranks."""

    def made(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = make(parameters)
        return remade(optimizer, type(optimizer))

    return made


def refuse_optimizer(error: Exception, make: OptimizerFactory, build: Callable[[], nn.Module], strategy: str) -> None:
    """RefusedError where the optimizer that failed by `error` moves the whole parameters of a model from `build`."""
    try:
        model = build()
        optimizer = make(model.parameters())
        for _ in range(STEPS):
            for weight in model.parameters():
                weight.grad = torch.ones_like(weight) if weight.requires_grad else None
            optimizer.step()
    except Exception:
        return  # it fails on whole parameters too
    raise RefusedError(
        f"the optimizer {type(optimizer).__name__} takes whole parameters, and not what {strategy} makes of them "
        f"({in_short(error)}); use ddp, or another optimizer"
    ) from error


def _movement(make: OptimizerFactory, start: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """How far each parameter is moved by steps along these gradients, flattened."""
    parameters = [nn.Parameter(tensor.clone()) for tensor in start]
    optimizer = make(iter(parameters))
    for of_step in gradients:
        for parameter, gradient in zip(parameters, of_step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [(after.detach() - before).flatten() for after, before in zip(parameters, start, strict=True)]


def _half(tensors: Sequence[Tensor], number: int) -> list[Tensor]:
    return [tensor.flatten().chunk(2)[number] for tensor in tensors]


def _some(tensors: Sequence[Tensor], number: int) -> list[Tensor]:
    return list(tensors[1:] if number else tensors[:1])


def _close(one: Sequence[Tensor], other: Sequence[Tensor], same: float = SAME) -> bool:
    """Whether two movements are the same but for rounding, for each parameter."""
    return all(float((a - b).norm()) <= same * float(a.norm()) for a, b in zip(one, other, strict=True))


def _made_up(device: torch.device, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Parameters, and a gradient of each for every step."""
    generator = torch.Generator().manual_seed(0)
    start, *gradients = ([_drawn(shape, generator).to(device, dtype) for shape in SHAPES] for _ in range(STEPS + 1))
    return start, gradients


def _drawn(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
