"""Does a strategy train what one device trains? Measured in launches of their own.

Three plain SGD steps (no momentum; AdamW would hide a wrong gradient scale) in IEEE fp32 with
deterministic cuDNN, dropout off and BatchNorm statistics frozen, from the same seed:
`parity_error = ||w - w_ref|| / ||w_ref - w_0||` over all parameters together, since per-tensor
ratios fail on parameters whose true gradient is 0. Right code gives about 1e-6, gradients that
are summed instead of averaged about 1.

A workload that names no learning rate is checked in float64 with tiny steps instead: in fp32 no
rate suits every model. Of torchvision's untrained classifiers some diverged at rates at which others
drowned in the rounding of their weights, and in resnet18 rounding at the edge of a ReLU grew to 5e-2.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from bench import levers, strategies
from bench.errors import BenchError
from bench.measuring.control import Channel, Message, Plain
from bench.measuring.launch import Clock, LaunchResult, run_launch
from bench.measuring.launcher import Launcher, Session
from bench.measuring.place import Place, training_place
from bench.measuring.step import StepBatch, Trainer, make_batches, to_device
from bench.measuring.tasks import Job
from bench.schema import PARITY_LIMIT, Case, Outcome, ParityTrace, Trace
from bench.structure import map_tensors
from bench.workloads import Batch

STEPS = 3
STEP_SHARE = {"float64": 1e-6, "float32": 1e-3}
"""Length of the first step against all weights, where the workload names no rate."""
NEARLY_ZERO, START_NOISE = 1e-3, 0.02
"""Root mean square of a parameter that holds gradients back, and of what it starts at in the check instead."""
WAY = "parity_way"
NOISE = 1e-6
"""Gradients and movements below this share of all together are rounding."""

Trained: TypeAlias = tuple[dict[str, Tensor], dict[str, Tensor], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the steps are taken, on one device and by the strategy alike. double: in float64."""

    rate: float
    double: bool = False


def parity_case(case: Case) -> Case:
    """The case that checks the training of `case`: the same but for a small fixed batch."""
    per_device = strategies.registry.get(case.strategy).parity_samples_per_device(case)
    batch = per_device * case.num_devices * case.accumulation_steps
    return replace(case, global_batch_size=batch, purpose="parity")


def check_parity(job: Job, channel: Channel) -> None:
    """Worker task: train the reference on rank 0 and the strategy on all, and reply with the distance."""
    channel.phase("build")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    case = job.case
    with training_place(case, job.backend, channel, job.timeout_seconds) as place:
        channel.reply({})
        next(channel.commands())
        start: Mapping[str, Tensor] = {}
        reference: Mapping[str, Tensor] = {}
        if channel.rank == 0:
            channel.phase("reference")
            alone, alone_job = Place(devices=place.devices[:1], mesh=None), replace(job, case=_reference_case(case))
            way = _way(alone_job, alone, lossy=levers.lossy(case))
            start, reference, _ = _train(alone_job, alone, way, rank=0, reference=True)
            channel.store.set(WAY, json.dumps(asdict(way)))
        channel.phase("parity steps")
        way = Way(**json.loads(channel.store.get(WAY)))
        _, trained, seen = _train(job, place, way, rank=channel.rank, reference=False)
        compared = _compare(start, reference, trained) if channel.rank == 0 else {}
        channel.reply({**compared, "double": way.double, "seen": list(seen), "expected": expected_shares(case)})


def _reference_case(case: Case) -> Case:
    """One device that takes the same global batch in one piece."""
    return replace(
        case, strategy="single", devices=case.devices[:1], precision="fp32", accumulation_steps=1, settings=()
    )


def _way(job: Job, alone: Place, *, lossy: bool) -> Way:
    """The workload's own rate in fp32; else tiny steps, in float64 where the model and the levers can."""
    declared = job.workload().parity_learning_rate
    if declared is not None:
        return Way(rate=declared)
    if not lossy:
        with contextlib.suppress(Exception):  # models that name a type: what fails in fp32 too, fails again below
            return _first_rate(job, alone, double=True)
    return _first_rate(job, alone, double=False)


def _first_rate(job: Job, alone: Place, *, double: bool) -> Way:
    """A rate from the first gradient on one device."""
    trainer, (batch, *_) = _trainer(job, alone, Way(rate=0.0, double=double), rank=0)
    trainer.step(batch)  # moves nothing, and leaves the gradients
    pairs = [(p.detach(), p.grad) for p in trainer.wrapped.parameters() if p.grad is not None]
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


def _trainer(job: Job, place: Place, way: Way, *, rank: int) -> tuple[Trainer, list[StepBatch]]:
    """A model to be trained by plain SGD, and its batches."""
    case, strategy, workload = job.case, strategies.registry.get(job.case.strategy), job.workload()
    levers.set_float32_precision(case.precision)
    batches = make_batches(workload, strategy, case, job.source, rank=rank, seed=job.seed, count=STEPS)
    prepare = None
    if way.double:
        single, whole = strategies.registry.get("single"), _reference_case(case)
        (first,) = make_batches(workload, single, whole, job.source, rank=0, seed=job.seed, count=1)
        prepare = partial(settle, in_double(first).micro_batches[0])
        batches = [in_double(batch) for batch in batches]
    trainer = Trainer(
        workload=workload,
        strategy=strategy,
        case=case,
        devices=place.devices,
        mesh=place.mesh,
        optimizer=partial(torch.optim.SGD, lr=way.rate),
        train=False,
        prepare=prepare,
        seed=job.seed,
    )
    return trainer, batches


