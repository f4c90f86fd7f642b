"""What the backward pass of a step will come through, known before it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from torch import Tensor
from torch.autograd.graph import Node

Edge: TypeAlias = tuple[Node, int]


def edge_of(tensor: Tensor) -> Edge | None:
    """Where the gradient of a tensor arrives; None where none will, as under `torch.func.grad`."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn, tensor.output_nr
    seen = tensor.view_as(tensor).grad_fn  # a leaf is known by what reads it
    node = None if seen is None else seen.next_functions[0][0]
    return None if node is None else (node, 0)


def edges_behind(outputs: Iterable[Tensor]) -> set[Edge]:
    """Every edge that gradients of `outputs` come through, their own among them."""
    waiting = [edge for edge in map(edge_of, outputs) if edge is not None]
    seen = set(waiting)
    while waiting:
        node, _ = waiting.pop()
        for following, number in node.next_functions:
            if following is not None and (following, number) not in seen:
                seen.add((following, number))
                waiting.append((following, number))
    return seen
