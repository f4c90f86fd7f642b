"""FSDP1: the older FullyShardedDataParallel, with its sharding strategies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import CustomPolicy

from bench.schema import Case
from bench.strategies._agreement import Agreement
from bench.strategies._sharing import Shapes, fsdp_refusal, refuse_hooked, refuse_shared, shapes_of
from bench.strategies.base import Context, LossCheck, Option, Strategy, register

SHARDING_STRATEGY = Option(
    name="sharding_strategy",
    default="full_shard",
    values=("full_shard", "shard_grad_op", "no_shard"),
    meaning="what is sharded: parameters too, gradients and optimizer state only, or nothing",
)


@register
class FSDP1(Strategy):
    name = "fsdp1"
    summary = "torch.distributed.fsdp.FullyShardedDataParallel (FSDP1)"
    whole_parameters = False
    ranks_must_agree = True
    hooks_see_averages = False
    hides_parameters = True
    unscales_first = True
    options = (SHARDING_STRATEGY,)

    def __init__(self) -> None:
        self._whole: Shapes = {}
        """Of the model that this process wrapped last."""

    def follows_output(self, case: Case) -> bool:
        return True

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        refuse_shared(model, context.blocks)
        refuse_hooked(model)
        self._whole = shapes_of(model)
        blocks = set(context.blocks)
        return FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy[self.option(context.case, "sharding_strategy").upper()],
            auto_wrap_policy=CustomPolicy(lambda module: module in blocks),
            # Needed on CPU too: without it FSDP1 looks for an accelerator.
            device_id=context.devices[0],
            use_orig_params=True,
        )

    def loss_check(self, model: nn.Module, wrapped: nn.Module, context: Context) -> LossCheck | None:
        if context.mesh is None:
            return None
        # Not `module.module`, which looks through what checkpoints activations.
        outer = {module._fsdp_wrapped_module: module for module in FullyShardedDataParallel.fsdp_modules(wrapped)}
        blocks = {block: outer[block] for block in context.blocks}
        return Agreement(model, context, blocks, fsdp2=False)

    def refusal(self, error: Exception, wrapped: nn.Module | None) -> str | None:
        return super().refusal(error, wrapped) or fsdp_refusal(error, self._whole)

    def grad_scaler(self, device_type: str, init_scale: float) -> torch.amp.GradScaler:
        return ShardedGradScaler(device_type, init_scale=init_scale)

    def synchronising(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        assert isinstance(wrapped, FullyShardedDataParallel)
        return nullcontext() if last else wrapped.no_sync()

    def full_parameters(self, wrapped: nn.Module) -> Iterator[tuple[str, Tensor]]:
        with FullyShardedDataParallel.summon_full_params(wrapped, writeback=False):
            for name, parameter in wrapped.named_parameters():
                yield name.replace("_fsdp_wrapped_module.", ""), parameter.detach().clone()
