"""DataParallel over host memory, for machines without a GPU.

torch's DataParallel does nothing on a CPU, so this class goes through the same four phases:
scatter, replicate, parallel apply (one thread a replica), gather. It exists for correctness,
not for speed. A replica looks to the model as torch's do: its parameters are plain attributes
and `parameters()` is empty, so that what breaks under DataParallel on CUDA breaks here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bench.structure import samples_in, split_structure, tensors_of, with_tensors

T = TypeVar("T")


def _concurrently(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run every task in a thread of its own; the first exception is raised after all have ended."""
    with ThreadPoolExecutor(max_workers=len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


class Replica:
    """A copy of a module that trains on its own copies of the parameters.

    `own_buffers` keeps the original's buffers, so that in-place updates (BatchNorm) last.
    """

    def __init__(self, module: nn.Module, own_buffers: bool) -> None:
        leaves = {weight: weight.detach().requires_grad_(weight.requires_grad) for weight in module.parameters()}
        self.leaves: list[Tensor] = list(leaves.values())
        # What torch broadcasts are no leaves either: their requires_grad cannot be changed.
        copies = {parameter: leaf.clone() for parameter, leaf in leaves.items()}
        self._outputs: list[Tensor] = []
        clones = {child: _empty_clone(child) for child in module.modules()}
        for original, clone in clones.items():
            for key, child in original._modules.items():
                clone._modules[key] = None if child is None else clones[child]
            for key, parameter in original._parameters.items():
                if parameter is None:
                    clone._parameters[key] = None
                else:
                    setattr(clone, key, copies[parameter])
                    clone._former_parameters[key] = copies[parameter]
            if not own_buffers:
                for key, buffer in original._buffers.items():
                    clone._buffers[key] = None if buffer is None else buffer.detach().clone()
        self.module = clones[module]

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool) -> Any:
        """The module's output; gradient mode belongs to a thread, so it is set here."""
        with torch.set_grad_enabled(grad):
            output = self.module(*args, **kwargs)
        self._outputs = tensors_of(output)
        return output

    def backward(self, gradients: Sequence[Tensor | None]) -> None:
        """Fill `grad` of the leaves from the gradients of the outputs."""
        pairs = [
            (output, gradient)
            for output, gradient in zip(self._outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        self._outputs = []


def _empty_clone(module: nn.Module) -> Any:
    clone = module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    clone._former_parameters = {}
    return clone


def _rows(tensor: Tensor) -> Tensor:
    """Scalars become one row, as torch's gather does."""
    return tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()


class _Join(torch.autograd.Function):
    """Gathers the replicas' outputs; its backward runs every replica's backward in a thread."""

    @staticmethod
    def forward(
        ctx: Any, replicas: list[Replica], columns: list[list[Tensor]], *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.replicas = replicas
        ctx.shapes = [[tensor.shape for tensor in column] for column in columns]
        joined = [torch.cat([_rows(tensor) for tensor in column]) for column in columns]
        ctx.mark_non_differentiable(
            *(
                tensor
                for tensor, column in zip(joined, columns, strict=True)
                if not any(part.requires_grad for part in column)
            )
        )
        return tuple(joined)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        replicas: list[Replica] = ctx.replicas
        pieces: list[list[Tensor | None]] = [[] for _ in replicas]
        for gradient, shapes in zip(gradients, ctx.shapes, strict=True):
            parts = (
                [None] * len(replicas)
                if gradient is None
                else torch.split(gradient, [_length(shape) for shape in shapes])
            )
            for collected, part, shape in zip(pieces, parts, shapes, strict=True):
                collected.append(None if part is None else part.reshape(shape))
        _concurrently(
            [lambda r=replica, g=own: r.backward(g) for replica, own in zip(replicas, pieces, strict=True)]  # type: ignore[misc]
        )
        return (None, None, *(_total(leaves) for leaves in zip(*(replica.leaves for replica in replicas), strict=True)))


def check_gatherable(output: Any) -> None:
    """TypeError for an output that torch's gather cannot join: it takes tensors and None in tuples, lists and dicts.

    It joins the parts of packed sequences to one that makes no sense.
    """
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (tuple, list)) and not isinstance(output, PackedSequence):
        for item in output:
            check_gatherable(item)
    elif output is not None and not isinstance(output, Tensor):
        raise TypeError(
            f"DataParallel cannot gather an output of type {type(output).__name__}; return tensors in tuples, "
            "lists or dicts, or compute the loss inside the replicas (loss_on=replica)"
        )


def _length(shape: torch.Size) -> int:
    return shape[0] if len(shape) else 1


def _total(leaves: tuple[Tensor, ...]) -> Tensor | None:
    """Sum of the replicas' gradients of one parameter, None when no replica has one."""
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return torch.stack(gradients).sum(dim=0) if gradients else None


class HostDataParallel(nn.Module):
    """Replicas of `module` in one process on the CPU, one thread each.

    split(batch_size) returns the samples of each replica; those with 0 take no part in the step.
    The output is what torch's gather gives: chunks joined along dimension 0, scalars as a vector.
    """

    def __init__(self, module: nn.Module, split: Callable[[int], Sequence[int]]) -> None:
        super().__init__()
        self.module = module
        self._split = split

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        sizes = [size for size in self._split(samples_in((args, kwargs))) if size]
        if not sizes:
            return self.module(*args, **kwargs)
        # Copies, as scatter makes them: a model may write to its input.
        inputs = split_structure(
            (args, kwargs), sizes, lambda tensor: [chunk.clone() for chunk in torch.split(tensor, sizes)]
        )
        replicas = [Replica(self.module, own_buffers=index == 0) for index in range(len(sizes))]
        grad = torch.is_grad_enabled()
        outputs = _concurrently(
            [lambda r=replica, i=own: r.forward(*i, grad) for replica, own in zip(replicas, inputs, strict=True)]  # type: ignore[misc]
        )
        for output in outputs:
            check_gatherable(output)
        tensors = [tensors_of(output) for output in outputs]
        if len({len(found) for found in tensors}) > 1:
            counts = ", ".join(str(len(found)) for found in tensors)
            raise TypeError(
                f"DataParallel cannot gather outputs of different lengths: the replicas gave {counts} tensors"
            )
        columns = [list(column) for column in zip(*tensors, strict=True)]
        if grad:
            joined = _Join.apply(replicas, columns, *self.module.parameters())
        else:
            joined = [torch.cat([_rows(tensor) for tensor in column]) for column in columns]
        return with_tensors(outputs[0], joined)
