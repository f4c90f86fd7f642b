"""How a model's forward uses its own weights and inputs: in a way that replicas and shards do not allow?

Each search looks for a cause: it brings the model, whole on one device, into what the strategy makes of it, and
finds something only where the loss, or a gradient, is another one then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn

from bench.measuring.building import seed_all
from bench.measuring.control import of_machine
from bench.strategies import Strategy
from bench.structure import is_compiled, map_tensors

READS_PARAMETERS = (
    "the forward reads the model's own parameters() (as requires_grad_() of a module does too), which are not whole "
    "under this strategy: a replica of DataParallel has none, and FSDP holds shards; read weights by their names, "
    "where their own module runs"
)
READS_OUTSIDE = (
    "the forward reads {name} while its block does not run, when it is a shard; read it inside the block, or leave "
    "that out of the workload's blocks()"
)
KEEPS = (
    "the forward reads {name} from a place of its own (a list, a dictionary, a function), where it stays as it was "
    "when replicas or shards take the weights' places; read it by its name"
)
REPLACES = (
    "the forward puts other tensors in the place of parameters (torch.func.functional_call does), which this strategy "
    "does not see; use fsdp or ddp"
)
WRITES_CONTAINERS = (
    "a block writes to a list, a dictionary or another container that it is given, and FSDP hands it a copy; let it "
    "return what it adds"
)

Loss: TypeAlias = Callable[[], Tensor]
SAME = {torch.float64: 1e-6}
"""Relative difference of two figures of the same samples and weights; 1e-4 in other types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a forward and backward pass gave. share: of all gradients together, below which a difference is rounding."""

    loss: float
    norms: list[float]
    share: float


def misread(strategy: Strategy, model: nn.Module, blocks: Sequence[nn.Module], train: Loss) -> str | None:
    """What a forward does in a way that the strategy does not allow, with the remedy; None where nothing is found.

    model: whole, on one device, and used up here; train: the loss of its forward there, with its graph. What it raises
    is raised: a model that fails on one device is itself to blame. Code that is compiled does not see changes.
    """
    if strategy.whole_parameters or any(map(is_compiled, model.modules())):
        return None
    figures = partial(_figures, [*model.parameters()], train)
    sharded, outside, whole = not strategy.one_process, list[str](), figures()
    if not _same(whole, figures()):
        return None
    if sharded and _matters(figures, whole, _shards_outside(model, blocks, outside)) and outside:
        return READS_OUTSIDE.format(name=outside[0])
    views = [partial(_shard, rank) for rank in (0, 1)] if sharded else [None]
    if any(_matters(figures, whole, _other_parameters(model, blocks, view)) for view in views):
        return READS_PARAMETERS
    if strategy.copies_inputs and _matters(figures, whole, _copied_inputs(blocks)):
        return WRITES_CONTAINERS
    if strategy.hides_parameters and _matters(figures, whole, _hidden_parameters(model)):
        return REPLACES
    name = _kept(model, train)
    return None if name is None else KEEPS.format(name=name)


def _figures(parameters: Sequence[nn.Parameter], train: Loss) -> Figures:
    """The loss, and the norms of the gradients of these parameters, drawing the same random numbers each time."""
    seed_all(0)
    for parameter in parameters:
        parameter.grad = None
    loss = train()
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    norms = [0.0 if each.grad is None else each.grad.to_dense().norm().item() for each in parameters]
    return Figures(loss=loss.item(), norms=norms, share=SAME.get(parameters[0].dtype, 1e-4) if parameters else 1e-4)


def _matters(figures: Callable[[], Figures], whole: Figures, change: AbstractContextManager[object]) -> bool:
    """Whether the figures are not those of the whole model, or there are none, while something is changed."""
    with change:
        try:
            changed = figures()
        except Exception as error:
            if of_machine(error):
                raise
            return True
    return not _same(whole, changed)


def _same(one: Figures, other: Figures) -> bool:
    """A norm counts beside that of all gradients: some are rounding and nothing else."""
    allowed = one.share * math.hypot(*one.norms)
    losses = math.isclose(one.loss, other.loss, rel_tol=one.share) or (math.isnan(one.loss) and math.isnan(other.loss))
    return losses and all(not abs(a - b) > allowed for a, b in zip(one.norms, other.norms, strict=True))


def _shard(rank: int, weight: Tensor) -> Tensor:
    """What a rank of two holds of a parameter, or has in the place of one: half of it, without a gradient."""
    return weight.detach().flatten().tensor_split(2)[rank]


@contextmanager
def _away(model: nn.Module, blocks: Sequence[nn.Module]) -> Iterator[Callable[[Any], bool]]:
    """Tells whether a parameter is a shard at this moment: its block does not run, forward or backward."""
    # Inner blocks come before those around them, and own what is in them.
    block_of = {weight: block for block in reversed(blocks) for weight in block.parameters()}
    running: list[nn.Module] = []

    def away(weight: Any) -> bool:
        in_backward = torch._C._current_graph_task_id() != -1  # a checkpoint runs it again, on whole parameters
        return weight in block_of and block_of[weight] not in running and not in_backward

    with ExitStack() as stack:
        for block in blocks:
            enter = block.register_forward_pre_hook(lambda module, args: running.append(module), prepend=True)
            leave = block.register_forward_hook(lambda module, args, out: running.remove(module), always_call=True)
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        yield away


@contextmanager
def _other_parameters(
    model: nn.Module, blocks: Sequence[nn.Module], view: Callable[[Tensor], Tensor] | None
) -> Iterator[None]:
    """Let modules find in their parameters() a view of those that are away; None: no parameters, as replicas do."""
    named, get = nn.Module.named_parameters, nn.Module.get_parameter

    with _away(model, blocks) as away, ExitStack() as stack:

        def seen(weight: Any) -> Any:
            return view(weight) if view is not None and away(weight) else weight

        def named_parameters(module: nn.Module, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
            if view is not None:
                yield from ((name, seen(weight)) for name, weight in named(module, *args, **kwargs))

        def get_parameter(module: nn.Module, target: str) -> Any:
            if view is None:
                raise AttributeError(f"`{target}` is not an nn.Parameter")
            return seen(get(module, target))

        stack.enter_context(patch.object(nn.Module, "named_parameters", named_parameters))
        stack.enter_context(patch.object(nn.Module, "get_parameter", get_parameter))
        yield


@contextmanager
def _shards_outside(model: nn.Module, blocks: Sequence[nn.Module], found: list[str]) -> Iterator[None]:
    """Let who reads a block's parameter while that block does not run get a shard; `found` gets its name."""
    names, get = {weight: name for name, weight in model.named_parameters()}, nn.Module.__getattr__

    with _away(model, blocks) as away, ExitStack() as stack:

        def watched(module: nn.Module, name: str) -> Any:
            value = get(module, name)
            if not isinstance(value, nn.Parameter) or not away(value):
                return value
            found.append(names.get(value, name))
            return _shard(0, value)

        stack.enter_context(patch.object(nn.Module, "__getattr__", watched))
        yield


