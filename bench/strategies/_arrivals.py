"""Which parameters have a gradient when FSDP2 is about to reduce them.

The graph that is known before a backward pass does not hold what is inside a reentrant checkpoint: that
part is made while the backward pass runs. So the gradients themselves are looked at as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

Compare: TypeAlias = Callable[[Sequence[bool], Sequence[str]], None]
"""Takes whether each parameter has a gradient, and their names; it raises where the ranks differ."""

REDUCES = "RegisterPostBackwardFunctionBackward"
"""The node in the graph at which FSDP2 reduces a block, between the block and what its inputs came from."""


class Arrivals:
    """Calls `compare` for the parameters of one unit after the other, just before FSDP2 reduces them.

    reduces: the backward pass to come is the last of the micro-batches that are accumulated.
    """

    def __init__(self, compare: Compare) -> None:
        self._compare_names = compare
        self.reduces = True
        self._arrived: set[str] = set()
        self._handles: dict[str, RemovableHandle] = {}

    def watch(self, weights: Mapping[str, Tensor], inputs: Iterable[Tensor]) -> None:
        """In a unit's forward, with the inputs that need a gradient, as FSDP2 hands them on."""
        for name, weight in weights.items():
            if name not in self._handles and weight.is_leaf:
                hook = partial(self._arrive, name)
                self._handles[name] = weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        # A hook on the inputs themselves is not called where a function's own backward gives them no gradient.
        for node in {tensor.grad_fn for tensor in inputs}:
            if type(node).__name__ == REDUCES:
                node.register_prehook(lambda gradients: self._compare(weights))  # type: ignore[union-attr]

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
