"""Is the model to blame for a missed parity, or the strategy? Looked at on rank 0, after a miss only.

Parity compares two trainings, and so takes for granted that a model trains alike twice on one device,
and that the loss of a batch is the sum of the losses of its parts. Each check here looks at one of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from bench.measuring.batches import StepBatch, fetch
from bench.measuring.building import blocks_of, built, seed_all
from bench.measuring.control import Message
from bench.measuring.reading import misread
from bench.measuring.step import Trainer
from bench.measuring.tasks import Job
from bench.schema import PARITY_LIMIT, Case
from bench.strategies import Strategy
from bench.structure import samples_in, tensors_of

SAMPLES = 16
"""Samples fetched twice: a flip of each with one half would go unseen once in 2**16."""
LOSS_LIMIT = {torch.float64: 1e-6}
"""Relative difference of a batch's loss and the sum of its parts', 1e-3 in other types; float32 gives about 1e-6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDevice:
    """The reference, and what it takes to train it again.

    job: with the reference's case; batches: the same global batches, each in so many equal pieces; losses: of each
    step, over the whole batch; weights: after the last; error_of: parity error of other weights against these;
    missed, strategy: the case that missed it, and its strategy.
    """

    job: Job
    trainer: Callable[[], Trainer]
    batches: Callable[[int], Sequence[StepBatch]]
    losses: Sequence[float]
    weights: Mapping[str, Tensor]
    error_of: Callable[[Mapping[str, Tensor]], float]
    missed: Case
    strategy: Strategy


def diagnose(alone: OneDevice) -> Message:
    """`blame`: what is wrong with the model, and the remedy. `undecided`: why no verdict is possible. `refused`: why
    the strategy cannot take the model. Or nothing."""
    try:
        blame = _not_finite(alone) or _other_weights(alone) or _other_samples(alone)
        if blame is None and (written := _writes_weights(alone)):
            return {"blame" if alone.strategy.whole_parameters else "refused": written}
        if blame is None and (reason := _random_forward(alone) or _coarse_weights(alone)):
            return {"undecided": reason}
        blame = blame or _no_sum(alone)
        if blame is None and (reason := _misjoined(alone) or _misread(alone)):
            return {"refused": reason}
    except Exception as error:  # the figure of the miss must not be lost with it
        blame = f"whether the model or the strategy is to blame is not known, the search failed: {error!r}"
    return {} if blame is None else {"blame": blame}


def _not_finite(alone: OneDevice) -> str | None:
    for step, loss in enumerate(alone.losses, start=1):
        if not math.isfinite(loss):
            return _no_number(alone, f"the loss is {loss} on one device too, in step {step}")
    if not all(bool(weight.isfinite().all()) for weight in alone.weights.values()):
        return _no_number(alone, "a gradient is not finite on one device either")
    return None


def _no_number(alone: OneDevice, fact: str) -> str:
    rate = alone.job.workload().parity_learning_rate
    lower = "" if rate is None else f", or lower parity_learning_rate ({rate:g})"
    return f"{fact}; look for a division by 0, a logarithm or root of 0, or an input that is not finite{lower}"


def _other_weights(alone: OneDevice) -> str | None:
    """Where two builds from one seed differ."""
    first, second = (_weights_of_a_build(alone.job, number) for number in (1, 2))
    different = [name for name in {**first, **second} if not _same(first.get(name), second.get(name))]
    if not different:
        return None
    return (
        f"build() is not reproducible: built twice from one seed, {len(different)} weights differ "
        f"({', '.join(different[:4])}); seed every generator of your own that their start is drawn from"
    )


def _weights_of_a_build(job: Job, number: int) -> dict[str, Tensor]:
    _stir(job, number)
    seed_all(job.seed)
    model = built(job.workload())
    return dict(chain(model.named_parameters(), model.named_buffers()))


def _other_samples(alone: OneDevice) -> str | None:
    """Where a sample fetched again, in another order, is another one: other ranks see other data then."""
    job = alone.job
    indices = range(min(SAMPLES, job.source.num_samples))
    first, again = _samples(job, 1, indices), _samples(job, 2, indices[::-1])
    for index in indices:
        one, other = tensors_of(first[index]), tensors_of(again[index])
        if len(one) != len(other) or not all(map(_same, one, other)):
            return (
                f"the data is not reproducible: sample {index} is another one when it is fetched again; make "
                "example(), dataset() and collate() give every process the same, with every generator of your own "
                "seeded from the index"
            )
    return None


def _samples(job: Job, number: int, indices: Sequence[int]) -> dict[int, Any]:
    _stir(job, number)
    workload = job.workload()
    dataset = workload.dataset(job.source, job.seed)
    return {index: fetch(workload, dataset, [index]) for index in indices}


