"""Workloads with optimizers that want whole parameters, or have a fault."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.measuring.own_models import Net, PlainNet


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


class TwoSteps(torch.optim.SGD):
    """A fault in the second step."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps == 2:
            raise ValueError("a fault of the second step")
        return super().step(closure)


class WithTwoSteps(PlainNet):
    def optimizer(self, parameters: Any) -> Any:
        return TwoSteps(parameters, lr=1e-3)


class InBackward(torch.optim.SGD):
    """Steps while the backward pass runs, to spare the memory of gradients."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, lr=1e-3)
        for weight in self.param_groups[0]["params"]:
            weight.register_post_accumulate_grad_hook(self._move)

    def _move(self, weight: Any) -> None:
        with torch.no_grad():
            weight -= 1e-3 * weight.grad
        weight.grad = None

    def step(self, closure: Any = None) -> Any:
        return None


class WithStepsInBackward(PlainNet):
    def optimizer(self, parameters: Any) -> Any:
        return InBackward(parameters)
