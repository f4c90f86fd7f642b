"""DistributedDataParallel: one process a device, bucketed all-reduce during backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.schema import Case
from bench.strategies.base import Context, Option, Strategy, register

BUCKET_CAP_MB = Option(name="bucket_cap_mb", default="25", meaning="size of a gradient bucket in MiB")
STATIC_GRAPH = Option(
    name="static_graph", default="off", values=("off", "on"), meaning="promise that the graph never changes"
)


@register
class DDP(Strategy):
    name = "ddp"
    summary = "torch.nn.parallel.DistributedDataParallel"
    options = (BUCKET_CAP_MB, STATIC_GRAPH)

    def unsupported(self, case: Case) -> str | None:
        if self.option(case, "static_graph") == "on" and case.accumulation_steps > 1:
            return "DDP cannot skip synchronisation (no_sync) in a static graph; use static_graph=off or 1 step"
        return None

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        device = context.devices[0]
        return DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            # Buffers are broadcast before each forward: the default, whose flag changed its name in 2.14.
            gradient_as_bucket_view=True,
            bucket_cap_mb=int(self.option(context.case, "bucket_cap_mb")),
            static_graph=self.option(context.case, "static_graph") == "on",
        )

    def synchronising(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        assert isinstance(wrapped, DistributedDataParallel)
        return nullcontext() if last else wrapped.no_sync()
