"""What a strategy wraps: the model under its autocast, with the loss inside where asked for."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from bench import levers
from bench.errors import BenchError, RefusedError
from bench.levers import autocast
from bench.schema import Case
from bench.structure import samples_in, tensors_of, with_tensors
from bench.workloads import Workload


class PrecisionModule(nn.Module):
    """What a strategy wraps: the model under its autocast, with the loss inside where asked for.

    Returns the model's output, or, with the loss inside, a tensor of shape (1, 2) with
    `loss_sum` and `weight`, so that DataParallel's gather gives one row per replica. `bare` is
    for a strategy that follows the output: its tensors alone, see `whole_output`.
    """

    def __init__(self, model: nn.Module, workload: Workload, case: Case, loss_inside: bool, bare: bool = False) -> None:
        super().__init__()
        self.model = model
        self._loss, self._name = workload.loss if loss_inside else None, workload.name
        self.seen: list[int] | None = None
        """Samples of every forward while it is a list, which replicas share; the parity check looks at it."""
        self._bare, self._structure = bare, None
        self._precision, self._device_type = case.precision, case.device_type
        self.witnesses: list[levers.Witness] = []
        """Who looks on in a forward; replicas share the list."""

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: Any = None) -> Any:
        if self.seen is not None:
            self.seen.append(samples_in((args, kwargs)))
        with ExitStack() as stack:
            stack.enter_context(autocast(self._precision, self._device_type))
            for witness in self.witnesses:
                stack.enter_context(witness.watching())
            output = self.model(*args, **kwargs)
            if self._bare:
                return self._tensors(output)
            if self._loss is None:
                return output
            return terms_of(*checked_loss(self._loss(output, targets), self._name)).reshape(1, 2)

    def _tensors(self, output: Any) -> tuple[Tensor, ...]:
        """The tensors of an output alone: a wrapper would not find them in a dataclass."""
        tensors = tuple(tensors_of(output))
        if not tensors:
            raise RefusedError(
                f"this strategy must see the tensors of the model's output, and finds none in a "
                f"{type(output).__name__}; return a tensor, or tensors in a tuple, list, dict or dataclass"
            )
        self._structure = output
        return tensors

    def whole_output(self, returned: Any) -> Any:
        """The model's own output from what the wrapped module returned."""
        if not self._bare:
            return returned
        structure, self._structure = self._structure, None  # it would keep the graph until the next step
        return with_tensors(structure, returned)


def checked_loss(returned: Any, name: str) -> tuple[Tensor, Tensor | float]:
    """What `loss` returned; BenchError where that is not as `Workload.loss` says."""
    parts = returned if isinstance(returned, (tuple, list)) else (returned,)
    if len(parts) != 2 or not isinstance(parts[0], Tensor) or parts[0].dim():
        kinds = [f"a tensor of shape {tuple(p.shape)}" if isinstance(p, Tensor) else type(p).__name__ for p in parts]
        raise BenchError(
            f"loss() of workload {name} returns {' and '.join(kinds) or 'nothing'}; return two scalars, "
            "(loss_sum, weight), the first as a tensor"
        )
    return parts[0], parts[1]


def terms_of(loss_sum: Tensor, weight: Tensor | float) -> Tensor:
    """Loss sum and weight, which may be a plain number, as a tensor of shape (2,)."""
    weight = weight.float() if isinstance(weight, Tensor) else loss_sum.new_tensor(weight, dtype=torch.float32)
    return torch.stack([loss_sum.float(), weight])
