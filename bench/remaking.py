"""An optimizer made again from what it holds, by another constructor or with other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import nn

from bench.errors import RefusedError, in_short

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes the optimizer of these parameters, as `Workload.optimizer` does."""
REMEDY = "let its class take what its defaults hold, by the same names, as torch's own optimizers do"


def remade(
    optimizer: torch.optim.Optimizer, make: Callable[..., torch.optim.Optimizer], **changed: Any
) -> torch.optim.Optimizer:
    """`make(groups, **arguments)` with the parameter groups and the arguments of a new `optimizer`.

    changed: arguments that all groups get instead. RefusedError where the optimizer's class does not take what
    its `defaults` hold, as one of torch's own does.
    """
    known = inspect.signature(type(optimizer)).parameters
    arguments = {name: value for name, value in optimizer.defaults.items() if name in known} | changed
    name = type(optimizer).__name__
    try:
        made = make([{**group, **changed} for group in optimizer.param_groups], **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError) as error:
        raise RefusedError(f"the optimizer {name} cannot be made again ({in_short(error)}); {REMEDY}") from error
    # What stands for the ranks' part of it, as ZeroRedundancyOptimizer does, holds the one that was made.
    defaults, wanted = getattr(made, "optim", made).defaults, optimizer.defaults | changed
    lost = sorted(key for key in wanted if key not in defaults or not _same(defaults[key], wanted[key]))
    if lost:
        raise RefusedError(f"the optimizer {name} made again has another {', '.join(lost)}; {REMEDY}")
    return made


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other or (isinstance(one, torch.Tensor) and torch.equal(one, torch.as_tensor(other)))
    return bool(one == other)
