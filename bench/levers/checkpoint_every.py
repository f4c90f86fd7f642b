"""Activation checkpointing: forget what a block computed, and compute it again in the backward pass.

Every n-th block is wrapped by torch's own `checkpoint_wrapper` (non-reentrant), as torchtitan's selective
checkpointing by layers does it (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
"""

from __future__ import annotations

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    apply_activation_checkpointing,
)
from torch.utils.checkpoint import CheckpointError

from bench.errors import RefusedError, in_short
from bench.levers.base import Blocks, Lever, refuse_uncalled, register
from bench.schema import Case


@register
class CheckpointEvery(Lever):
    name = "checkpoint_every"
    meaning = "0: off; n: recompute the activations of every n-th of the workload's blocks, from the first"
    changes = "activation memory, for up to a third more arithmetic (n=1)"
    default = "0"
    least = 0
    needs = "a workload that names blocks"
    order = 1

    def prepare_model(self, case: Case, model: nn.Module, blocks: Blocks) -> Blocks:
        paths = {module: path for path, module in model.named_modules()}
        # Blocks come with the inner ones first, and here in the order of the model.
        ordered = sorted(blocks, key=list(paths).index)
        if not ordered:
            raise RefusedError(
                f"{self.name}={self.of(case)} wraps the workload's blocks, and it names none; name them in blocks()"
            )
        chosen = set(ordered[:: int(self.of(case))])
        refuse_uncalled(self.name, chosen)
        apply_activation_checkpointing(model, check_fn=lambda module: module in chosen)
        wrapped = {
            module._checkpoint_wrapped_module: module
            for module in model.modules()
            if isinstance(module, CheckpointWrapper)
        }
        for module in [module for module in model.modules() if not isinstance(module, CheckpointWrapper)]:
            for name, child in module._modules.items():
                if child in wrapped:  # a block that is used again: torch wraps its first place alone
                    module._modules[name] = wrapped[child]
        return tuple(wrapped.get(block, block) for block in blocks)

    def refusal(self, case: Case, error: Exception) -> str | None:
        if isinstance(error, CheckpointError):
            return (
                f"{self.name}={self.of(case)}: a block computes something else when it is computed again, as where it "
                f"draws numbers that are not torch's ({in_short(error)})"
            )
        return None
