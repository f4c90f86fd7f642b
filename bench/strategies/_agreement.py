"""Do all ranks run the same blocks, and give a gradient to the same parameters?

FSDP gathers and reduces block by block, and takes for granted that every rank does the same in the same
order. Ranks that do not (a sparse mixture of experts, layers skipped by what the data hold) wait for
one another for ever, abort, or silently add up gradients of different parameters. Here each rank tells
the others what it is about to do before it does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from bench.errors import RefusedError
from bench.strategies._arrivals import Arrivals, FlatArrivals
from bench.strategies._compiling import call_first, eager
from bench.strategies._graph import edge_of
from bench.strategies.base import Context, StepLoss
from bench.structure import compiles_its_hooks, own_name, tensors_of

MOST_NAMED = 3
END = "the end of its forward"
GRADIENTS = "the gradients of"
ROOT = "everything outside the blocks"
SAME_BLOCKS = "FSDP needs every rank to run the same blocks in the same order"
SAME_ORDER = (
    "FSDP reduces blocks in the order in which they, or their inputs, get their gradients, which must be the same on "
    "every rank"
)
USE_DDP = "use ddp with find_unused_parameters=on"

Weights: TypeAlias = Mapping[str, tuple[nn.Module, str]]
"""Where each trained parameter of a unit is (module and attribute), by its name in the model."""


class Agreement:
    """Compares the next steps of all ranks; RefusedError on every rank where two of them differ.

    model: what was wrapped; called: the module that is called for each block. fsdp2: it reduces a block once the
    gradients of the block's inputs are there, and of it the parameters that have a gradient, or zeros for the rest
    (reduces_unused); FSDP1 reduces a block whole once it has its gradient, and for that `requires_grad` must stay.
    """

    def __init__(
        self,
        model: nn.Module,
        context: Context,
        called: Mapping[nn.Module, nn.Module],
        *,
        fsdp2: bool,
        reduces_unused: bool = False,
    ) -> None:
        assert context.mesh is not None
        self._mesh, self._device = context.mesh, context.devices[0]
        self._fsdp2, self._reduces_unused = fsdp2, reduces_unused
        names = {module: own_name(path) for path, module in model.named_modules()}
        units = {**{block: names[block] for block in called}, model: ROOT}
        paths = [*units.values()]
        self._events = [*paths, END, *map(_backward, paths), *map(_gradients, [*paths, END])]
        inside = {module for block in called for module in block.modules()}
        parts = {units[block]: list(block.modules()) for block in called}
        parts[ROOT] = [module for module in model.modules() if module not in inside]
        owned = {unit: _weights(modules, names) for unit, modules in parts.items()}
        self._arrivals: Arrivals | FlatArrivals = FlatArrivals(self._compare_gradients, END)
        if fsdp2:
            every = [name for weights in owned.values() for name in weights]
            self._arrivals = Arrivals(self._compare_gradients, END, every)
        # Now: while FSDP1 has a block gathered, its modules do not list them.
        self._parameters = {
            unit: [weight for module in modules for weight in module.parameters(recurse=False)]
            for unit, modules in parts.items()
        }
        self._trained = {unit: _trained(parameters) for unit, parameters in self._parameters.items()}
        self._follows: dict[str, bool] = {}
        self._in_backward: set[str] = set()
        self._reduces, self._left = True, context.looks
        self._looks, self._undo = True, ExitStack()
        for unit, path in units.items():
            self._watch(path, unit, called.get(unit), owned[path])

    def _watch(self, path: str, unit: nn.Module, outer: nn.Module | None, weights: Weights) -> None:
        """Announce a unit before the wrapper's own hooks run; `_note` reads it after them, when it is whole."""
        if outer is not None:
            announce = partial(self._announce, path)
            if compiles_its_hooks(outer):
                self._undo.callback(call_first(outer, announce))
            else:
                hook = outer.register_forward_pre_hook(announce, prepend=True, with_kwargs=True)
                self._undo.callback(hook.remove)
        if not compiles_its_hooks(unit):
            note, follow = partial(self._note, path, weights), partial(self._follow, path)
            self._undo.callback(unit.register_forward_pre_hook(note, with_kwargs=True).remove)
            self._undo.callback(unit.register_forward_hook(follow, prepend=True).remove)

    def __call__(self, step: StepLoss) -> None:
        """Compare the backward pass that is to come; it reduces after the last of the micro-batches that add up."""
        if self._left == 0:
            self._stop()
            return
        self._meet(END)
        if not self._fsdp2:
            self._compare_trained()
            self._compare_followed()
        self._in_backward.clear()
        self._reduces = step.reduces
        if step.reduces:
            self._arrivals.watch_end(step.loss_sum)
            self._left -= 1

    @eager
    def _announce(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _transformed():
            if self._fsdp2:
                return  # numbers cannot be exchanged there either
            raise RefusedError(f"FSDP1 cannot gather {path} inside a transform of torch.func; use ddp")
        if path not in self._in_backward:  # where a checkpoint runs it again, it is whole already
            self._meet(path)

    @eager
    def _note(self, path: str, weights: Weights, module: nn.Module, args: Any, kwargs: Any) -> None:
        """See to it that the unit's gradients are compared when they have arrived."""
        if torch.is_grad_enabled() and not _transformed() and path not in self._in_backward:
            found = {name: getattr(owner, attribute) for name, (owner, attribute) in weights.items()}
            inputs = [tensor for tensor in tensors_of((args, kwargs)) if tensor.requires_grad]
            self._arrivals.watch(
                path, {name: each for name, each in found.items() if edge_of(each) is not None}, inputs
            )

    @eager
    def _follow(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        """Announce the unit's backward pass: FSDP gathers it again once the first gradient of an output is there."""

        def meet(gradient: Tensor | None) -> None:
            if path in self._in_backward or not self._looks:
                return
            if not self._in_backward:
                Variable._execution_engine.queue_callback(self._in_backward.clear)
            self._in_backward.add(path)
            self._meet(_backward(path))

        if torch.is_grad_enabled() and not _transformed() and path not in self._in_backward:
            outputs = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
            self._follows[path] = bool(outputs)
            for tensor in outputs:
                tensor.register_hook(meet)  # type: ignore[no-untyped-call]

    def _stop(self) -> None:
        self._looks = False
        self._undo.close()
        self._arrivals.remove()

    def _meet(self, event: str) -> None:
        said = self._exchange([self._events.index(event)])
        other = _different(said)
        if other is None:
            return
        one, two = (self._events[said[rank][0]] for rank in (0, other))
        where = f"rank 0 comes to {one} where rank {other} comes to {two}"
        if one.startswith(GRADIENTS) or two.startswith(GRADIENTS):
            raise RefusedError(f"{SAME_ORDER}: {where}; {USE_DDP}")
        more = " and use fsdp:reduce_unused_parameters=on" if self._fsdp2 and not self._reduces_unused else ""
        raise RefusedError(
            f"{SAME_BLOCKS}: {where}; leave layers that not every batch runs out of the workload's blocks(){more}, or "
            f"{USE_DDP}"
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

    def _compare_followed(self) -> None:
        """FSDP1 gathers ahead, in a backward pass, the block before; only if an output of that needs a gradient."""
        said = self._exchange([int(self._follows.get(unit, False)) for unit in self._parameters])
        self._follows.clear()
        other = _different(said)
        if other is not None:
            raise RefusedError(
                "FSDP1 needs every rank to give the same blocks an output that needs a gradient: "
                f"{_listed(_parting(self._parameters, said[0], said[other]))} on rank 0 or on rank {other}, not on "
                f"both; {USE_DDP}"
            )

    def _compare_gradients(self, unit: str, gets_one: Sequence[bool], names: Sequence[str]) -> None:
        """Before a unit is reduced, or what is left at the end: do all ranks give the same a gradient?"""
        self._in_backward.discard(unit)
        if not self._reduces:
            return
        self._meet(_gradients(unit))
        if self._reduces_unused or not names:
            return
        said = self._exchange([int(each) for each in gets_one])
        other = _different(said)
        if other is None:
            return
        different = _parting(names, said[0], said[other])
        what, remedy = ("parameters", "fsdp:reduce_unused_parameters=on, or ") if self._fsdp2 else ("blocks", "")
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
    return f"the backward of {unit}"


def _gradients(unit: str) -> str:
    return "the end of its backward" if unit == END else f"{GRADIENTS} {unit}"


def _parting(names: Iterable[str], said: Sequence[int], by_another: Sequence[int]) -> list[str]:
    return [name for name, one, two in zip(names, said, by_another, strict=True) if one != two]


def _different(said: Sequence[Sequence[int]]) -> int | None:
    """The first rank that says something else than rank 0."""
    return next((rank for rank, each in enumerate(said) if each != said[0]), None)


def _transformed() -> bool:
    """Whether this runs inside `torch.func.grad`, `vmap` and their like, as FSDP2 asks in torch 2.14."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and bool(active())


def _trained(parameters: Iterable[nn.Parameter]) -> bool:
    return any(parameter.requires_grad for parameter in parameters)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def _weights(modules: Iterable[nn.Module], names: Mapping[nn.Module, str]) -> Weights:
    """The trained parameters that these modules hold themselves."""
    return {
        f"{names[module]}.{key}".lstrip("."): (module, key)
        for module in modules
        for key, weight in module.named_parameters(recurse=False)
        if weight.requires_grad
    }
