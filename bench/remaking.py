"""An optimizer made again from what it holds, by another constructor or with other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from bench.errors import RefusedError, in_short


def remade(
    optimizer: torch.optim.Optimizer, make: Callable[..., torch.optim.Optimizer], **changed: Any
) -> torch.optim.Optimizer:
    """`make(groups, **arguments)` with the parameter groups and the arguments of a new `optimizer`.

    changed: arguments that all groups get instead. RefusedError where the optimizer's class does not take what
    its `defaults` hold, as one of torch's own does.
    """
    known = inspect.signature(type(optimizer)).parameters
    arguments = {name: value for name, value in optimizer.defaults.items() if name in known}
    # Of a group, too, only what the constructor knows: AdamW's groups hold what it gave to Adam.
    groups = [
        {name: value for name, value in group.items() if name == "params" or name in known} | changed
        for group in optimizer.param_groups
    ]
    try:
        return make(groups, **(arguments | changed))
    except (TypeError, ValueError, RuntimeError) as error:
        raise RefusedError(
            f"the optimizer {type(optimizer).__name__} cannot be made again from its defaults ({in_short(error)}); "
            "let its class take what its defaults hold, as torch's own optimizers do"
        ) from error
