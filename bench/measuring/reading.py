"""How a model's forward uses its own weights and inputs: in a way that replicas and shards do not allow?

Each search looks for a cause: it brings the model, whole on one device, into what the strategy makes of it, and
finds something only where the loss, or a gradient, is another one then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn

from bench.measuring.building import seed_all
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
WRITES_CONTAINERS = (
    "a block writes to a list, a dictionary or another container that it is given, and FSDP hands it a copy; let it "
    "return what it adds"
)

Loss: TypeAlias = Callable[[], Tensor]
SAME, TINY = 1e-6, 1e-12
"""Relative and absolute difference of two figures of the same samples and weights."""


def misread(strategy: Strategy, model: nn.Module, blocks: Sequence[nn.Module], train: Loss) -> str | None:
    """What a forward does in a way that the strategy does not allow, with the remedy; None where nothing is found.

    model: whole, on one device, and used up here; train: the loss of its forward there, with its graph. What it raises
    is raised: a model that fails on one device is itself to blame. Code that is compiled does not see changes.
    """
    if strategy.whole_parameters or any(map(is_compiled, model.modules())):
        return None
    figures = partial(_figures, [*model.parameters()], train)
    sharded, outside = not strategy.one_process, list[str]()
    if sharded and _matters(figures, _shards_outside(model, blocks, outside)) and outside:
        return READS_OUTSIDE.format(name=outside[0])
    if any(_matters(figures, _other_parameters(part)) for part in ((0, 1) if sharded else (None,))):
        return READS_PARAMETERS
    if strategy.copies_inputs and _matters(figures, _copied_inputs(blocks)):
        return WRITES_CONTAINERS
    name = _kept(model, figures)
    return None if name is None else KEEPS.format(name=name)


def _figures(parameters: Sequence[nn.Parameter], train: Loss) -> list[float]:
    """The loss, and the norms of the gradients of these parameters, drawing the same random numbers each time."""
    seed_all(0)
    for parameter in parameters:
        parameter.grad = None
    loss = train()
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [loss.item(), *(gradient.to_dense().norm().item() for gradient in gradients)]


def _matters(figures: Callable[[], list[float]], change: AbstractContextManager[object]) -> bool:
    """Whether the figures are others, or there are none, while something is changed. Not where they change anyway."""
    whole, again = figures(), figures()
    with change:
        try:
            changed = figures()
        except Exception:
            return True
    return _same(whole, again) and not _same(whole, changed)


def _same(ones: Sequence[float], others: Sequence[float]) -> bool:
    return len(ones) == len(others) and all(
        math.isclose(one, other, rel_tol=SAME, abs_tol=TINY) or (math.isnan(one) and math.isnan(other))
        for one, other in zip(ones, others, strict=True)
    )


def _shard(weight: Tensor, rank: int) -> Tensor:
    """What a rank of two holds of a parameter, or has in the place of one: half of it, without a gradient."""
    half = weight.numel() // 2
    return weight.detach().flatten()[half:] if rank else weight.detach().flatten()[:half]


@contextmanager
def _other_parameters(rank: int | None) -> Iterator[None]:
    """Let modules find the shards of a rank in their parameters(); None: no parameters, as those of replicas do."""
    named, get, state = nn.Module.named_parameters, nn.Module.get_parameter, nn.Module.state_dict

    def named_parameters(module: nn.Module, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        if rank is not None:
            yield from ((name, _shard(weight, rank)) for name, weight in named(module, *args, **kwargs))

    def get_parameter(module: nn.Module, target: str) -> Tensor:
        if rank is None:
            raise AttributeError(f"`{target}` is not an nn.Parameter")
        return _shard(get(module, target), rank)

    def state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found = {} if rank is None else state(module, *args, **kwargs)
        return {name: _shard(value, rank or 0) for name, value in found.items()}

    with (
        patch.object(nn.Module, "named_parameters", named_parameters),
        patch.object(nn.Module, "get_parameter", get_parameter),
        patch.object(nn.Module, "state_dict", state_dict),
    ):
        yield


@contextmanager
def _shards_outside(model: nn.Module, blocks: Iterable[nn.Module], found: list[str]) -> Iterator[None]:
    """Let who reads a block's parameter while that block does not run get a shard; `found` gets its name."""
    names = {weight: name for name, weight in model.named_parameters()}
    block_of = {module: block for block in blocks for module in block.modules()}
    running: list[nn.Module] = []
    get = nn.Module.__getattr__

    def watched(module: nn.Module, name: str) -> Any:
        value = get(module, name)
        block = block_of.get(module)
        if isinstance(value, nn.Parameter) and block is not None and block not in running and value in names:
            found.append(names[value])
            return _shard(value, 0)
        return value

    with ExitStack() as stack:
        for block in dict.fromkeys(block_of.values()):
            enter = block.register_forward_pre_hook(lambda module, args: running.append(module))
            leave = block.register_forward_hook(lambda module, args, out: running.remove(module), always_call=True)
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        stack.enter_context(patch.object(nn.Module, "__getattr__", watched))
        yield


@contextmanager
def _copied_inputs(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Give blocks copies of the containers that they are called with."""
    with ExitStack() as stack:
        for block in blocks:
            copied = block.register_forward_pre_hook(
                lambda module, args, kwargs: map_tensors(lambda tensor: tensor, (args, kwargs)), with_kwargs=True
            )
            stack.callback(copied.remove)
        yield


def _kept(model: nn.Module, figures: Callable[[], list[float]]) -> str | None:
    """A parameter that the forward still reads once another one has its place in its module."""
    names, others = {weight: name for name, weight in model.named_parameters()}, dict[nn.Parameter, nn.Parameter]()
    for module in model.modules():
        for key, weight in [*module._parameters.items()]:
            if weight is not None:
                others.setdefault(weight, nn.Parameter(weight.detach().clone(), weight.requires_grad))
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

    read = [weight for weight in others if weight.is_floating_point()]
    if not _matters(figures, lost(read)):
        return None
    while len(read) > 1:
        half = read[: len(read) // 2]
        read = half if _matters(figures, lost(half)) else read[len(half) :]
    return names[read[0]]
