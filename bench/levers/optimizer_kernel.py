"""How torch's optimizers walk over the parameters: one by one, in a few large calls, or in one fused kernel."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from bench.errors import RefusedError
from bench.levers.base import Lever, register
from bench.remaking import OptimizerFactory, remade
from bench.schema import Case

ARGUMENTS = {
    "for_loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


@register
class OptimizerKernel(Lever):
    name = "optimizer_kernel"
    meaning = (
        "default: what the workload's optimizer says, and torch's choice where it says nothing; for_loop: one "
        "parameter after the other; foreach: a few calls over all of them; fused: one kernel"
    )
    changes = "the time of the optimizer's step, most with many small parameters; foreach takes memory for temporaries"
    default = "default"
    values = ("default", *ARGUMENTS)

    needs = "an optimizer that has the implementation, as torch's own do"

    def optimizer(self, case: Case, make: OptimizerFactory) -> OptimizerFactory:
        value = self.of(case)

        def made(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            plain = make(parameters)
            return remade(plain, type(plain), **_arguments(plain, value))

        return made


def _arguments(optimizer: torch.optim.Optimizer, value: str) -> dict[str, Any]:
    """What the optimizer's class takes of the arguments; RefusedError where it has no such kernel."""
    known = inspect.signature(type(optimizer)).parameters
    wanted = ARGUMENTS[value]
    if any(on and name not in known for name, on in wanted.items()) or not known.keys() & wanted.keys():
        name = type(optimizer).__name__
        raise RefusedError(f"optimizer_kernel={value}: the workload's optimizer {name} has no such implementation")
    return {name: on for name, on in wanted.items() if name in known}
