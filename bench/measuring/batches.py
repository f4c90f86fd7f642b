"""The batches that a process takes, in host memory: its part of each global batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from bench import levers
from bench.errors import BenchError, RefusedError
from bench.levers.data_placement import is_resident
from bench.schema import Case
from bench.strategies import Strategy
from bench.structure import map_tensors, tensors_of
from bench.workloads import Batch, DataSource, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """This process's part of one global batch: its micro-batches, and the weight of the whole."""

    micro_batches: tuple[Batch, ...]
    weight: float


def make_batches(
    workload: Workload, strategy: Strategy, case: Case, source: DataSource, *, rank: int, seed: int, count: int
) -> list[StepBatch]:
    """`count` different global batches in rotation, of which this rank holds its part in host memory.

    Pinned on CUDA. Every strategy sees the same samples in the same order.
    """
    dataset = workload.dataset(source, seed)
    start, size = _share(strategy, case, rank)
    micro, batches = case.micro_batch_size, []
    for number in range(count):
        first = number * case.global_batch_size
        whole = [index % source.num_samples for index in range(first, first + case.global_batch_size)]
        parts = [whole[step * micro + start :][:size] for step in range(case.accumulation_steps)]
        fetched = [levers.prepare_batch(case, fetch(workload, dataset, part)) for part in parts]
        micro_batches = tuple(pinned(batch) if case.device_type == "cuda" else batch for batch in fetched)
        if strategy.scatters:
            for batch in micro_batches:
                _refuse_unsplit(batch if strategy.loss_inside(case) else batch[:2], micro, strategy.name)
        weight = workload.weight(dataset, whole)
        if not weight > 0:
            raise BenchError(
                f"nothing counts in a batch of {len(whole)} samples: workload {workload.name} gives it a weight of "
                f"{weight:g}; give every few samples something that counts"
            )
        batches.append(StepBatch(micro_batches=micro_batches, weight=weight))
    return batches


def _refuse_unsplit(structure: Any, samples: int, strategy: str) -> None:
    """RefusedError where scattering along dimension 0 would not split the samples."""
    wrong = [tuple(tensor.shape) for tensor in tensors_of(structure) if tensor.dim() and len(tensor) != samples]
    if wrong:
        raise RefusedError(
            f"{strategy} splits every tensor along dimension 0, and one of shape {wrong[0]} does not have the batch's "
            f"{samples} samples there; give every input the samples in dimension 0, or use ddp"
        )


def _share(strategy: Strategy, case: Case, rank: int) -> tuple[int, int]:
    """First sample and number of samples of this rank within a micro-batch."""
    if strategy.one_process:
        return 0, case.micro_batch_size
    sizes = strategy.chunk_sizes(case)
    return [0, *accumulate(sizes)][rank], sizes[rank]


def fetch(workload: Workload, dataset: Any, indices: Sequence[int]) -> Batch:
    """These samples of the dataset as a batch in host memory."""
    fetch_many = getattr(dataset, "__getitems__", None)
    return workload.collate(fetch_many(indices) if fetch_many else [dataset[index] for index in indices])


def pinned(batch: Batch) -> Batch:
    """The batch in memory that a GPU copies from by itself."""
    made: Batch = map_tensors(Tensor.pin_memory, batch)
    return made


def to_device(structure: Any, device: torch.device, *, copy: bool = True) -> Any:
    """Every tensor on `device`, without waiting if its memory is pinned. copy: also where it lies there already."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True, copy=copy), structure)


def placed(case: Case, batches: Sequence[StepBatch], device: torch.device) -> list[StepBatch]:
    """The batches where the case wants them: in host memory, or on `device`."""
    if not is_resident(case):
        return list(batches)
    return [
        replace(batch, micro_batches=tuple(to_device(part, device) for part in batch.micro_batches))
        for batch in batches
    ]


def versions_of(batch: StepBatch) -> list[int]:
    """How often each tensor of a batch was written to in place."""
    return [tensor._version for part in batch.micro_batches for tensor in tensors_of(part)]


def refuse_written(batch: StepBatch, versions: list[int]) -> None:
    """RefusedError where a step wrote to its batch, which is to be taken again. versions: those before the step."""
    if versions_of(batch) != versions:
        raise RefusedError(
            "the model or its loss writes to the batch in place, which data_placement=resident gives it again and "
            "again; let it write to a copy, or use data_placement=host"
        )
