"""What FSDP cannot shard: parameters that two modules share, those read while they are shards, and what torch refuses.

Modules that share a parameter must stay in one FSDP group, or each group trains its own copy.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch
from torch import nn

from bench.errors import RefusedError, in_short, text_of
from bench.structure import own_name


def refuse_shared(model: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """RefusedError where a block shares a parameter with anything outside it."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(own_name(name))
    paths = {module: own_name(path) for path, module in model.named_modules()}
    for block in blocks:
        path = paths[block]
        for parameter in block.parameters():
            outside = next((name for name in names[parameter] if not name.startswith(f"{path}.")), None)
            if outside is not None:
                inside = next(name for name in names[parameter] if name.startswith(f"{path}."))
                raise RefusedError(
                    f"FSDP cannot shard {path} alone: its {inside} is {outside} as well, which lies outside; leave "
                    f"{path} out of the workload's blocks(), and the model keeps both together"
                )


Shapes: TypeAlias = Mapping[nn.Module, Mapping[str, torch.Size]]


def refuse_hooked(model: nn.Module) -> None:
    """RefusedError for hooks on parameters, which would stay on the whole parameters that sharding replaces."""
    hooked = [
        own_name(name)
        for name, weight in model.named_parameters()
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    ]
    if hooked:
        raise RefusedError(
            f"FSDP drops hooks on parameters, as {hooked[0]} has; put them on modules' inputs or outputs, or use ddp"
        )


def shapes_of(model: nn.Module) -> Shapes:
    """The shapes of each module's own parameters."""
    return {
        module: {name: weight.shape for name, weight in module.named_parameters(recurse=False)}
        for module in model.modules()
    }


def ran_on_shards(error: Exception, whole: Shapes) -> bool:
    """Whether `error` was raised in the forward of a module whose parameters did not have their whole shapes."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [each for frame in frames if isinstance(each := frame.f_locals.get("self"), nn.Module)]
    return any(
        getattr(module, name).shape != shape for module in modules for name, shape in whole.get(module, {}).items()
    )


SHARDS_READ = (
    "the forward reads the parameters of a block, or takes a gradient through it, while that block does not run, when "
    "they are shards; do that inside the block, or leave it out of the workload's blocks()"
)
WRITES_INPUT = (
    "a block writes to its input in place, which FSDP2 hands it as a view; let it write to a copy (inplace=False)"
)
NO_DIMENSIONS = "it cannot shard a parameter without dimensions; give it the shape (1,), or use ddp"
# What torch says of models that no FSDP can shard.
FSDP_WORDS = {
    "support scalar parameters": NO_DIMENSIONS,
    "support salar parameters": NO_DIMENSIONS,
    "support non-contiguous parameters": "it cannot shard a parameter that is not contiguous; call contiguous() on it",
    "from the 'Sparse": "it cannot reduce sparse gradients; build the embedding with sparse=False",
    "not implemented for sparse tensors": "it cannot reduce sparse gradients; build the embedding with sparse=False",
    "got mixed torch.Tensor and DTensor": SHARDS_READ,
    "Cannot access storage of TensorWrapper": SHARDS_READ,
    "do not implement forward": (
        "a block of the workload is a list or dictionary of modules, which nobody calls; name the modules in it"
    ),
    "on ScriptModules": "it cannot shard a scripted model; build it without torch.jit.script",
    "Cannot flatten integer dtype tensors": "FSDP1 cannot shard complex or whole-number parameters; use real ones",
    "FSDP expects uniform original parameter dtype": (
        "it cannot shard parameters of different types together; use one dtype, or another block for each"
    ),
    "out of bounds for storage of size 0": SHARDS_READ,
    "_chunk_cat expects non-empty": "it cannot shard a parameter without elements; leave it out of the model",
    "only change requires_grad flags of leaf variables": (
        "the forward changes requires_grad of parameters, which FSDP1 replaces by views; set it in build(), or use ddp"
    ),
    "of RegisterPostBackwardFunction": WRITES_INPUT,
    "methods or parameters of a script module": "it cannot shard a scripted model; build it without torch.jit",
    "Must flatten tensors with uniform dtype": "it cannot shard parameters of different types together; use one dtype",
}


def fsdp_refusal(error: Exception, whole: Shapes | None = None) -> str | None:
    """Why FSDP cannot shard a model that fails so; None for any other failure. whole: shapes before it was sharded."""
    text = text_of(error)
    if not isinstance(error, (ValueError, RuntimeError, AssertionError)):
        return None
    meaning = next((meaning for words, meaning in FSDP_WORDS.items() if words in text), None)
    if meaning is None and ran_on_shards(error, whole or {}):
        meaning = SHARDS_READ
    return None if meaning is None else f"FSDP refuses this model: {meaning} ({in_short(error)})"
