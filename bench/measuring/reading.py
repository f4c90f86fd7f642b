"""How a model's forward reads its own weights: what replicas and shards do not have in the way that it expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from torch import nn

from bench.strategies import Strategy
from bench.structure import tensors_of

READS_PARAMETERS = (
    "the forward reads the model's own parameters(), which are not whole under this strategy: a replica of "
    "DataParallel has none, and FSDP holds shards; read weights by their names, where their own module runs"
)
READS_OUTSIDE = (
    "the forward reads {name} while its block does not run, when it is a shard; read it inside the block, or leave "
    "that out of the workload's blocks()"
)
REGISTERED = ("_parameters", "_buffers", "_modules")
KEEPS = (
    "the model keeps {name} in a place of its own ({place}), where it stays as it was when replicas or shards take the "
    "weights' places; read it by its name"
)


def misread(
    strategy: Strategy, model: nn.Module, blocks: Iterable[nn.Module], train: Callable[[], object], *, missed: bool
) -> str | None:
    """What a forward reads in a way that the strategy does not allow, with the remedy; None where nothing is found.

    model: whole, on one device; train: its forward and loss there. What it raises is raised: a model that fails on one
    device is itself to blame. missed: parity was missed, where shards of parameters() count; many models read their
    type there and bear that, so they explain no error.
    """
    if strategy.whole_parameters:
        return None
    name = None if strategy.one_process else _read_outside(model, blocks, train)
    if name is not None:
        return READS_OUTSIDE.format(name=name)
    if (kept := _kept(model)) is not None:
        return KEEPS.format(name=kept[0], place=kept[1])
    return READS_PARAMETERS if (missed or strategy.one_process) and _reads_parameters(train) else None


def _reads_parameters(train: Callable[[], object]) -> bool:
    """Whether parameters() of a module, or one of them, are asked for."""
    with ExitStack() as stack:
        readings = [
            stack.enter_context(patch.object(nn.Module, name, autospec=True, side_effect=getattr(nn.Module, name)))
            for name in ("named_parameters", "get_parameter", "state_dict")
        ]
        train()
    return any(reading.called for reading in readings)


def _read_outside(model: nn.Module, blocks: Iterable[nn.Module], train: Callable[[], object]) -> str | None:
    """The first parameter of a block that is read while that block does not run."""
    names = {weight: name for name, weight in model.named_parameters()}
    block_of = {module: block for block in blocks for module in block.modules()}
    running: list[nn.Module] = []
    found: list[str] = []
    get = nn.Module.__getattr__

    def watched(module: nn.Module, name: str) -> Any:
        value = get(module, name)
        block = block_of.get(module)
        if isinstance(value, nn.Parameter) and block is not None and block not in running and value in names:
            found.append(names[value])
        return value

    handles = [
        handle
        for block in dict.fromkeys(block_of.values())
        for handle in (
            block.register_forward_pre_hook(lambda module, args: running.append(module)),
            block.register_forward_hook(lambda module, args, output: running.remove(module), always_call=True),
        )
    ]
    try:
        with patch.object(nn.Module, "__getattr__", watched):
            train()
    finally:
        for handle in handles:
            handle.remove()
    return next(iter(found), None)


def _kept(model: nn.Module) -> tuple[str, str] | None:
    """A parameter that a module also holds in a list or dictionary of its own, and where. RNNs keep theirs right."""
    names = {weight: name for name, weight in model.named_parameters()}
    for path, module in model.named_modules():
        own = {} if isinstance(module, nn.RNNBase) else {k: v for k, v in vars(module).items() if k not in REGISTERED}
        for attribute, value in own.items():
            for tensor in tensors_of(value):
                if isinstance(tensor, nn.Parameter) and tensor in names:
                    return names[tensor], f"{path}.{attribute}".lstrip(".")
    return None