def _random_forward(alone: OneDevice) -> str | None:
    """Where training again, or another forward, gives something else on one device too."""
    batches, trainer = alone.batches(1), alone.trainer()
    _stir(alone.job, 1)
    for batch in batches:
        trainer.step(batch)
    apart = alone.error_of(trainer.full_parameters())
    if not apart <= PARITY_LIMIT:
        return (
            "the forward draws random numbers (dropout without training=self.training, noise, a random mask): one "
            f"device alone, with another state of the generators, is {apart:.2g} from itself"
        )
    once, twice = (trainer.loss_sum(alone.batches(1)[0].micro_batches[0]) for _ in range(2))
    if _apart(once, twice) > PARITY_LIMIT:
        return (
            "the forward draws random numbers from a generator of its own, or keeps a state: on one device, the same "
            f"batch has a loss of {once:.6g}, then of {twice:.6g}"
        )
    return None


def _writes_weights(alone: OneDevice) -> str | None:
    """Where a forward changes the weights themselves, although nothing is trained."""
    trainer, batch = alone.trainer(), alone.batches(1)[0]
    for _ in range(2):  # weights that follow others (a moving average) are often equal to them at first
        before = trainer.full_parameters()
        trainer.loss_sum(batch.micro_batches[0])
        after = trainer.full_parameters()
        if written := [name for name in before if not _same(before[name], after.get(name))]:
            return (
                f"the forward writes the model's own weights ({', '.join(written[:4])}), as a limit on their size "
                "(max_norm, clamping) or a moving average does; replicas and shards do not keep that, and ranks may "
                "each write something else: write them in the optimizer's step"
            )
        trainer.step(batch)
    return None


def _coarse_weights(alone: OneDevice) -> str | None:
    """Where the weights are of a type that rounds more than the check looks for; models in float64 have none such."""
    coarse = {weight.dtype for weight in alone.weights.values() if weight.is_floating_point()} & {
        torch.bfloat16,
        torch.half,
    }
    if not coarse:
        return None
    return f"weights of type {' and '.join(sorted(map(str, coarse)))} round more than this check looks for"


def _no_sum(alone: OneDevice) -> str | None:
    """Where the loss of a batch, or its gradient, is not the sum of those of its halves, or of its samples if odd."""
    samples = alone.job.case.global_batch_size
    if samples < 2:
        return None
    trainer = alone.trainer()
    whole = trainer.loss_sum(alone.batches(1)[0].micro_batches[0])
    batches = alone.batches(2 if samples % 2 == 0 else samples)
    parts = [trainer.loss_sum(piece) for piece in batches[0].micro_batches]
    dtype = next((weight.dtype for weight in alone.weights.values() if weight.is_floating_point()), torch.float32)
    if _apart(whole, *parts) > LOSS_LIMIT.get(dtype, 1e-3):
        return (
            f"the loss of a batch of {samples} is {whole:.6g}, but those of its {len(parts)} parts add up to "
            f"{sum(parts):.6g}; loss() must return the sum over samples, not a mean, and neither loss() nor the model "
            "may couple the samples of a batch"
        )
    for batch in batches:
        trainer.step(batch)
    apart = alone.error_of(trainer.full_parameters())
    if apart <= PARITY_LIMIT:
        return None
    return (
        f"the gradient of a batch is not the sum of those of its parts: one device alone, with each batch of {samples} "
        f"in {len(parts)} parts, is {apart:.2g} from itself; what the model runs or trains must not hang on which "
        "samples are in a batch together"
    )


def _misjoined(alone: OneDevice) -> str | None:
    """An output that the strategy does not put together from what devices make of their shares."""
    trainer, outputs = alone.trainer(), list[Any]()
    piece = alone.batches(2 if alone.job.case.global_batch_size % 2 == 0 else 1)[0].micro_batches[0]
    trainer.model.register_forward_hook(lambda module, args, output: outputs.append(output))
    trainer.loss_sum(piece)
    return alone.strategy.join_refusal(alone.missed, outputs[-1], samples_in((piece.args, piece.kwargs)))


def _misread(alone: OneDevice) -> str | None:
    """What the forward reads in a way that the strategy does not allow."""
    trainer, batch = alone.trainer(), alone.batches(1)[0].micro_batches[0]
    blocks = blocks_of(alone.job.workload(), trainer.model)
    return misread(alone.strategy, trainer.model, blocks, lambda: trainer.loss(batch))


def _apart(whole: float, *parts: float) -> float:
    """Relative difference of a loss and the sum of its parts."""
    scale = max(abs(whole), sum(abs(part) for part in parts))
    return abs(whole - sum(parts)) / scale if scale else 0.0


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Equal in every bit that counts; not a number is itself."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _stir(job: Job, number: int) -> None:
    """Bring every global random generator into a state that no training starts from."""
    seed_all(job.seed + number)
