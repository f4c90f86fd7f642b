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

from bench import levers
from bench.errors import BenchError, RefusedError
from bench.levers import autocast
from bench.levers.data_placement import is_resident
from bench.measuring.batches import StepBatch, refuse_written, to_device, versions_of
from bench.measuring.building import blocks_of, built, seed_all
from bench.measuring.control import may_be_refused
from bench.measuring.optimizing import (
    STEPS,
    WORKS_IN_HOOKS,
    check_closure,
    check_pieces,
    check_remade,
    made_again,
    number_of_hooks,
    refuse_optimizer,
)
from bench.measuring.place import without_group
from bench.measuring.wrapped import PrecisionModule, checked_loss, terms_of
from bench.remaking import OptimizerFactory
from bench.schema import Case
from bench.strategies import LOOKS, Context, LossCheck, StepLoss, Strategy
from bench.structure import own_name, samples_in
from bench.workloads import Batch, Workload

T = TypeVar("T")


class Trainer:
    """A model, wrapped by a strategy, with its optimizer; `step` trains one global batch.

    The order is fixed: build, move, `prepare` (what the parity check does to a new model), the levers that change the
    model, wrap, then the optimizer. An optimizer built before sharding, or a forward before it exists, would train
    nothing under `fully_shard`. init_scale: of the loss in fp16, for the GradScaler.
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
        init_scale: float = 2.0**16,
    ) -> None:
        seed_all(seed)
        model = built(workload)
        model.to(devices[0])  # not chained: some models override these, and return nothing
        model.train(train)
        if prepare is not None:
            prepare(model)
        blocks = levers.prepare_model(case, model, blocks_of(workload, model))
        self.workload, self.strategy, self.case, self.devices = workload, strategy, case, devices
        self._loss_inside = strategy.loss_inside(case)
        bare = strategy.follows_output(case) and not self._loss_inside
        self._module = module = PrecisionModule(model, workload, case, self._loss_inside, bare)
        module.train(train)
        module.witnesses = levers.witnesses(case)
        shapes = [weight.shape for weight in module.parameters()]
        self._context = Context(case=case, devices=devices, blocks=blocks, mesh=mesh)
        try:
            self.wrapped = strategy.wrap(module, self._context)
        except Exception as error:
            _say_refused(strategy, case, error, None)
            raise
        # The parity check's plain SGD stays as it is; the kernel of the workload's own is compared, see `_optimizer`.
        self._make_optimizer = optimizer or levers.optimizer_factory(case, workload.optimizer)
        self.steps_taken, self._copies = 0, not is_resident(case)
        self.optimizer = self._optimizer(flattened=shapes != [weight.shape for weight in self.wrapped.parameters()])
        self._loss_scale = strategy.loss_scale(case)
        half = case.precision == "fp16"
        self._scaler = strategy.grad_scaler(case.device_type, init_scale) if half else None
        self._synchronises_each = case.setting("accumulation_sync") == "every"
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
            _say_refused(self.strategy, self.case, error, self.wrapped)
            raise

    def _step(self, batch: StepBatch) -> Tensor:
        versions = versions_of(batch) if self.steps_taken == 0 and not self._copies else None
        self.optimizer.zero_grad(set_to_none=True)
        total: Tensor | None = None
        last = len(batch.micro_batches) - 1
        for number, micro_batch in enumerate(batch.micro_batches):
            reduces = self._synchronises_each or number == last
            with self.strategy.synchronising(self.wrapped, last=reduces):
                loss_sum, weight = self._forward(micro_batch, reduces=reduces)
                loss = loss_sum.float() * (self._loss_scale / batch.weight)
                (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
            # Detached first: in the graph, stack and selection would be differentiated in every step for nothing.
            terms = terms_of(loss_sum.detach(), weight.detach() if isinstance(weight, Tensor) else weight)
            total = terms if total is None else total + terms
        self._with_optimizer(self._update)
        if versions is not None:
            refuse_written(batch, versions)
        self.steps_taken += 1
        assert total is not None
        self._hear_witnesses()
        return total

    def _update(self) -> None:
        if self._scaler is None:
            self.optimizer.step()
        else:
            if self.strategy.unscales_first:
                self._scaler.unscale_(self.optimizer)
            self._scaler.step(self.optimizer)
            self._scaler.update()

    def _hear_witnesses(self) -> None:
        """After the first step: RefusedError where a lever found nothing to act on."""
        if self._module.witnesses:
            reason = next((reason for witness in self._module.witnesses if (reason := witness.refusal())), None)
            self._module.witnesses.clear()
            if reason is not None:
                raise RefusedError(reason)

    def _optimizer(self, *, flattened: bool) -> torch.optim.Optimizer:
        """A new one; RefusedError where the strategy's parameters do not suit it. flattened: they are pieces."""
        own = self.workload.optimizer
        check_remade(own, levers.optimizer_factory(self.case, own), self.devices[0])
        if self.strategy.splits_optimizer:
            check_remade(own, made_again(own), self.devices[0])
        if flattened or self.strategy.splits_optimizer:
            check_pieces(self._make_optimizer, self.devices[0], self.strategy.name, whole=not flattened)
        hooks = number_of_hooks(self.wrapped)
        made = self._with_optimizer(lambda: self.strategy.optimizer(self._make_optimizer, self.wrapped))
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

    def _forward(self, batch: Batch, reduces: bool = True) -> tuple[Tensor, Tensor | float]:
        """Loss sum, with its graph, and weight of a micro-batch, after which ranks reduce gradients or do not."""
        device, host = self.devices[0], self.strategy.scatters
        if self._loss_inside:
            inside: Tensor = self.wrapped(*(batch if host else to_device(batch, device, copy=self._copies)))
            loss_sum, weight = inside.sum(dim=0)
            return loss_sum, weight
        args, kwargs, targets = batch if host else to_device(batch, device, copy=self._copies)
        if host:
            targets = to_device(targets, device, copy=self._copies)
        output = self._module.whole_output(self.wrapped(args, kwargs))
        with autocast(self.case.precision, self.case.device_type):
            loss_sum, weight = self._loss(output, targets, (args, kwargs))
            if self._check is not None and torch.is_grad_enabled():
                loss = self.workload.loss
                self._check(StepLoss(output=output, targets=targets, loss_sum=loss_sum, loss=loss, reduces=reduces))
        return loss_sum, weight

    def _loss(self, output: Any, targets: Any, inputs: Any) -> tuple[Tensor, Tensor | float]:
        """The workload's; RefusedError where it fails because of how the strategy puts outputs together."""
        try:
            loss_sum, weight = checked_loss(self.workload.loss(output, targets), self.workload.name)
        except Exception as error:
            reason = self.strategy.loss_refusal(output, samples_in(inputs), error)
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
        return self._forward(batch)[0].float()

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
        return {own_name(name): parameter.to("cpu", copy=True) for name, parameter in found}


def _say_refused(strategy: Strategy, case: Case, error: Exception, wrapped: nn.Module | None) -> None:
    """RefusedError in the place of `error` where it means that the strategy, or a lever, cannot take the model."""
    reason = strategy.refusal(error, wrapped) or levers.refusal(case, error)
    if reason is not None:
        raise RefusedError(reason) from error


def synchronize(devices: Iterable[torch.device]) -> None:
    """Wait for every device that this process uses."""
    for device in dict.fromkeys(devices):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
