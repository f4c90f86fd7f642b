"""DistributedDataParallel: one process a device, bucketed all-reduce during backward."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bench.errors import text_of
from bench.schema import Case
from bench.strategies.base import Context, Option, Strategy, register
from bench.structure import own_name

POWERSGD_START = 2
POWERSGD_NEEDS_NCCL = (
    "its collectives are called as earlier ones end, in an order that gloo lets differ from rank to rank: with more "
    "than one bucket they do not match (torch 2.14); it needs NCCL, with a GPU for each rank"
)
HOOKS = ("fp16", "bf16", "powersgd")

BUCKET_CAP_MB = Option(
    name="bucket_cap_mb", default="25", meaning="size of a gradient bucket in MiB; by default the first is of 1"
)
STATIC_GRAPH = Option(
    name="static_graph", default="off", values=("off", "on"), meaning="promise that the graph never changes"
)
FIND_UNUSED = Option(
    name="find_unused_parameters",
    default="off",
    values=("off", "on"),
    meaning="look in each step which parameters the loss does not reach; costs time",
)
BUCKET_VIEW = Option(
    name="gradient_as_bucket_view",
    default="on",
    values=("on", "off"),
    meaning="gradients are views of the buckets, which saves a copy and as much memory as the gradients take",
)
COMM_HOOK = Option(
    name="comm_hook",
    default="none",
    values=("none", *HOOKS),
    lossy=frozenset(HOOKS),
    meaning="compress gradients for the all-reduce: halves of 16 bits, or PowerSGD's low-rank factors (of rank 1, "
    "from the third step on; Vogels et al., 2019)",
)

MOST_NAMED = 4

# What torch's reducer says, and what that means for the model; the same words from torch 2.9 on.
REDUCER_WORDS = {
    "your module has parameters that were not used in producing loss": (
        "some parameters get no gradient{mode} ({which}), and DDP waits for them; use "
        "ddp:find_unused_parameters=on, or leave them out of the model"
    ),
    "this is not compatible with static_graph set to True": (
        "the parameters that get a gradient change from step to step, which a static graph must not; use "
        "static_graph=off, with find_unused_parameters=on"
    ),
    "Expected to mark a variable ready only once": (
        "a parameter gets its gradient more than once in a backward pass (reentrant checkpointing, or several "
        "forwards), which DDP takes only in a static graph; use ddp:static_graph=on"
    ),
}


@register
class DDP(Strategy):
    name = "ddp"
    summary = "torch.nn.parallel.DistributedDataParallel"
    hooks_see_averages = False
    options = (BUCKET_CAP_MB, STATIC_GRAPH, FIND_UNUSED, BUCKET_VIEW, COMM_HOOK)

    def __init__(self) -> None:
        self._trained: list[str] = []
        """What the model wrapped last trains, in the reducer's order: its forward may change `requires_grad`."""

    def unsupported(self, case: Case) -> str | None:
        skips = case.accumulation_steps > 1 and case.setting("accumulation_sync") != "every"
        if self.option(case, "static_graph") == "on" and skips:
            return (
                "DDP cannot skip synchronisation (no_sync) in a static graph; use static_graph=off, "
                "accumulation_sync=every, or 1 step"
            )
        if self.option(case, COMM_HOOK.name) == "powersgd" and (case.device_type == "cpu" or case.oversubscribed):
            return f"{COMM_HOOK.name}=powersgd: {POWERSGD_NEEDS_NCCL}"
        return super().unsupported(case)

    def follows_output(self, case: Case) -> bool:
        return "on" in (self.option(case, STATIC_GRAPH.name), self.option(case, FIND_UNUSED.name))

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        device = context.devices[0]
        self._trained = [own_name(name) for name, p in model.named_parameters() if p.requires_grad]
        cap = context.case.setting(BUCKET_CAP_MB.name)
        wrapped = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            # Buffers are broadcast before each forward: the default, whose flag changed its name in 2.14.
            gradient_as_bucket_view=self.option(context.case, BUCKET_VIEW.name) == "on",
            # Given as a number, even as 25, it would turn off torch's smaller first bucket, where the overlap begins.
            bucket_cap_mb=None if cap is None else int(cap),
            static_graph=self.option(context.case, "static_graph") == "on",
            find_unused_parameters=self.option(context.case, FIND_UNUSED.name) == "on",
        )
        _register_hook(wrapped, self.option(context.case, COMM_HOOK.name))
        return wrapped

    def refusal(self, error: Exception, wrapped: nn.Module | None) -> str | None:
        text = text_of(error)
        for words, meaning in REDUCER_WORDS.items():
            if isinstance(error, RuntimeError) and words in text:
                evaluated = isinstance(wrapped, DistributedDataParallel) and not wrapped.module.training
                mode = " in evaluation mode, in which parity is checked" if evaluated else ""
                return meaning.format(mode=mode, which=_named_in(text, self._trained))
        return super().refusal(error, wrapped)

    def synchronising(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        assert isinstance(wrapped, DistributedDataParallel)
        return nullcontext() if last else wrapped.no_sync()


def _register_hook(wrapped: DistributedDataParallel, name: str) -> None:
    """PowerSGD begins at the third step, the earliest that its error feedback allows, so that it is what is timed."""
    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=POWERSGD_START
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif name != "none":
        compress = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[name]
        wrapped.register_comm_hook(None, compress)


def _named_in(text: str, trained: Sequence[str]) -> str:
    """The parameters that the reducer names by their numbers."""
    found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", text)
    if found is None:
        return "the loss does not reach them"
    names = [trained[int(number)] for number in found[1].split()]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
