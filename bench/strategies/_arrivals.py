"""Which parameters have a gradient when FSDP is about to reduce them.

The graph that is known before a backward pass does not hold what is inside a reentrant checkpoint: that
part is made while the backward pass runs. Nor does it tell where a function's own backward gives no
gradient. So the gradients themselves are looked at as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from bench.strategies._graph import edges_behind

Compare: TypeAlias = Callable[[str, Sequence[bool], Sequence[str]], None]
"""Takes the unit that is to be reduced, whether each parameter has a gradient, and their names.

It raises where the ranks differ."""

REDUCES = "RegisterPostBackwardFunctionBackward"
"""The node in the graph at which FSDP2 reduces a block, between the block and what its inputs came from."""


class Arrivals:
    """Calls `compare` for the parameters of one unit after the other, just before FSDP2 reduces them.

    end: stands for a unit at the end of the backward pass; names: all parameters.
    """

    def __init__(self, compare: Compare, end: str, names: Iterable[str]) -> None:
        self._compare_names, self._end, self._all = compare, end, [*names]
        self._arrived: set[str] = set()
        self._handles: dict[str, RemovableHandle] = {}

    def watch(self, unit: str, weights: Mapping[str, Tensor], inputs: Iterable[Tensor]) -> None:
        """In a unit's forward, with the inputs that need a gradient, as FSDP2 hands them on."""
        for name, weight in weights.items():
            if name not in self._handles and weight.is_leaf:
                hook = partial(self._arrive, name)
                self._handles[name] = weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        # A hook on the inputs themselves is not called where a function's own backward gives them no gradient.
        for node in {tensor.grad_fn for tensor in inputs}:
            if type(node).__name__ == REDUCES:
                node.register_prehook(lambda gradients: self._compare(unit, weights))  # type: ignore[union-attr]

    def watch_end(self, loss: Tensor) -> None:
        """Before the backward pass: compare at its end too, where FSDP2 reduces what is left, in a later callback."""

        def at_end() -> None:
            self._compare(self._end, self._all)
            self._arrived.clear()

        _call_at_end(loss, at_end)

    def remove(self) -> None:
        """Look no more."""
        for handle in self._handles.values():
            handle.remove()

    def _arrive(self, name: str, weight: Any) -> None:
        if weight.grad is not None:  # a function's own backward may give none
            self._arrived.add(name)

    def _compare(self, unit: str, names: Iterable[str]) -> None:
        ordered = list(names)
        self._compare_names(unit, [name in self._arrived for name in ordered], ordered)


class FlatArrivals:
    """Calls `compare` for one block of FSDP1 after the other, just before it is reduced.

    All gradients of a block come together in its flat parameter. FSDP1 reduces where autograd has come to the
    node that keeps them, unless there is none (`_post_backward_hook` in torch 2.14).
    """

    def __init__(self, compare: Compare, end: str) -> None:
        self._compare, self._end = compare, end
        self._handles: dict[Node, RemovableHandle] = {}

    def watch(self, unit: str, weights: Mapping[str, Tensor], inputs: Iterable[Tensor]) -> None:
        """In a block's forward, with its whole parameters, which are views of the flat one."""
        for node, _ in edges_behind(weights.values()):
            if hasattr(node, "variable") and node not in self._handles:
                self._handles[node] = node.register_prehook(partial(self._before, unit, node))

    def watch_end(self, loss: Tensor) -> None:
        """Before the backward pass: compare at its end too, where a rank may come while others are at a block."""

        def at_end() -> None:
            self.remove()  # the next step has other nodes
            self._compare(self._end, [], [])

        _call_at_end(loss, at_end)

    def remove(self) -> None:
        """Look no more."""
        while self._handles:
            self._handles.popitem()[1].remove()

    def _before(self, unit: str, node: Any, gradients: Sequence[Tensor | None]) -> None:
        self._compare(unit, [gradients[0] is not None or node.variable.grad is not None], [unit])


def _call_at_end(loss: Tensor, call: Callable[[], None]) -> None:
    """Once the backward pass of this loss is through, before what FSDP has queued for then."""
    if loss.requires_grad:
        queue = Variable._execution_engine.queue_callback
        loss.register_hook(lambda gradient: queue(call))  # type: ignore[no-untyped-call]
