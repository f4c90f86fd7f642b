"""Tensors inside nested containers: find them, and put others in their places.

Knows what torch's own scatter and gather know (tuples, named tuples, lists, dicts), and
dataclasses and other mappings too, which torch's scatter would hand over unsplit.
Everything else is a leaf that is passed on as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn


def map_tensors(function: Callable[[Tensor], Any], structure: Any) -> Any:
    """A copy of `structure` with `function(tensor)` in the place of every tensor, depth first."""
    if isinstance(structure, Tensor):
        return function(structure)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(map_tensors(function, item) for item in structure))
    if isinstance(structure, (tuple, list)):
        return type(structure)(map_tensors(function, item) for item in structure)
    if isinstance(structure, defaultdict):
        return type(structure)(
            structure.default_factory, {key: map_tensors(function, item) for key, item in structure.items()}
        )
    if isinstance(structure, Mapping):
        items = {key: map_tensors(function, item) for key, item in structure.items()}
        # The outputs of transformers are dataclasses too, and take fields.
        return type(structure)(**items) if dataclasses.is_dataclass(structure) else type(structure)(items)  # type: ignore[call-arg]
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        clone = copy.copy(structure)
        for field in dataclasses.fields(structure):
            # Past `__setattr__`, for frozen ones; past `__init__`, for fields that it does not take.
            object.__setattr__(clone, field.name, map_tensors(function, getattr(structure, field.name)))
        return clone
    return structure


def tensors_of(structure: Any) -> list[Tensor]:
    """Every tensor in `structure`, in the order of `map_tensors`; no container is made anew for it."""
    return list(_walk(structure, frozenset()))


def _walk(structure: Any, around: frozenset[int]) -> Iterator[Tensor]:
    """around: ids of the containers that this one is in; one that holds itself is not entered twice."""
    if isinstance(structure, Tensor):
        yield structure
        return
    parts: Iterable[Any] = ()
    if isinstance(structure, (tuple, list)):
        parts = structure
    elif isinstance(structure, Mapping):
        parts = structure.values()
    elif dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        parts = (getattr(structure, field.name, None) for field in dataclasses.fields(structure))
    if id(structure) not in around:
        for part in parts:
            yield from _walk(part, around | {id(structure)})


def with_tensors(structure: Any, tensors: Iterable[Any]) -> Any:
    """A copy of `structure` with its tensors replaced, in order."""
    replacements = iter(tensors)
    return map_tensors(lambda _: next(replacements), structure)


WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What FSDP1 and activation checkpointing put between a module and its parent, in the paths of what is in it."""


def own_name(path: str) -> str:
    """The path of a parameter or module as the workload's model names it, without what is wrapped around its parts.

    The empty text for the model itself. What strategies wrap holds the model as its `model`.
    """
    plain = ".".join(part for part in path.split(".") if part not in WRAPPERS)
    return "" if plain == "model" else plain.removeprefix("model.")


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile has wrapped a module, or `module.compile()` was called."""
    return type(module).__name__ == "OptimizedModule" or compiles_its_hooks(module)


def compiles_its_hooks(module: nn.Module) -> bool:
    """Whether `module.compile()` was called; what torch.compile has wrapped runs its hooks outside."""
    return getattr(module, "_compiled_call_impl", None) is not None


def samples_in(structure: Any) -> int:
    """Length of dimension 0 of the first tensor that has one; 0 when there is none."""
    return next((tensor.size(0) for tensor in tensors_of(structure) if tensor.dim()), 0)  # nested ones have no len()


def split_structure(structure: Any, sizes: Sequence[int], split: Callable[[Tensor], Sequence[Tensor]]) -> list[Any]:
    """One structure per chunk; `split(tensor)` returns the chunks of a tensor along dimension 0.

    Tensors without dimensions go to every chunk. ValueError where dimension 0 is not the batch.
    """
    total, columns = sum(sizes), []
    for tensor in tensors_of(structure):
        if tensor.dim() and len(tensor) != total:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} does not have the batch's {total} samples in "
                "dimension 0; give every input tensor the samples there, or pass it as a non-tensor"
            )
        columns.append(split(tensor) if tensor.dim() else [tensor] * len(sizes))
    return [with_tensors(structure, (column[chunk] for column in columns)) for chunk in range(len(sizes))]
