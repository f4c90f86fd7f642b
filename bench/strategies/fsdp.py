"""FSDP2: `fully_shard` on each block, then on the root; parameters live in shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

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
SETTER = "set_reduce_scatter_unused_params"


@register
class FSDP(Strategy):
    name = "fsdp"
    summary = "torch.distributed.fsdp.fully_shard (FSDP2)"
    whole_parameters = False
    copies_inputs = True
    ranks_must_agree = True
    options = (RESHARD_AFTER_FORWARD, REDUCE_UNUSED)

    def unsupported(self, case: Case) -> str | None:
        if self.option(case, REDUCE_UNUSED.name) == "on" and not hasattr(FSDPModule, SETTER):
            return f"{REDUCE_UNUSED.name}=on needs FSDPModule.{SETTER}, which this torch does not have; 2.14 has it"
        return None

    def follows_output(self, case: Case) -> bool:
        return True

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        refuse_shared(model, context.blocks)
        refuse_hooked(model)
        reshard = self.option(context.case, "reshard_after_forward") == "on"
        for block in context.blocks:
            fully_shard(block, mesh=context.mesh, reshard_after_forward=reshard)
        # The root owns what is in no block; tied weights stay together there, and stay tied.
        sharded: nn.Module = fully_shard(model, mesh=context.mesh)  # type: ignore[assignment]
        if self.option(context.case, REDUCE_UNUSED.name) == "on":
            getattr(sharded, SETTER)(True)
        return sharded

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
            yield name, parameter.full_tensor().detach()
