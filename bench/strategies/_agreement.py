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
from bench.strategies.base import Context, StepLoss

LOOKS = 3
"""Steps that are looked at: the parity check has no more, and a timed launch has come to know all its batches."""
MOST_NAMED = 3
END = "the end of its forward"
ROOT = "everything outside the blocks"
WRAPPER = "_fsdp_wrapped_module"
SAME_BLOCKS = "FSDP needs every rank to run the same blocks in the same order"
SAME_GRADIENTS = "FSDP needs every rank to give the same {what} a gradient"


class Agreement:
    """Compares the first steps of all ranks; RefusedError on every rank where two of them differ.

    model: what was wrapped; called: the module that is called for each block; whole_blocks: a block's gradients
    are reduced together, with zeros for parameters without one.
    """

    def __init__(
        self, model: nn.Module, context: Context, called: Mapping[nn.Module, nn.Module], *, whole_blocks: bool
    ) -> None:
        assert context.mesh is not None
        self._mesh, self._device, self._whole_blocks = context.mesh, context.devices[0], whole_blocks
        names = {module: _plain(path) for path, module in model.named_modules()}
        paths = {block: names[block] for block in called}
        self._events = [END, *paths.values()]
        inside = {module for block in called for module in block.modules()}
        owned = {block: _weights(block.modules(), names) for block in called}
        owned[model] = _weights((module for module in model.modules() if module not in inside), names)
        self._units = {
            unit: members
            for module, weights in owned.items()
            for unit, members in (
                [(paths.get(module, ROOT), set(weights))] if whole_blocks else [(name, {name}) for name in weights]
            )
        }
        self._edges: dict[Edge, str] = {}
        self._reached: set[str] = set()
        self._left = LOOKS
        # A block is announced before the wrapper's own hooks, and read after them, when its parameters are whole.
        self._handles: list[RemovableHandle] = [
            *(
                outer.register_forward_pre_hook(self._announce(paths[block]), prepend=True)
                for block, outer in called.items()
            ),
            *(module.register_forward_pre_hook(partial(self._note, weights)) for module, weights in owned.items()),
        ]

    def __call__(self, step: StepLoss) -> None:
        """Compare the backward pass that is to come, after the last of the micro-batches that are accumulated."""
        if self._left == 0:
            return
        self._compare_events(END)
        self._reached |= {self._edges[edge] for edge in edges_behind([step.loss_sum]) & self._edges.keys()}
        self._edges.clear()
        if not step.last:
            return
        self._compare_gradients()
        self._reached.clear()
        self._left -= 1
        if self._left == 0:
            for handle in self._handles:
                handle.remove()

    def _announce(self, path: str) -> Any:
        return lambda module, args: self._compare_events(path)

    def _note(self, weights: Mapping[str, tuple[nn.Module, str]], module: nn.Module, args: Any) -> None:
        """Remember where in the graph the gradient of each parameter of this block arrives."""
        if not torch.is_grad_enabled():
            return
        for name, (owner, attribute) in weights.items():
            edge = edge_of(getattr(owner, attribute))
            if edge is not None:
                self._edges[edge] = name

    def _compare_events(self, event: str) -> None:
        said = self._exchange([self._events.index(event)])
        other = _different(said)
        if other is not None:
            raise RefusedError(
                f"{SAME_BLOCKS}: rank 0 comes to {self._events[said[0][0]]} where rank {other} comes to "
                f"{self._events[said[other][0]]}; leave layers that not every batch runs out of the workload's "
                "blocks(), or use ddp with find_unused_parameters=on"
            )

    def _compare_gradients(self) -> None:
        said = self._exchange([int(bool(members & self._reached)) for members in self._units.values()])
        other = _different(said)
        if other is None:
            return
        names = [name for name, one, two in zip(self._units, said[0], said[other], strict=True) if one != two]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        what = "blocks" if self._whole_blocks else "parameters"
        remedy = "" if self._whole_blocks else "fsdp:reduce_unused_parameters=on, or "
        raise RefusedError(
            f"{SAME_GRADIENTS.format(what=what)}: {', '.join(names[:MOST_NAMED])}{more} get one on rank 0 or on rank "
            f"{other}, not on both (a sparse mixture of experts does that); use {remedy}ddp with "
            "find_unused_parameters=on"
        )

    def _exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        """What each rank says here, in rank order; all say equally many numbers."""
        sent = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        received = [torch.empty_like(sent) for _ in range(self._mesh.size())]
        dist.all_gather(received, sent, group=self._mesh.get_group())
        found: list[list[int]] = torch.stack(received).tolist()
        return found


def _different(said: Sequence[Sequence[int]]) -> int | None:
    """The first rank that says something else than rank 0."""
    return next((rank for rank, each in enumerate(said) if each != said[0]), None)


def _plain(path: str) -> str:
    """A module's path as the model itself names it."""
    return ".".join(part for part in path.split(".") if part != WRAPPER).removeprefix("model").lstrip(".")


def _weights(modules: Iterable[nn.Module], names: Mapping[nn.Module, str]) -> dict[str, tuple[nn.Module, str]]:
    """Where each trained parameter that these modules hold themselves is, by its name."""
    return {
        f"{names[module]}.{key}".lstrip("."): (module, key)
        for module in modules
        for key, weight in module.named_parameters(recurse=False)
        if weight.requires_grad
    }
