"""How a model's forward reads its own weights: what replicas and shards do not have in the way that it expects."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from bench.workloads import Batch

READS_PARAMETERS = (
    "the forward reads the model's own parameters(), which a replica of DataParallel does not have: its weights are "
    "plain attributes; read weights by their names, where their own module runs"
)
READS_OUTSIDE = (
    "the forward reads {name} while its block does not run, when it is a shard; read it inside the block, or leave "
    "that out of the workload's blocks()"
)


def reads_parameters(model: nn.Module, batch: Batch) -> bool:
    """Whether a forward, on the device of `model` and `batch`, asks for the model's parameters(), or one of them."""
    with ExitStack() as stack:
        readings = [
            stack.enter_context(patch.object(nn.Module, name, autospec=True, side_effect=getattr(nn.Module, name)))
            for name in ("named_parameters", "get_parameter", "state_dict")
        ]
        _run(model, batch)
    return any(reading.called for reading in readings)


def read_outside(model: nn.Module, blocks: Iterable[nn.Module], batch: Batch) -> str | None:
    """The first parameter of a block that a forward reads while that block does not run."""
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
            _run(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return next(iter(found), None)


def _run(model: nn.Module, batch: Batch) -> None:
    """As far as it goes: what it fails of is not what is looked for."""
    args, kwargs, _ = batch
    with suppress(Exception), torch.no_grad():
        model(*args, **kwargs)
