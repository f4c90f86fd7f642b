"""Which parameters have a gradient when FSDP2 is about to reduce them.

The graph that is known before a backward pass does not hold what is inside a reentrant checkpoint: that
part is made while the backward pass runs. So the gradients themselves are looked at as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor
from torch.autograd import Function, Variable
from torch.utils.hooks import RemovableHandle

from bench.structure import map_tensors, tensors_of

Compare: TypeAlias = Callable[[Sequence[bool], Sequence[str]], None]
"""Takes whether each parameter has a gradient, and their names; it raises where the ranks differ."""


class Arrivals:
    """Calls `compare` for the parameters of one unit after the other, just before FSDP2 reduces them.

    reduces: the backward pass to come is the last of the micro-batches that are accumulated.
    """

    def __init__(self, compare: Compare) -> None:
        self._compare_names = compare
        self.reduces = True
        self._arrived: set[str] = set()
        self._handles: dict[str, RemovableHandle] = {}

    def watch(self, weights: Mapping[str, Tensor], inputs: Any) -> Any:
        """In a unit's forward: the inputs that it takes. FSDP2 reduces once a backward pass has left them."""
        for name, weight in weights.items():
            if name not in self._handles and weight.is_leaf:
                hook = partial(self._arrive, name)
                self._handles[name] = weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        needing = [tensor for tensor in tensors_of(inputs) if tensor.requires_grad]
        if not needing:
            return inputs
        left = dict(zip(needing, _Leaving.apply(lambda: self._compare(weights), *needing), strict=True))
        return map_tensors(lambda tensor: left.get(tensor, tensor), inputs)

    def watch_end(self, loss: Tensor, names: Iterable[str]) -> None:
        """Before the backward pass: compare at its end too, where FSDP2 reduces what is left, in a later callback."""

        def at_end() -> None:
            self._compare(names)
            self._arrived.clear()

        if loss.requires_grad:
            queue = Variable._execution_engine.queue_callback
            loss.register_hook(lambda gradient: queue(at_end))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Look no more."""
        for handle in self._handles.values():
            handle.remove()

    def _arrive(self, name: str, weight: Any) -> None:
        if weight.grad is not None:  # a function's own backward may give none
            self._arrived.add(name)

    def _compare(self, names: Iterable[str]) -> None:
        if self.reduces:
            ordered = list(names)
            self._compare_names([name in self._arrived for name in ordered], ordered)


class _Leaving(Function):
    """Hands its tensors on, and calls `leave` once the backward pass comes by, whether or not a gradient comes along.

    FSDP2 puts the same in front of a block, see `RegisterPostBackwardFunction`; a hook on a tensor is not called then.
    """

    @staticmethod
    def forward(ctx: Any, leave: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.leave = leave
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.leave()
        return (None, *gradients)
