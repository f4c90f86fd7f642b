"""The task of any model: what it returns is drawn to a fixed wave."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.errors import UsageError
from bench.structure import tensors_of
from bench.workloads._adapters.inputs import Facts, Input
from bench.workloads._adapters.trying import samples_unlike
from bench.workloads._objectives import mean_loss_of_each_sample

MASKED = 1e3
"""Outputs this far from 0 are what a mask leaves (minus 10,000, which a model may add to what it has; minus infinity;
the lowest number). An untrained model's own outputs are far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """How a model is trained. Every label that counts weighs the same in a sample."""

    text: ClassVar[str] = ""
    wide_logits: ClassVar[bool] = False

    def fitted(self, output: Any, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        """The task for a model that returns this for a batch on the meta device; None where it does not fit."""
        return self.assumed(inputs, facts)

    def assumed(self, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        """The task for a model that could not be tried; None where it does not fit."""
        return self

    def targets(self, inputs: dict[str, Tensor], generator: torch.Generator) -> Any:
        """The targets of one sample; it may change `inputs`."""
        raise NotImplementedError

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """`(loss_sum, weight)`, see `Workload.loss`."""
        return mean_loss_of_each_sample(output, targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn(Task):
    """For a model whose usual objective is not here: every output is drawn to a wave of its own.

    tensors: which of the output's tensors, in the order of `tensors_of`; None: the first that has the samples in
    dimension 0.
    """

    text = "stand-in objective: squared distance of each output to a fixed wave"
    tensors: tuple[int, ...] | None = None

    def fitted(self, output: Any, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        """Those that belong to one sample each: one that has the samples twice pairs them with each other."""
        found, samples = tensors_of(output), samples_unlike(facts.config, inputs)
        chosen = tuple(
            number
            for number, tensor in enumerate(found)
            if _is_of_samples(tensor, samples) and samples not in tensor.shape[1:] and tensor.requires_grad
        )
        return replace(self, tensors=chosen) if chosen else None

    def targets(self, inputs: dict[str, Tensor], generator: torch.Generator) -> Tensor:
        """Where the wave of this sample begins."""
        return 2 * math.pi * torch.rand((), generator=generator)

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """The mean over each tensor's elements of (x - cos(index + phase))^2, summed over tensors and samples.

        Elements from MASKED on, on either side, count 0 and get no gradient: a mask has set them.

        A mean square alone would have no gradient behind a layer norm.
        """
        found, samples = tensors_of(output), len(targets)
        if self.tensors is None:
            chosen = [tensor for tensor in found if _is_of_samples(tensor, samples)][:1]
        else:
            chosen = [found[number] for number in self.tensors]
        if not chosen:
            raise UsageError(
                f"none of the {len(found)} tensors in an output of type {type(output).__name__} is floating and has "
                f"the {samples} samples in dimension 0; write a workload of your own, see docs/workloads.md"
            )
        total = sum(_distance_to_wave(tensor, targets) for tensor in chosen)
        return total, targets.new_full((), samples)  # type: ignore[return-value]


def _is_of_samples(tensor: Tensor, samples: int) -> bool:
    return tensor.is_floating_point() and tensor.dim() > 0 and len(tensor) == samples and tensor.numel() > 0


def _distance_to_wave(tensor: Tensor, phases: Tensor) -> Tensor:
    values = tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]
    values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    index = torch.arange(values.shape[1], device=values.device, dtype=values.dtype)
    wave = torch.cos(index + phases[:, None].to(values.dtype))
    values = torch.where(values.abs() >= MASKED, wave, values)
    return (values - wave).square().mean(dim=1).sum()