@contextmanager
def _hidden_parameters(model: nn.Module) -> Iterator[None]:
    """Let modules find their parameters as plain attributes, before whatever is in the place of a parameter."""
    with ExitStack() as stack:
        for module in model.modules():
            plain = {key: weight for key, weight in module._parameters.items() if weight is not None}
            stack.enter_context(patch.dict(vars(module), plain))
        yield


@contextmanager
def _copied_inputs(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Give blocks copies of the containers that they are called with."""
    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(_copies, with_kwargs=True).remove)
        yield


def _copies(module: nn.Module, args: Any, kwargs: Any) -> Any:
    try:
        return map_tensors(lambda tensor: tensor, (args, kwargs))
    except (TypeError, AttributeError, RecursionError):
        return None  # that a container cannot be copied says nothing of who writes to it


def _kept(model: nn.Module, train: Loss) -> str | None:
    """A parameter that the forward still reads once another one has its place in its module."""
    names, others = {weight: name for name, weight in model.named_parameters()}, dict[nn.Parameter, nn.Parameter]()
    for module in model.modules():
        for key, weight in [*module._parameters.items()]:
            if weight is not None:
                if weight not in others:
                    others[weight] = nn.Parameter(weight.detach().clone(), weight.requires_grad)
                setattr(module, key, others[weight])  # RNNs, which keep a list of them, look after it

    @contextmanager
    def lost(weights: Sequence[nn.Parameter]) -> Iterator[None]:
        with torch.no_grad():
            for weight in weights:
                weight.fill_(math.nan)
        yield
        with torch.no_grad():
            for weight in weights:
                weight.copy_(others[weight])

    figures = partial(_figures, [*others.values()], train)
    read, whole = [weight for weight in others if weight.is_floating_point() or weight.is_complex()], figures()
    if not _matters(figures, whole, lost(read)):
        return None
    while len(read) > 1:
        half = read[: len(read) // 2]
        read = half if _matters(figures, whole, lost(half)) else read[len(half) :]
    return names[read[0]]
