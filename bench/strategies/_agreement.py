"""Do all ranks run the same blocks, and give a gradient to the same parameters? Looked at in the first steps.

FSDP gathers and reduces block by block, and takes for granted that every rank does the same in the same
order. Ranks that do not (a sparse mixture of experts, layers skipped by what the data hold) wait for
one another for ever, abort, or silently add up gradients of different parameters. Here each rank tells
the others what it is about to do before it does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from bench.errors import RefusedError
from bench.strategies._graph import Edge, edge_of, edges_behind
from bench.strategies.base import Context
from bench.structure import tensors_of

LOOKS = 3
"""Steps that are looked at: the parity check has no more, and a timed launch has come to know all its batches."""
MOST_NAMED = 3
END = "the end of its forward"
NEEDS = "FSDP needs every rank to run the same blocks and to give the same parameters a gradient"


class Agreement:
    """Compares the first forwards of all ranks; RefusedError on every rank where two of them differ.

    Made before the model is wrapped, while parameters have their names and places, and attached after.
    """

    def __init__(self, model: nn.Module, context: Context) -> None:
        self._mesh, self._device = context.mesh, context.devices[0]
        self._left = LOOKS * context.case.accumulation_steps
        paths = {module: path.removeprefix("model.") for path, module in model.named_modules()}
        self._paths = {block: paths[block] for block in context.blocks}
        inside = {module for block in context.blocks for module in block.modules()}
        outside = [module for module in model.modules() if module not in inside]
        self._owned = {block: _weights(block.modules(), paths) for block in context.blocks}
        self._owned[model] = _weights(outside, paths)
        self._units: list[tuple[str, set[str]]] = []
        self._edges: dict[Edge, str] = {}
        self._handles: list[RemovableHandle] = []

    def attach(self, wrapped: nn.Module, blocks: Iterable[nn.Module], *, whole_blocks: bool) -> None:
        """Look at the next forwards of `wrapped`, whose wrapped blocks come in their order.

        whole_blocks: a block's gradients are reduced together, with zeros for parameters without one.
        """
        if self._mesh is None or self._mesh.size() == 1:
            return
        for module, owned in self._owned.items():
            if whole_blocks:
                self._units.append((self._paths.get(module, "everything outside the blocks"), set(owned)))
            else:
                self._units += [(name, {name}) for name in owned]
            # After the wrapper's own hooks, which make the parameters whole.
            self._handles.append(module.register_forward_pre_hook(self._note))
        for block, path in zip(blocks, self._paths.values(), strict=True):
            self._handles.append(block.register_forward_pre_hook(partial(self._announce, path), prepend=True))
        self._handles.append(wrapped.register_forward_hook(self._finish))

    def _announce(self, path: str, module: nn.Module, args: Any) -> None:
        self._compare(path, set())

    def _note(self, module: nn.Module, args: Any) -> None:
        """Remember where in the graph the gradient of each parameter of this block arrives."""
        for name, (owner, attribute) in self._owned[module].items():
            weight = getattr(owner, attribute)
            if weight.requires_grad and torch.is_grad_enabled():
                self._edges[edge_of(weight)] = name

    def _finish(self, module: nn.Module, args: Any, output: Any) -> None:
        self._compare(END, {self._edges[edge] for edge in edges_behind(tensors_of(output)) & self._edges.keys()})
        self._edges.clear()
        self._left -= 1
        if self._left == 0:
            for handle in self._handles:
                handle.remove()

    def _compare(self, event: str, reached: set[str]) -> None:
        """Tell all ranks what this one does next, and which units the backward pass will reach."""
        assert self._mesh is not None
        events = [END, *self._paths.values()]
        mine = [events.index(event), *(int(bool(names & reached)) for _, names in self._units)]
        sent = torch.tensor(mine, device=self._device)
        received = [torch.empty_like(sent) for _ in range(self._mesh.size())]
        dist.all_gather(received, sent, group=self._mesh.get_group())
        said = torch.stack(received).tolist()
        other = next((rank for rank, each in enumerate(said) if each != said[0]), None)
        if other is None:
            return
        if said[other][0] != said[0][0]:
            raise RefusedError(
                f"{NEEDS}: rank 0 comes to {events[said[0][0]]} where rank {other} comes to {events[said[other][0]]}; "
                "leave layers that not every batch runs out of the workload's blocks()"
            )
        raise RefusedError(self._one_sided(said[0][1:], said[other][1:], other))

    def _one_sided(self, first: Sequence[int], second: Sequence[int], rank: int) -> str:
        names = [name for (name, _), one, two in zip(self._units, first, second, strict=True) if one != two]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return (
            f"{NEEDS}: {', '.join(names[:MOST_NAMED])}{more} get a gradient on rank 0 or on rank {rank}, not on both "
            "(a sparse mixture of experts does that); use fsdp:reduce_unused_parameters=on, or ddp with "
            "find_unused_parameters=on"
        )


def _weights(modules: Iterable[nn.Module], paths: Mapping[nn.Module, str]) -> dict[str, tuple[nn.Module, str]]:
    """Where each trained parameter that these modules hold themselves is, by its name."""
    return {
        f"{paths[module]}.{key}".lstrip("."): (module, key)
        for module in modules
        for key, weight in module.named_parameters(recurse=False)
        if weight.requires_grad
    }
