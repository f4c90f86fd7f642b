"""Do all ranks run the same blocks, and give a gradient to the same parameters?

FSDP gathers and reduces block by block, and takes for granted that every rank does the same in the same
order. Ranks that do not (a sparse mixture of experts, layers skipped by what the data hold) wait for
one another for ever, abort, or silently add up gradients of different parameters. Here each rank tells
the others what it is about to do before it does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bench.errors import RefusedError
from bench.strategies._arrivals import Arrivals, FlatArrivals
from bench.strategies._graph import Edge, edge_of, edges_behind
from bench.strategies.base import Context, StepLoss
from bench.structure import tensors_of

MOST_NAMED = 3
END = "the end of its forward"
ROOT = "everything outside the blocks"
WRAPPER = "_fsdp_wrapped_module"
SAME_BLOCKS = "FSDP needs every rank to run the same blocks in the same order"
USE_DDP = "use ddp with find_unused_parameters=on"

Weights: TypeAlias = Mapping[str, tuple[nn.Module, str]]
"""Where each trained parameter of a unit is (module and attribute), by its name in the model."""


class Agreement:
    """Compares the next steps of all ranks; RefusedError on every rank where two of them differ.

    model: what was wrapped; called: the module that is called for each block. whole_blocks: a block's gradients
    are reduced together, with zeros for parameters without one. fsdp2: it reduces a block once the gradients of
    the block's inputs are there; FSDP1 does when those of its parameters are, and for that `requires_grad` must stay.
    """

    def __init__(
        self,
        model: nn.Module,
        context: Context,
        called: Mapping[nn.Module, nn.Module],
        *,
        whole_blocks: bool,
        fsdp2: bool,
    ) -> None:
        assert context.mesh is not None
        self._mesh, self._device = context.mesh, context.devices[0]
        self._whole_blocks, self._fsdp2 = whole_blocks, fsdp2
        names = {module: _plain(path) for path, module in model.named_modules()}
        paths = {block: names[block] for block in called}
        self._events = [*paths.values(), END, *map(_backward, [*paths.values(), ROOT, END])]
        inside = {module for block in called for module in block.modules()}
        parts = {block: list(block.modules()) for block in called}
        parts[model] = [module for module in model.modules() if module not in inside]
        owned = {unit: _weights(modules, names) for unit, modules in parts.items()}
        self._units = {
            unit: members
            for module, weights in owned.items()
            for unit, members in (
                [(paths.get(module, ROOT), set(weights))] if whole_blocks else [(name, {name}) for name in weights]
            )
        }
        self._arrivals = self._looking_at_arrivals()
        self._parameters = {
            paths.get(unit, ROOT): [weight for module in modules for weight in module.parameters(recurse=False)]
            for unit, modules in parts.items()
        }
        self._trained = {unit: _trained(parameters) for unit, parameters in self._parameters.items()}
        self._edges: dict[Edge, str] = {}
        self._reached: set[str] = set()
        self._left = context.looks
        self._handles: list[RemovableHandle] = []
        for block, outer in called.items():
            self._watch_block(paths[block], block, outer)
        for unit, weights in owned.items():
            if not _compiled(unit):
                note = partial(self._note, paths.get(unit, ROOT), weights)
                self._handles.append(unit.register_forward_pre_hook(note, with_kwargs=True))

    def __call__(self, step: StepLoss) -> None:
        """Compare the backward pass that is to come, after the last of the micro-batches that are accumulated."""
        if self._left == 0:
            self._stop()
            return
        self._meet(END)
        if not self._fsdp2:
            self._compare_trained()
        self._reached |= {self._edges[edge] for edge in edges_behind([step.loss_sum]) & self._edges.keys()}
        self._edges.clear()
        if self._arrivals is not None:
            self._arrivals.reduces = step.last
        if not step.last:
            return
        self._compare_gradients([bool(members & self._reached) for members in self._units.values()], [*self._units])
        self._reached.clear()
        if self._arrivals is not None:
            self._arrivals.watch_end(step.loss_sum)
        self._left -= 1

    def _watch_block(self, path: str, block: nn.Module, outer: nn.Module) -> None:
        """Announce a block before the wrapper's own hooks run; `_note` reads it after them, when it is whole."""
        if not _compiled(outer):
            announce, follow = (partial(each, path) for each in (self._announce, self._follow))
            self._handles.append(outer.register_forward_pre_hook(announce, prepend=True, with_kwargs=True))
            self._handles.append(block.register_forward_hook(follow, prepend=True))

    def _announce(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _transformed():
            if self._fsdp2:
                return  # numbers cannot be exchanged there either
            raise RefusedError(f"FSDP1 cannot gather {path} inside a transform of torch.func; use ddp")
        self._meet(path, needs_gradient=self._fsdp2 and bool(_inputs(args, kwargs)))

    def _follow(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        """Announce the block's backward pass: FSDP gathers the block again once a gradient of its output is there."""
        met = False

        def meet(gradient: Tensor | None) -> None:
            nonlocal met
            if not met and self._handles:
                met = True
                self._meet(_backward(path))

        if torch.is_grad_enabled() and not _transformed():
            for tensor in tensors_of(output):
                if tensor.requires_grad:
                    tensor.register_hook(meet)  # type: ignore[no-untyped-call]

    def _note(self, unit: str, weights: Weights, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Remember where in the graph the gradient of each parameter of this block arrives."""
        if not torch.is_grad_enabled():
            return
        found = {name: getattr(owner, attribute) for name, (owner, attribute) in weights.items()}
        edges = {name: edge for name, weight in found.items() if (edge := edge_of(weight)) is not None}
        self._edges |= {edge: name for name, edge in edges.items()}
        if self._arrivals is not None:
            self._arrivals.watch(unit, {name: found[name] for name in edges}, _inputs(args, kwargs))

    def _stop(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        if self._arrivals is not None:
            self._arrivals.remove()
            self._arrivals = None

    def _looking_at_arrivals(self) -> Arrivals | FlatArrivals | None:
        if not self._fsdp2:
            return FlatArrivals(self._compare_arrived, END)
        # Zeros are reduced for whole blocks: nothing more than the graph shows can differ.
        return None if self._whole_blocks else Arrivals(self._compare_arrived, END, self._units)

    def _meet(self, event: str, *, needs_gradient: bool = False) -> None:
        said = self._exchange([self._events.index(event), int(needs_gradient)])
        other = _different(said)
        if other is None:
            return
        if said[other][0] == said[0][0]:
            wants, does_not = (0, other) if said[0][1] else (other, 0)
            raise RefusedError(
                f"FSDP reduces blocks in the order in which gradients come back to them, which must be the same on "
                f"every rank: the input of {event} needs a gradient on rank {wants}, and none on rank {does_not}; "
                f"{USE_DDP}"
            )
        more = " and use fsdp:reduce_unused_parameters=on" if self._fsdp2 and not self._whole_blocks else ""
        raise RefusedError(
            f"{SAME_BLOCKS}: rank 0 comes to {self._events[said[0][0]]} where rank {other} comes to "
            f"{self._events[said[other][0]]}; leave layers that not every batch runs out of the workload's "
            f"blocks(){more}, or {USE_DDP}"
        )

    def _compare_trained(self) -> None:
        changed = [_trained(self._parameters[unit]) != trained for unit, trained in self._trained.items()]
        said = self._exchange([int(each) for each in changed])
        rank = next((rank for rank, each in enumerate(said) if any(each)), None)
        if rank is not None:
            names = [unit for unit, each in zip(self._trained, said[rank], strict=True) if each]
            raise RefusedError(
                f"FSDP1 needs parameters to keep the requires_grad that they were wrapped with: on rank {rank} the "
                f"forward changes that of {_listed(names)}; set it in build(), or use fsdp or ddp"
            )

    def _compare_arrived(self, unit: str, gets_one: Sequence[bool], names: Sequence[str]) -> None:
        self._meet(_backward(unit))
        self._compare_gradients(gets_one, names)

    def _compare_gradients(self, gets_one: Sequence[bool], names: Sequence[str]) -> None:
        said = self._exchange([int(each) for each in gets_one])
        other = _different(said)
        if other is None:
            return
        different = [name for name, one, two in zip(names, said[0], said[other], strict=True) if one != two]
        what = "blocks" if self._whole_blocks else "parameters"
        remedy = "" if self._whole_blocks else "fsdp:reduce_unused_parameters=on, or "
        raise RefusedError(
            f"FSDP needs every rank to give the same {what} a gradient: {_listed(different)} get one on rank 0 or on "
            f"rank {other}, not on both (a sparse mixture of experts does that); use {remedy}{USE_DDP[4:]}"
        )

    def _exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        """What each rank says here, in rank order; all say equally many numbers."""
        sent = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        received = [torch.empty_like(sent) for _ in range(self._mesh.size())]
        dist.all_gather(received, sent, group=self._mesh.get_group())
        found: list[list[int]] = torch.stack(received).tolist()
        return found


def _backward(unit: str) -> str:
    return "the end of its backward" if unit == END else f"the backward of {unit}"


def _different(said: Sequence[Sequence[int]]) -> int | None:
    """The first rank that says something else than rank 0."""
    return next((rank for rank, each in enumerate(said) if each != said[0]), None)


def _inputs(args: Any, kwargs: Any) -> list[Tensor]:
    """The inputs of a module that need a gradient."""
    return [tensor for tensor in tensors_of((args, kwargs)) if tensor.requires_grad] if torch.is_grad_enabled() else []


def _compiled(module: nn.Module) -> bool:
    """Whether `module.compile()` was called: its hooks are compiled with it, which these cannot be."""
    return getattr(module, "_compiled_call_impl", None) is not None


def _transformed() -> bool:
    """Whether this runs inside `torch.func.grad`, `vmap` and their like, as FSDP2 asks in torch 2.14."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and bool(active())


def _trained(parameters: Iterable[nn.Parameter]) -> bool:
    return any(parameter.requires_grad for parameter in parameters)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def _plain(path: str) -> str:
    """A module's path as the model itself names it."""
    return ".".join(part for part in path.split(".") if part != WRAPPER).removeprefix("model").lstrip(".")


def _weights(modules: Iterable[nn.Module], names: Mapping[nn.Module, str]) -> Weights:
    """The trained parameters that these modules hold themselves."""
    return {
        f"{names[module]}.{key}".lstrip("."): (module, key)
        for module in modules
        for key, weight in module.named_parameters(recurse=False)
        if weight.requires_grad
    }