def _train(job: Job, place: Place, way: Way, *, rank: int, reference: bool) -> Trained:
    """Parameters before and after the parity steps, whole and on the CPU, and the samples of each forward.

    Only the reference has those before, and its workload's weights checked: they are the same for all.
    """
    trainer, batches = _trainer(job, place, way, rank=rank)
    start = trainer.full_parameters() if reference else {}
    seen = trainer.observe()
    for batch in batches:
        terms = trainer.step(batch)
        if reference:
            _check_weight(batch, float(terms[1]), job.case.workload)
    return start, trainer.full_parameters(), seen


def _check_weight(batch: StepBatch, weight: float, workload: str) -> None:
    if not math.isclose(batch.weight, weight, rel_tol=1e-6):
        raise BenchError(
            f"workload {workload} declares a weight of {batch.weight:g} for a batch whose loss counts {weight:g}; "
            "make Workload.weight and Workload.loss agree"
        )


def _compare(start: Mapping[str, Tensor], reference: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> Message:
    """The distance, and the parameters that did not move."""
    if trained.keys() != reference.keys():
        different = sorted(trained.keys() ^ reference.keys())
        raise BenchError(f"the strategy's parameters are not the model's: {', '.join(different[:4])}")
    apart = math.sqrt(sum(float((trained[n].double() - w.double()).square().sum()) for n, w in reference.items()))
    path = math.sqrt(sum(float((w.double() - start[n].double()).square().sum()) for n, w in reference.items()))
    if path == 0:
        raise BenchError("no parameter moved on one device; give the workload a loss that depends on its parameters")
    unused: list[Plain] = [name for name, weight in reference.items() if torch.equal(weight, start[name])]
    unmoved: list[Plain] = [
        name
        for name, weight in trained.items()
        if torch.equal(weight, start[name]) and clearly_moved(start[name], reference[name], path)
    ]
    return {"error": apart / path, "unmoved_parameters": unmoved, "unused_parameters": unused}


def clearly_moved(before: Tensor, after: Tensor, path: float) -> bool:
    """By more than rounding does: it tells a parameter that is not trained from one that hardly moves."""
    moved = (after.double() - before.double()).abs()
    resolved = 4 * torch.finfo(before.dtype).eps * float(before.abs().max())
    return float(moved.norm()) > NOISE * path and float(moved.max()) > resolved


def parity_of(launcher: Launcher, job: Job, world_size: int) -> LaunchResult:
    """Run one parity launch of `job.case` (see `parity_case`); a miss is an error with its figure."""

    wrong: list[Outcome] = []

    def drive(session: Session, clock: Clock) -> tuple[Trace, None]:
        replies = session.command({"op": "finish"})
        clock.measured_seconds = clock.lap()
        reply = replies[0]
        seen = sorted(int(size) for each in replies for size in each["seen"])  # type: ignore[union-attr,arg-type]
        wrong.extend(wrong_shares(reply["expected"], seen))  # type: ignore[arg-type]
        parity = ParityTrace(
            error=float(reply["error"]),  # type: ignore[arg-type]
            lossy=levers.lossy(job.case),
            double=bool(reply["double"]),
            unmoved_parameters=tuple(reply["unmoved_parameters"]),  # type: ignore[arg-type]
            unused_parameters=tuple(reply["unused_parameters"]),  # type: ignore[arg-type]
        )
        return Trace(case=job.case, parity=parity), None

    result = run_launch(launcher, check_parity, job, world_size, drive)
    if result.trace is None or result.trace.parity is None:
        return result
    return replace(result, outcome=wrong[0] if wrong else verdict(result.trace.parity))


def expected_shares(case: Case) -> list[Plain]:
    """Samples of every forward of the parity steps, over all devices, sorted: what `chunk_sizes` says."""
    per_micro_batch = [size for size in strategies.registry.get(case.strategy).chunk_sizes(case) if size]
    return list(sorted(per_micro_batch * STEPS * case.accumulation_steps))


def wrong_shares(expected: Sequence[int], seen: Sequence[int]) -> list[Outcome]:
    """An error where the devices did not take the samples that the row says: a row called dp is data parallel."""
    if list(seen) == list(expected):
        return []
    reason = (
        f"the devices took {sorted(set(seen))} samples in {len(seen)} forwards, not {sorted(set(expected))} in "
        f"{len(expected)}: this strategy does not split the batch as chunk_sizes says"
    )
    return [Outcome(status="error", reason=reason, phase="parity")]


def verdict(parity: ParityTrace) -> Outcome:
    """`ok`, or an error that says what was missed. Lossy levers are reported without a verdict."""
    if parity.unmoved_parameters:
        names = ", ".join(parity.unmoved_parameters[:4])
        reason = (
            f"{len(parity.unmoved_parameters)} parameters did not move although one device moves them: {names}; "
            "the optimizer must be built after wrapping, and every rank's gradient must arrive"
        )
        return Outcome(status="error", reason=reason, phase="parity")
    if not parity.lossy and not parity.error <= PARITY_LIMIT:
        reason = (
            f"parity_error {parity.error:.3g} is above {PARITY_LIMIT:g}: this strategy does not train what one device "
            "trains; its timings are kept but not ranked"
        )
        return Outcome(status="error", reason=reason, phase="parity")
    return Outcome(status="ok")
