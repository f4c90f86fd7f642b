"""What the backward pass of a step will come through, known before it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

Edge: TypeAlias = tuple[Node, int]


def edge_of(tensor: Tensor) -> Edge:
    """Where the gradient of a tensor arrives; it must require one."""
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def edges_behind(outputs: Iterable[Tensor]) -> set[Edge]:
    """Every edge that gradients of `outputs` come through, their own among them."""
    waiting = [edge_of(tensor) for tensor in outputs if tensor.requires_grad]
    seen = set(waiting)
    while waiting:
        node, _ = waiting.pop()
        for following, number in node.next_functions:
            if following is not None and (following, number) not in seen:
                seen.add((following, number))
                waiting.append((following, number))
    return seen
