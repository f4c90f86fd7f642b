"""The steps of the parity check: how long they are, in which type, and what one takes of a model for them.

A workload that names no learning rate is checked in float64 with tiny steps instead: in fp32 no
rate suits every model. Of torchvision's untrained classifiers some diverged at rates at which others
drowned in the rounding of their weights, and in resnet18 rounding at the edge of a ReLU grew to 5e-2.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from bench import levers, strategies
from bench.errors import BenchError
from bench.measuring.batches import StepBatch, make_batches, placed, to_device
from bench.measuring.place import Place
from bench.measuring.step import Trainer
from bench.measuring.tasks import Job
from bench.schema import Case
from bench.structure import map_tensors, own_name, samples_in
from bench.workloads import Batch

STEPS = 3
STEP_SHARE = {"float64": 1e-6, "float32": 1e-3}
"""Length of the first step against all weights, where the workload names no rate."""
INIT_SCALE = 2.0**7
"""Of the loss in fp16: a larger one may overflow in a first step, which is then left out."""
NEARLY_ZERO, START_NOISE = 1e-3, 0.02
"""Root mean square of a parameter that holds gradients back, and of what it starts at in the check instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the steps are taken, on one device and by the strategy alike. double: in float64."""

    rate: float
    double: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the parity steps left, whole parameters on the CPU.

    Of the reference only: start; losses, one a step; without_gradient, parameters that the last step left without one
    (a gradient of 0 is one: that of a bias before a softmax is no more).
    """

    weights: Mapping[str, Tensor]
    seen: Sequence[int]
    """Samples of each forward."""
    expected: Sequence[int]
    """What it should be: all that the rank was given, or, with several devices in it, what `chunk_sizes` says."""
    start: Mapping[str, Tensor] = field(default_factory=dict)
    losses: Sequence[float] = ()
    without_gradient: Collection[str] = ()


def reference_case(case: Case) -> Case:
    """One device that takes the same global batch in one piece."""
    return replace(
        case, strategy="single", devices=case.devices[:1], precision="fp32", accumulation_steps=1, settings=()
    )


def choose_way(job: Job, alone: Place, *, double: bool) -> Way:
    """The workload's own rate in fp32; else tiny steps, in float64 if `double` and where the model can."""
    declared = job.workload().parity_learning_rate
    if declared is not None:
        return Way(rate=declared)
    if double:
        with contextlib.suppress(Exception):  # models that name a type: what fails in fp32 too, fails again below
            return _first_rate(job, alone, double=True)
    return _first_rate(job, alone, double=False)


def _first_rate(job: Job, alone: Place, *, double: bool) -> Way:
    """A rate from the first gradient on one device."""
    still = Way(rate=0.0, double=double)
    batch, trainer = parity_batches(job, still, rank=0)[0], parity_trainer(job, alone, still)
    trainer.step(batch)  # moves nothing, and leaves the gradients
    if double and any(p.dtype == torch.float32 for p in trainer.wrapped.parameters()):
        raise BenchError("the forward makes weights float32 again, which tiny steps would drown in")
    pairs = [(p.detach(), p.grad) for p in trainer.wrapped.parameters() if p.grad is not None]
    if double and not all(bool(gradient.to_dense().isfinite().all()) for _, gradient in pairs):
        raise BenchError("a gradient is not finite in float64, as where a mask holds the lowest number of another type")
    return Way(rate=rate_for(pairs, STEP_SHARE["float64" if double else "float32"]), double=double)


def rate_for(pairs: Sequence[tuple[Tensor, Tensor]], share: float) -> float:
    """The rate that makes a first step `share` as long as all weights, from (parameter, gradient) pairs.

    For weights that are all 0 the step is `share` long; without a gradient no rate is better than another.
    """
    weights = math.sqrt(sum(float(w.double().square().sum()) for w, _ in pairs))
    gradients = math.sqrt(sum(float(g.to_dense().double().square().sum()) for _, g in pairs))
    return share * (weights or 1.0) / gradients if gradients > 0 and math.isfinite(gradients) else share


