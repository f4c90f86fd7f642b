"""Images that a model wants as one row of patches for the whole batch, as Qwen-VL and its kin do.

Here each sample has its patches and its grid, all alike, so that a batch can be split: they are joined on the way into
the model, and what comes out as one row is taken apart again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from bench.structure import map_tensors
from bench.workloads._adapters.inputs import Input


def packed_names(inputs: Mapping[str, Input]) -> list[str]:
    return [name for name, item in inputs.items() if item.packed]


def packed(batch: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The batch with the rows of all samples as one, in the inputs of these names."""
    return {name: value.flatten(0, 1) if name in names else value for name, value in batch.items()}


def unpacked(output: Any, samples: int) -> Any:
    """What a model returns, with the samples in dimension 0 where they were one row."""

    def apart(tensor: Tensor) -> Tensor:
        rows = len(tensor) if tensor.dim() else samples
        whole = rows != samples and rows > 0 and rows % samples == 0
        return tensor.reshape(samples, rows // samples, *tensor.shape[1:]) if whole else tensor

    return map_tensors(apart, output)


def install_packing(model: nn.Module, inputs: Mapping[str, Input]) -> None:
    """From now on the model takes, and returns, the samples in dimension 0. Replicas share the hooks."""
    names = packed_names(inputs)
    if not names:
        return
    grid = next(name for name, item in inputs.items() if item.kind == "grid")

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args, packed(kwargs, names)

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        return unpacked(output, len(kwargs[grid]))

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)
