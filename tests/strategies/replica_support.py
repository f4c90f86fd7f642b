"""What the tests of host replicas share: small models, splits, and the comparison with the plain module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.strategies._host_replicas import HostDataParallel
from bench.strategies.balanced_dp import split_sizes
from bench.strategies.dp import torch_chunks

Split = Callable[[int], Sequence[int]]


def even(num_devices: int) -> Split:
    return lambda batch: torch_chunks(batch, num_devices)


def balanced(num_devices: int, gpu0_bsz: int) -> Split:
    return lambda batch: split_sizes(batch, num_devices, gpu0_bsz)


SPLITS = {"even": even(2), "three": even(3), "first takes fewer": balanced(3, 1), "first takes none": balanced(3, 0)}


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def images(count: int = 7) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(1))


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name.removeprefix("module."): parameter.grad for name, parameter in module.named_parameters()}


def assert_same_gradients(plain: nn.Module, wrapped: nn.Module) -> None:
    expected, got = gradients(plain), gradients(wrapped)
    assert expected.keys() == got.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert got[name] is None, name
        else:
            found = got[name]
            assert found is not None, name
            assert float((found - gradient).norm()) <= 1e-6 * max(1.0, float(gradient.norm())), name


def train_both(module: nn.Module, split: Split, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Outputs of the module and of its wrapped twin, after a backward through each and a look at the gradients."""
    plain, wrapped = module, HostDataParallel(copy.deepcopy(module), split)
    expected, got = plain(*args, **kwargs), wrapped(*args, **kwargs)
    for output in (expected, got):
        weighted(output).backward()
    assert_same_gradients(plain, wrapped)
    return expected, got


def weighted(output: Any) -> Tensor:
    """A loss that weighs every element differently, so that no permutation of samples goes unnoticed."""
    tensors = [output] if isinstance(output, Tensor) else [value for value in output if isinstance(value, Tensor)]
    parts = [value.flatten() for value in tensors if value.requires_grad]
    joined = torch.cat(parts)
    return (joined.square() * torch.arange(1.0, 1 + len(joined))).sum()
