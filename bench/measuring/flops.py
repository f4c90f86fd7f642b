"""How many FLOPs a workload's model needs for a sample, counted in a worker of its own.

The bare model goes forward and backward on tensors that have a shape and no data (`FakeTensorMode`), under
torch's `FlopCounterMode`: nothing is computed, and nothing of it is in a process that is timed. What a step
needs is the same for every strategy: the FLOPs of a sample times the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from bench.errors import in_short
from bench.measuring.batches import fetch
from bench.measuring.building import built, seed_all
from bench.measuring.control import Channel
from bench.measuring.launcher import Launcher, LaunchError
from bench.measuring.tasks import Job
from bench.structure import map_tensors
from bench.workloads import Batch, Workload

SAMPLES = (2, 4)
"""Batches that are counted; more than one sample, for a BatchNorm over each."""
LIMIT_SECONDS = 60.0

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """FLOPs of one sample, forward and backward; None with the reason where they cannot be counted."""

    per_sample: float | None = None
    unknown: str | None = None


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    # Two products for each of the forward's two. torch's own formula has one more: the kernel computes scores again.
    return 2 * _attention(query, key, value)


# Attention on the CPU is a kernel of its own, which the counter of torch 2.14 does not know.
CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


def flops_of(workload: Workload, make_batch: Callable[[int], Batch], seed: int) -> FlopCount:
    """Count a new model; `make_batch(n)` gives n samples. Never raises for a model: the reason says what failed."""
    try:
        seed_all(seed)
        model = built(workload).train()
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        _take_data_away(model, mode)
        counts = [_count(workload, model, map_tensors(mode.from_tensor, make_batch(n)), mode) for n in SAMPLES]
    except Exception as error:
        return FlopCount(unknown=f"the FLOPs of the model cannot be counted without data: {in_short(error)}")
    small, large = counts
    if small * SAMPLES[1] != large * SAMPLES[0]:
        return FlopCount(
            unknown=f"the FLOPs do not grow with the samples: {small:,} for {SAMPLES[0]}, {large:,} for {SAMPLES[1]}"
        )
    if small == 0:
        return FlopCount(unknown="the model has no matrix product, convolution or attention that the counter knows")
    return FlopCount(per_sample=small / SAMPLES[0])


def _take_data_away(model: nn.Module, mode: FakeTensorMode) -> None:
    """Put tensors without data in the place of parameters and buffers; shared ones stay shared."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = mode.from_tensor(tensor)  # type: ignore[assignment]


def _count(workload: Workload, model: nn.Module, batch: Batch, mode: FakeTensorMode) -> int:
    """FLOPs of forward, loss and backward of one batch; what the backward computes again is left out."""
    args, kwargs, targets = batch
    counter = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
    with _without_onednn(), mode, counter:
        loss_sum, _ = workload.loss(model(*args, **kwargs), targets)
        with _recomputed(counter) as again:
            loss_sum.backward()  # type: ignore[no-untyped-call]
        return int(counter.get_total_flops()) - sum(again)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Its recurrent layers are one operator, of which the counter knows nothing; without it they are products."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def _recomputed(counter: FlopCounterMode) -> Iterator[list[int]]:
    """FLOPs of every forward of a module from here to the end of the block: checkpointing runs some again."""
    found: list[int] = []
    running: list[int] = []

    def enter(*_: Any) -> None:
        running.append(counter.get_total_flops())

    def leave(*_: Any) -> None:
        before = running.pop()
        if not running:
            found.append(counter.get_total_flops() - before)

    with ExitStack() as undo:
        undo.callback(register_module_forward_pre_hook(enter).remove)
        # Also where it is left early, as torch's checkpoint does once it has what it needs.
        undo.callback(register_module_forward_hook(leave, always_call=True).remove)
        yield found


def count(job: Job, channel: Channel) -> None:
    """Worker task: reply with the count of the job's workload."""
    channel.phase("count FLOPs")
    channel.reply({})
    workload = job.workload()
    dataset = workload.dataset(job.source, job.seed)

    def make_batch(samples: int) -> Batch:
        indices = [index % job.source.num_samples for index in range(samples)]
        return fetch(workload, dataset, indices)

    found = flops_of(workload, make_batch, job.seed)
    channel.reply({"per_sample": found.per_sample, "unknown": found.unknown})


def count_flops(launcher: Launcher, job: Job) -> FlopCount:
    """FLOPs of the job's workload at its size and with its data, from a launch of its own.

    Where that fails, so does nothing else: the reason says how it ended.
    """
    try:
        with launcher.start(count, job, 1, LIMIT_SECONDS) as session:
            session.replies()
            (reply,) = session.replies()
    except LaunchError as error:
        if error.outcome.status == "timeout":
            return FlopCount(unknown=f"the FLOPs of the model were not counted within {LIMIT_SECONDS:g} s")
        return FlopCount(unknown=f"the FLOPs of the model were not counted: {error}")
    return FlopCount(per_sample=reply["per_sample"], unknown=reply["unknown"])  # type: ignore[arg-type]
