"""Tasks for real workers, and strategies with one planted fault each. Workers import this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from bench import strategies, workloads
from bench.measuring.batches import make_batches
from bench.measuring.control import Channel, Plain
from bench.measuring.parity import check_parity
from bench.measuring.place import training_place
from bench.measuring.step import Trainer
from bench.measuring.tasks import Job, measure
from bench.schema import Case
from bench.strategies import Context, Strategy
from bench.strategies._host_replicas import HostDataParallel
from bench.strategies.ddp import DDP
from bench.strategies.fsdp import FSDP
from bench.workloads.mnist_cnn import MnistCnn

PLANTED = "planted"
STEPS = 6


# --- strategies with a fault ---------------------------------------------------------------------


class SummedGradients(DDP):
    """The all-reduce adds and nobody divides, as gloo's AVG once did."""

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        wrapped = super().wrap(model, context)
        assert isinstance(wrapped, DistributedDataParallel)

        # Without annotations: DDP compares them with the classes, not with their names.
        def add(state, bucket):  # type: ignore[no-untyped-def]
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            assert work is not None
            return work.get_future().then(lambda future: future.value()[0])

        wrapped.register_comm_hook(None, add)
        return wrapped


class NeverSynchronised(DDP):
    """Every rank trains on its own gradient."""

    def synchronising(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        return super().synchronising(wrapped, last=False)


class NotWrapped(DDP):
    """No cooperation at all. Each rank's step is as long as the right one: only the direction differs."""

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        return model

    def synchronising(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        return Strategy.synchronising(self, wrapped, last)


class OneSampleForTheSecondRank(DDP):
    """Unequal shards, weighted as the suite does: right."""

    def chunk_sizes(self, case: Case) -> tuple[int, ...]:
        return (case.micro_batch_size - 1, 1)


class EqualWeightForUnequalShards(OneSampleForTheSecondRank):
    """Each rank takes the mean over its own shard, and the ranks' means count alike."""

    def loss_scale(self, case: Case) -> float:
        return case.micro_batch_size / self.chunk_sizes(case)[dist.get_rank()]


class OptimizerBeforeSharding(FSDP):
    """Shards at the first step, when the optimizer already holds the unsharded parameters."""

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        self._context = context
        return model

    def synchronising(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        if not isinstance(wrapped, FSDPModule):
            super().wrap(wrapped, self._context)
        return super().synchronising(wrapped, last)

    def full_parameters(self, wrapped: nn.Module) -> Iterator[tuple[str, Tensor]]:
        if isinstance(wrapped, FSDPModule):
            yield from _gathered(wrapped)
        else:
            yield from ((name, parameter.detach()) for name, parameter in wrapped.named_parameters())


class ForwardBeforeOptimizer(FSDP):
    """A shape probe between sharding and the optimizer leaves unsharded parameters for it to hold."""

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        for block in context.blocks:
            fully_shard(block, mesh=context.mesh, reshard_after_forward=False)
        wrapped = fully_shard(model, mesh=context.mesh)
        with torch.no_grad():
            wrapped((torch.zeros(1, 1, 28, 28),), {})
        return wrapped

    def full_parameters(self, wrapped: nn.Module) -> Iterator[tuple[str, Tensor]]:
        yield from _gathered(wrapped)


def _gathered(wrapped: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for module in wrapped.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    for name, parameter in wrapped.named_parameters():
        assert isinstance(parameter, DTensor)
        yield name, parameter.detach().full_tensor()


class EqualWeightForUnequalChunks(Strategy):
    """DataParallel whose replicas' means count alike: chunks of all but one sample, and one."""

    name = PLANTED
    summary = "planted"
    one_process = True
    scatters = True

    def chunk_sizes(self, case: Case) -> tuple[int, ...]:
        return (case.micro_batch_size - 1, 1)

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        micro = context.case.micro_batch_size
        return _MeanOfMeans(HostDataParallel(model, lambda batch: [micro - 1, 1]), [micro - 1, 1])

    def full_parameters(self, wrapped: nn.Module) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in wrapped.named_parameters():
            yield name.removeprefix("inner.module."), parameter.detach()


class _MeanOfMeans(nn.Module):
    """Scales the gradient of every sample as if its chunk's mean counted as much as any other's."""

    def __init__(self, inner: nn.Module, sizes: list[int]) -> None:
        super().__init__()
        self.inner = inner
        total = sum(sizes)
        self.factors = torch.cat([torch.full((size,), total / (len(sizes) * size)) for size in sizes])

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = self.inner(*args, **kwargs)
        output.register_hook(lambda gradient: gradient * self.factors.unsqueeze(1))
        return output


def _parity_with(strategy: Callable[[], Strategy], job: Job, channel: Channel) -> None:
    strategies.registry.add(PLANTED, strategy())
    check_parity(job, channel)


def summed_gradients(job: Job, channel: Channel) -> None:
    _parity_with(SummedGradients, job, channel)


def never_synchronised(job: Job, channel: Channel) -> None:
    _parity_with(NeverSynchronised, job, channel)


def not_wrapped(job: Job, channel: Channel) -> None:
    _parity_with(NotWrapped, job, channel)


def unequal_shards(job: Job, channel: Channel) -> None:
    _parity_with(OneSampleForTheSecondRank, job, channel)


def equal_weight_for_unequal_shards(job: Job, channel: Channel) -> None:
    _parity_with(EqualWeightForUnequalShards, job, channel)


class BareModelCalledDP(Strategy):
    """What torch's DataParallel is on a machine without a GPU."""

    name = PLANTED
    summary = "planted"
    one_process = True

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        return model


def bare_model_called_dp(job: Job, channel: Channel) -> None:
    _parity_with(BareModelCalledDP, job, channel)


def equal_weight_for_unequal_chunks(job: Job, channel: Channel) -> None:
    _parity_with(EqualWeightForUnequalChunks, job, channel)


def optimizer_before_sharding(job: Job, channel: Channel) -> None:
    _parity_with(OptimizerBeforeSharding, job, channel)


def forward_before_optimizer(job: Job, channel: Channel) -> None:
    _parity_with(ForwardBeforeOptimizer, job, channel)


class WrongWeight(MnistCnn):
    """Declares another weight than its loss counts."""

    def weight(self, dataset: Any, indices: Any) -> float:
        return 2 * super().weight(dataset, indices)


def wrong_weight(job: Job, channel: Channel) -> None:
    workloads.registry.add(PLANTED, WrongWeight)
    check_parity(job, channel)


class Diverging(MnistCnn):
    """Its loss is no number."""

    def loss(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        loss, weight = super().loss(output, targets)
        return loss * float("nan"), weight


def diverging(job: Job, channel: Channel) -> None:
    workloads.registry.add(PLANTED, Diverging)
    measure(job, channel)


# --- training tasks ------------------------------------------------------------------------------


def train(job: Job, channel: Channel) -> None:
    """Several steps on one batch; replies with the rank's summed losses and weights, and every dtype
    that the first convolution's output had."""
    case = job.case
    workload, strategy = workloads.registry.get(case.workload)(case.size), strategies.registry.get(case.strategy)
    with training_place(case, job.backend, channel, job.timeout_seconds) as place:
        dtypes: list[Plain] = []
        build = workload.build

        def build_and_watch() -> nn.Module:
            model = build()
            first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
            first.register_forward_hook(lambda module, inputs, output: dtypes.append(str(output.dtype)))
            return model

        workload.build = build_and_watch  # type: ignore[method-assign]
        trainer = Trainer(
            workload=workload,
            strategy=strategy,
            case=case,
            devices=place.devices,
            mesh=place.mesh,
            optimizer=partial(torch.optim.SGD, lr=0.05),
            train=False,
            seed=job.seed,
        )
        (batch,) = make_batches(workload, strategy, case, job.source, rank=channel.rank, seed=job.seed, count=1)
        terms = [trainer.step(batch).tolist() for _ in range(STEPS)]
        channel.reply(
            {
                "losses": [loss for loss, _ in terms],
                "weights": [weight for _, weight in terms],
                "dtypes": dtypes,
                "parameter_dtypes": [str(p.dtype) for p in trainer.wrapped.parameters()],
                "threads": torch.get_num_threads(),
            }
        )