def in_double(batch: StepBatch) -> StepBatch:
    """The batch with its floating tensors in float64."""
    parts = [
        map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, part)
        for part in batch.micro_batches
    ]
    return replace(batch, micro_batches=tuple(parts))


def settle(batch: Batch, model: nn.Module) -> None:
    """Make a new model float64, and let gradients through to every parameter, so that each counts in the check.

    Weights that start at 0 (a head, the end of a residual branch) get seeded noise: in tiny steps they
    would stay small and hold back the gradient of all before them. Every BatchNorm gets the statistics
    of `batch`: at those of a new model (mean 0, variance 1) gradients fade from layer to layer.
    """
    model.double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad and float(weight.square().mean()) < NEARLY_ZERO**2:
                weight.copy_(START_NOISE * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    args, kwargs, _ = to_device(batch, next(model.parameters()).device)
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        model(*args, **kwargs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval()
        norm.momentum = momentum


def parity_batches(job: Job, way: Way, *, rank: int) -> list[StepBatch]:
    """This rank's part of the parity steps' batches."""
    strategy = strategies.registry.get(job.case.strategy)
    made = make_batches(job.workload(), strategy, job.case, job.source, rank=rank, seed=job.seed, count=STEPS)
    return [in_double(batch) for batch in made] if way.double else made


def parity_trainer(job: Job, place: Place, way: Way) -> Trainer:
    """A model to be trained by plain SGD."""
    levers.set_process(job.case)
    prepare = None
    if way.double:
        first, *_ = parity_batches(replace(job, case=reference_case(job.case)), way, rank=0)
        prepare = partial(settle, first.micro_batches[0])
    return Trainer(
        workload=job.workload(),
        strategy=strategies.registry.get(job.case.strategy),
        case=job.case,
        devices=place.devices,
        mesh=place.mesh,
        optimizer=partial(torch.optim.SGD, lr=way.rate),
        train=False,
        prepare=prepare,
        seed=job.seed,
        init_scale=INIT_SCALE,
    )


def train(job: Job, place: Place, way: Way, *, rank: int, reference: bool) -> Trained:
    """Take the parity steps. Of the reference, the workload's weights are checked: they are the same for all."""
    trainer = parity_trainer(job, place, way)
    batches = placed(job.case, parity_batches(job, way, rank=rank), place.devices[0])
    start = trainer.full_parameters() if reference else {}
    seen, losses, expected = trainer.observe(), [], []
    for batch in batches:
        terms = trainer.step(batch)
        expected += _shares(job.case, batch)
        if reference:
            losses.append(float(terms[0]))
            _check_weight(batch, float(terms[1]), job.case.workload)
    if reference and (made := trainer.full_parameters().keys() - start.keys()):
        raise BenchError(f"the first forward makes parameters ({', '.join(sorted(made)[:4])}); make them in build()")
    left_out = [name for name, p in trainer.wrapped.named_parameters() if p.grad is None] if reference else []
    return Trained(
        weights=trainer.full_parameters(),
        seen=seen,
        expected=expected,
        start=start,
        losses=losses,
        without_gradient={own_name(name) for name in left_out},
    )


def _shares(case: Case, batch: StepBatch) -> list[int]:
    strategy = strategies.registry.get(case.strategy)
    if strategy.one_process and case.num_devices > 1:
        return [size for size in strategy.chunk_sizes(case) if size] * len(batch.micro_batches)
    return [samples_in((args, kwargs)) for args, kwargs, _ in batch.micro_batches]


def _check_weight(batch: StepBatch, weight: float, workload: str) -> None:
    if not math.isclose(batch.weight, weight, rel_tol=1e-6):
        raise BenchError(
            f"workload {workload} declares a weight of {batch.weight:g} for a batch whose loss counts {weight:g}; "
            "make Workload.weight and Workload.loss agree"
        )
