"""FSDP2: `fully_shard` on each block, then on the root; parameters live in shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from bench.errors import RefusedError
from bench.schema import Case
from bench.strategies._agreement import Agreement
from bench.strategies._sharing import fsdp_refusal, refuse_hooked, refuse_shared
from bench.strategies.base import Context, LossCheck, Option, Strategy, register

RESHARD_AFTER_FORWARD = Option(
    name="reshard_after_forward",
    default="on",
    values=("on", "off"),
    meaning="free a block's full parameters after its forward and gather them again for its backward",
)
REDUCE_UNUSED = Option(
    name="reduce_unused_parameters",
    default="off",
    values=("off", "on"),
    meaning="reduce zeros for parameters that got no gradient on this rank, for models whose ranks use different ones",
)
MIXED_PRECISION = Option(
    name="mixed_precision",
    default="off",
    values=("off", "bf16", "bf16_reduce_fp32"),
    lossy=frozenset({"bf16", "bf16_reduce_fp32"}),
    meaning="gather parameters and compute in bf16 (MixedPrecisionPolicy), and reduce gradients in it or in fp32; the "
    "optimizer keeps fp32",
)
CPU_OFFLOAD = Option(
    name="cpu_offload",
    default="off",
    values=("off", "on"),
    not_on={"cpu": "the shards are in host memory already"},
    meaning="keep shards, gradients and optimizer state in pinned host memory, and step there",
)
PREFETCH = Option(
    name="prefetch",
    default="0",
    meaning="blocks to gather ahead of time, forward and backward, by explicit order; 0: torch's own, the next one in "
    "the backward pass",
)
SHARD_GROUP = Option(
    name="shard_group",
    default="0",
    meaning="hybrid sharding: shard over groups of so many ranks, replicate over the groups (2-D mesh); 0: shard over "
    "all",
)
SETTER = "set_reduce_scatter_unused_params"
DTYPES = {"bf16": torch.bfloat16, "bf16_reduce_fp32": torch.bfloat16}


@register
class FSDP(Strategy):
    name = "fsdp"
    summary = "torch.distributed.fsdp.fully_shard (FSDP2)"
    whole_parameters = False
    copies_inputs = True
    ranks_must_agree = True
    options = (RESHARD_AFTER_FORWARD, REDUCE_UNUSED, MIXED_PRECISION, CPU_OFFLOAD, PREFETCH, SHARD_GROUP)

    def unsupported(self, case: Case) -> str | None:
        if self.option(case, REDUCE_UNUSED.name) == "on" and not hasattr(FSDPModule, SETTER):
            return f"{REDUCE_UNUSED.name}=on needs FSDPModule.{SETTER}, which this torch does not have; 2.14 has it"
        if self.option(case, CPU_OFFLOAD.name) == "on" and case.precision == "fp16":
            return f"{CPU_OFFLOAD.name}=on keeps gradients on the host, where NCCL cannot tell their overflow; use bf16"
        group = int(self.option(case, SHARD_GROUP.name))
        if group and (case.num_devices % group or group >= case.num_devices):
            return (
                f"{SHARD_GROUP.name}={group} does not split {case.num_devices} devices into groups of that size; use a "
                "divisor below their number"
            )
        return super().unsupported(case)

    def computes_in(self, case: Case) -> str:
        low = self.option(case, MIXED_PRECISION.name) in DTYPES
        return "bf16" if low and case.precision not in ("bf16", "fp16") else case.precision

    def follows_output(self, case: Case) -> bool:
        return True

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        refuse_shared(model, context.blocks)
        refuse_hooked(model)
        if self.option(context.case, MIXED_PRECISION.name) in DTYPES:
            _refuse_statistics(model)
        reshard = self.option(context.case, "reshard_after_forward") == "on"
        shard = partial(fully_shard, mesh=self._mesh(context), mp_policy=self._policy(context.case))
        if self.option(context.case, CPU_OFFLOAD.name) == "on":
            shard = partial(shard, offload_policy=CPUOffloadPolicy())
        for block in context.blocks:
            shard(block, reshard_after_forward=reshard)
        # The root owns what is in no block; tied weights stay together there, and stay tied.
        sharded = cast(nn.Module, shard(model))
        _prefetch(context.blocks, model, int(self.option(context.case, PREFETCH.name)))
        if self.option(context.case, REDUCE_UNUSED.name) == "on":
            getattr(sharded, SETTER)(True)
        return sharded

    def _mesh(self, context: Context) -> DeviceMesh | None:
        """Over all ranks, or, for hybrid sharding, (groups, ranks of a group)."""
        group, mesh = int(self.option(context.case, SHARD_GROUP.name)), context.mesh
        if not group or mesh is None:
            return mesh
        shape = (mesh.size() // group, group)
        return init_device_mesh(mesh.device_type, shape, mesh_dim_names=("replicate", "shard"))

    def _policy(self, case: Case) -> MixedPrecisionPolicy:
        value = self.option(case, MIXED_PRECISION.name)
        reduce = torch.float32 if value.endswith("fp32") else None
        return MixedPrecisionPolicy(param_dtype=DTYPES.get(value), reduce_dtype=reduce)

    def loss_check(self, model: nn.Module, wrapped: nn.Module, context: Context) -> LossCheck | None:
        if context.mesh is None or context.mesh.size() == 1:
            return None
        unused = self.option(context.case, REDUCE_UNUSED.name) == "on"
        blocks = {block: block for block in context.blocks}
        return Agreement(model, context, blocks, fsdp2=True, reduces_unused=unused)

    def refusal(self, error: Exception, wrapped: nn.Module | None) -> str | None:
        return super().refusal(error, wrapped) or fsdp_refusal(error)

    def synchronising(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        assert isinstance(wrapped, FSDPModule)
        wrapped.set_requires_gradient_sync(last)
        return nullcontext()

    def full_parameters(self, wrapped: nn.Module) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in wrapped.named_parameters():
            assert isinstance(parameter, DTensor)
            # Shards that were offloaded are gathered on the device: NCCL takes nothing else.
            there = cast(DTensor, parameter.detach().to(parameter.device_mesh.device_type))
            yield name, there.full_tensor()


def _refuse_statistics(model: nn.Module) -> None:
    """RefusedError for BatchNorm: FSDP2 casts its weights, and not the statistics that it holds in buffers."""
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        raise RefusedError(
            f"{MIXED_PRECISION.name} casts a BatchNorm's weights and not its statistics, which do not go together; "
            "use --precision bf16"
        )


def _prefetch(blocks: Sequence[nn.Module], model: nn.Module, ahead: int) -> None:
    """Have each block gather the next ones, in the order of the model's modules, before it runs.

    RefusedError where there are none to gather.
    """
    if ahead and len(blocks) < 2:
        raise RefusedError(f"{PREFETCH.name}={ahead} gathers blocks ahead, and the workload names fewer than two")
    order = list(model.modules())
    modules = cast("list[FSDPModule]", sorted(blocks, key=order.index))
    for number, module in enumerate(modules if ahead else ()):
        module.set_modules_to_forward_prefetch(modules[number + 1 : number + 1 + ahead])
        module.set_modules_to_backward_prefetch(modules[max(0, number - ahead) : number][::-1])
