"""The loss of a workload that does not bring one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.errors import UsageError
from bench.structure import tensors_of

IGNORED = -100
"""A label that does not count, as torch's cross-entropy has it."""
WRITE_ONE = "write the workload's loss(self, output, targets), which returns (loss_sum, weight)"


def mean_loss_of_each_sample(output: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """`(loss_sum, weight)`: each sample's mean loss, summed over the samples, and their number.

    Integer targets: cross-entropy of the output's logits, the classes in its last dimension or, where the shapes
    say so, in dimension 1; labels of -100 do not count. Floating targets: squared error. The output is a tensor,
    has `logits`, or holds a tensor first. UsageError where the shapes fit neither.
    """
    predicted = _predicted(output)
    if not isinstance(targets, Tensor):
        raise UsageError(f"the default loss takes a tensor of targets, not {type(targets).__name__}; {WRITE_ONE}")
    if targets.is_floating_point():
        if predicted.shape != targets.shape:
            raise _unfit(predicted, targets, "the squared error needs equal ones")
        losses = functional.mse_loss(predicted, targets, reduction="none").reshape(len(targets), -1).mean(dim=1)
    elif targets.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise UsageError(f"the default loss takes no targets of type {targets.dtype}; {WRITE_ONE}")
    else:
        losses = _cross_entropies(predicted, targets.long())
    return losses.sum(), losses.new_full((), len(losses))


def _predicted(output: Any) -> Tensor:
    logits = getattr(output, "logits", output)
    if isinstance(logits, Tensor):
        return logits
    found = tensors_of(output)
    if not found:
        raise UsageError(f"the default loss finds no tensor in an output of type {type(output).__name__}; {WRITE_ONE}")
    return found[0]


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over each sample's labels that count, shape (N,)."""
    if logits.dim() > 1 and logits.shape[:-1] == labels.shape:
        logits = logits.movedim(-1, 1)
    elif logits.dim() < 2 or (*logits.shape[:1], *logits.shape[2:]) != tuple(labels.shape):
        raise _unfit(logits, labels, "cross-entropy needs one more dimension in the output, that of the classes")
    losses = functional.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
    counted = (labels != IGNORED).reshape(len(labels), -1).sum(dim=1).clamp(min=1)
    return losses.reshape(len(labels), -1).sum(dim=1) / counted


def _unfit(output: Tensor, targets: Tensor, needs: str) -> UsageError:
    return UsageError(
        f"the output has the shape {tuple(output.shape)} and the targets {tuple(targets.shape)}: {needs}; {WRITE_ONE}"
    )
