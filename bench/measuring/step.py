"""The training step that every strategy runs.

A step: take a batch from pinned host memory, copy it to the device (DataParallel through its
own scatter), `zero_grad(set_to_none=True)`, forward, loss, backward, `optimizer.step()`.
The loss is divided by the weight of the whole global batch, known before it is split, so that
unequal shards and chunks train exactly what one device trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from bench.errors import BenchError, RefusedError
from bench.levers import autocast
from bench.measuring.batches import StepBatch, to_device
from bench.measuring.building import blocks_of, built, seed_all
from bench.measuring.control import may_be_refused
from bench.measuring.optimizing import (
    STEPS,
    WORKS_IN_HOOKS,
    OptimizerFactory,
    check_closure,
    check_pieces,
    number_of_hooks,
    refuse_optimizer,
)
from bench.measuring.place import without_group
from bench.schema import Case
from bench.strategies import LOOKS, Context, LossCheck, StepLoss, Strategy
from bench.structure import samples_in, tensors_of, with_tensors
from bench.workloads import Batch, Workload

T = TypeVar("T")


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

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: Any = None) -> Any:
        if self.seen is not None:
            self.seen.append(samples_in((args, kwargs)))
        with autocast(self._precision, self._device_type):
            output = self.model(*args, **kwargs)
            if self._bare:
                return self._tensors(output)
            if self._loss is None:
                return output
            return _terms(*_checked_loss(self._loss(output, targets), self._name)).reshape(1, 2)

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


def _checked_loss(returned: Any, name: str) -> tuple[Tensor, Tensor | float]:
    """What `loss` returned; BenchError where that is not as `Workload.loss` says."""
    parts = returned if isinstance(returned, (tuple, list)) else (returned,)
    if len(parts) != 2 or not isinstance(parts[0], Tensor) or parts[0].dim():
        kinds = [f"a tensor of shape {tuple(p.shape)}" if isinstance(p, Tensor) else type(p).__name__ for p in parts]
        raise BenchError(
            f"loss() of workload {name} returns {' and '.join(kinds) or 'nothing'}; return two scalars, "
            "(loss_sum, weight), the first as a tensor"
        )
    return parts[0], parts[1]


def _terms(loss_sum: Tensor, weight: Tensor | float) -> Tensor:
    """Loss sum and weight, which may be a plain number, as a tensor of shape (2,)."""
    weight = weight.float() if isinstance(weight, Tensor) else loss_sum.new_tensor(weight, dtype=torch.float32)
    return torch.stack([loss_sum.float(), weight])


class Trainer:
    """A model, wrapped by a strategy, with its optimizer; `step` trains one global batch.

    The order is fixed: build, move, `prepare` (what the parity check does to a new model), wrap, then
    the optimizer. An optimizer built before
    sharding, or a forward before it exists, would train nothing under `fully_shard`.
    """

    def __init__(
        self,
        *,
        workload: Workload,
        strategy: Strategy,
        case: Case,
        devices: tuple[torch.device, ...],
        mesh: DeviceMesh | None,
        optimizer: OptimizerFactory | None = None,
        train: bool = True,
        prepare: Callable[[nn.Module], None] | None = None,
        seed: int,
        looks: float = LOOKS,
    ) -> None:
        seed_all(seed)
        model = built(workload)
        model.to(devices[0])  # not chained: some models override these, and return nothing
        model.train(train)
        if prepare is not None:
            prepare(model)
        self.workload, self.strategy, self.case, self.devices = workload, strategy, case, devices
        self._loss_inside = strategy.loss_inside(case)
        bare = strategy.follows_output(case) and not self._loss_inside
        self._module = module = PrecisionModule(model, workload, case, self._loss_inside, bare)
        module.train(train)
        blocks, shapes = blocks_of(workload, model), [weight.shape for weight in module.parameters()]
        self._context = Context(case=case, devices=devices, blocks=blocks, mesh=mesh)
        try:
            self.wrapped = strategy.wrap(module, self._context)
        except Exception as error:
            _say_refused(strategy, error, None)
            raise
        self._make_optimizer, self.steps_taken = optimizer or workload.optimizer, 0
        self.optimizer = self._optimizer(flattened=shapes != [weight.shape for weight in self.wrapped.parameters()])
        self._loss_scale = strategy.loss_scale(case)
        self._check: LossCheck | None = None
        self.look_again(looks)

    def look_again(self, steps: float) -> None:
        """Have the strategy look at the next steps, see `Strategy.loss_check`."""
        if not self._loss_inside:
            context = replace(self._context, looks=steps)
            self._check = self.strategy.loss_check(self._module, self.wrapped, context)

    def step(self, batch: StepBatch) -> Tensor:
        """Train one global batch. Returns this process's summed loss and weight, shape (2,), on its device.

        RefusedError where the strategy cannot take the model.
        """
        try:
            return self._step(batch)
        except Exception as error:
            _say_refused(self.strategy, error, self.wrapped)
            raise

    def _step(self, batch: StepBatch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        total: Tensor | None = None
        last = len(batch.micro_batches) - 1
        for number, micro_batch in enumerate(batch.micro_batches):
            with self.strategy.synchronising(self.wrapped, last=number == last):
                terms = self._forward(micro_batch, last=number == last)
                (terms[0] * (self._loss_scale / batch.weight)).backward()  # type: ignore[no-untyped-call]
            total = terms.detach() if total is None else total + terms.detach()
        self._with_optimizer(self.optimizer.step)
        self.steps_taken += 1
        assert total is not None
        return total

    def _optimizer(self, *, flattened: bool) -> torch.optim.Optimizer:
        """A new one; RefusedError where the strategy's parameters do not suit it. flattened: they are pieces."""
        if flattened:
            check_pieces(self._make_optimizer, self.devices[0], self.strategy.name)
        hooks = number_of_hooks(self.wrapped)
        made = self._with_optimizer(lambda: self._make_optimizer(self.wrapped.parameters()))
        check_closure(made)
        if number_of_hooks(self.wrapped) > hooks and self.case.num_devices > 1 and not self.strategy.hooks_see_averages:
            raise RefusedError(WORKS_IN_HOOKS.format(strategy=self.strategy.name))
        return made

    def _with_optimizer(self, act: Callable[[], T]) -> T:
        """What `act` returns; RefusedError where the optimizer cannot take parameters in shards."""
        try:
            return act()
        except Exception as error:
            sharded = not self.strategy.whole_parameters and not self.strategy.one_process
            if sharded and self.steps_taken < STEPS and may_be_refused(error):
                with without_group():
                    refuse_optimizer(error, self._make_optimizer, self._another_model, self.strategy.name)
            raise

    def _another_model(self) -> nn.Module:
        """A new one, whole, on one device."""
        model = built(self.workload)
        model.to(self.devices[0])
        return model

    def _forward(self, batch: Batch, last: bool = True) -> Tensor:
        """Loss sum and weight of a micro-batch as a tensor of shape (2,); `last` of those that are accumulated."""
        device, host = self.devices[0], self.strategy.scatters
        if self._loss_inside:
            inside: Tensor = self.wrapped(*(batch if host else to_device(batch, device)))
            return inside.sum(dim=0)
        args, kwargs, targets = batch if host else to_device(batch, device)
        if host:
            targets = to_device(targets, device)
        output = self._module.whole_output(self.wrapped(args, kwargs))
        with autocast(self.case.precision, self.case.device_type):
            loss_sum, weight = self._loss(output, targets, samples_in((args, kwargs)))
            if self._check is not None and torch.is_grad_enabled():
                loss = self.workload.loss
                self._check(StepLoss(output=output, targets=targets, loss_sum=loss_sum, loss=loss, last=last))
        return _terms(loss_sum, weight)

    def _loss(self, output: Any, targets: Any, samples: int) -> tuple[Tensor, Tensor | float]:
        """The workload's; RefusedError where it fails because of how the strategy puts outputs together."""
        try:
            loss_sum, weight = _checked_loss(self.workload.loss(output, targets), self.workload.name)
        except Exception as error:
            reason = self.strategy.loss_refusal(output, samples, error)
            if reason is None:
                raise
            raise RefusedError(reason) from error
        if torch.is_grad_enabled() and not loss_sum.requires_grad:
            raise BenchError(
                f"the loss of workload {self.workload.name} has no gradient, as where nothing counts in a batch; keep "
                "it in the graph: the sum over an empty selection of the output is 0 and has one"
            )
        return loss_sum, weight

    def loss_sum(self, batch: Batch) -> float:
        """The loss of a micro-batch, summed; nothing is trained."""
        with torch.no_grad():
            return float(self.loss(batch))

    def loss(self, batch: Batch) -> Tensor:
        """The same with its graph."""
        return self._forward(batch)[0]

    @property
    def model(self) -> nn.Module:
        """What `build` returned."""
        return self._module.model

    def observe(self) -> list[int]:
        """A list that gets the samples of every forward from now on, replica by replica."""
        seen: list[int] = []
        self._module.seen = seen
        return seen

    def full_parameters(self) -> dict[str, Tensor]:
        """Whole parameters on the CPU by the model's own names; every rank must call it."""
        found = self.strategy.full_parameters(self.wrapped)
        return {name.removeprefix("model."): parameter.to("cpu", copy=True) for name, parameter in found}


def _say_refused(strategy: Strategy, error: Exception, wrapped: nn.Module | None) -> None:
    """RefusedError in the place of `error` where it means that the strategy cannot take the model."""
    reason = strategy.refusal(error, wrapped)
    if reason is not None:
        raise RefusedError(reason) from error


def synchronize(devices: Iterable[torch.device]) -> None:
    """Wait for every device that this process uses."""
    for device in dict.fromkeys(devices):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
