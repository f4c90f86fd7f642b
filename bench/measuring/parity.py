"""Does a strategy train what one device trains? Measured in launches of their own.

Three plain SGD steps (no momentum; AdamW would hide a wrong gradient scale) in IEEE fp32 with
deterministic cuDNN, dropout off and BatchNorm statistics frozen, from the same seed:
`parity_error = ||w - w_ref|| / ||w_ref - w_0||` over all parameters together, since per-tensor
ratios fail on parameters whose true gradient is 0. Right code gives about 1e-6, gradients that
are summed instead of averaged about 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from bench import levers, strategies
from bench.errors import BenchError
from bench.measuring.control import Channel, Message, Plain
from bench.measuring.launch import Clock, LaunchResult, run_launch
from bench.measuring.launcher import Launcher, Session
from bench.measuring.place import Place, training_place
from bench.measuring.step import StepBatch, Trainer, make_batches
from bench.measuring.tasks import Job
from bench.schema import PARITY_LIMIT, Case, Outcome, ParityTrace, Trace

STEPS = 3

Trained: TypeAlias = tuple[dict[str, Tensor], dict[str, Tensor], list[int]]


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
    reference_case = replace(
        case, strategy="single", devices=case.devices[:1], precision="fp32", accumulation_steps=1, settings=()
    )
    with training_place(case, job.backend, channel, job.timeout_seconds) as place:
        channel.reply({})
        next(channel.commands())
        start: Mapping[str, Tensor] = {}
        reference: Mapping[str, Tensor] = {}
        if channel.rank == 0:
            channel.phase("reference")
            alone = Place(devices=place.devices[:1], mesh=None)
            start, reference, _ = _train(replace(job, case=reference_case), alone, rank=0, check_weight=True)
        channel.phase("parity steps")
        _, trained, seen = _train(job, place, rank=channel.rank, check_weight=False)
        compared = _compare(start, reference, trained) if channel.rank == 0 else {}
        channel.reply({**compared, "seen": list(seen), "expected": expected_shares(case)})


def _train(job: Job, place: Place, *, rank: int, check_weight: bool) -> Trained:
    """Parameters before and after the parity steps, whole and on the CPU, and the samples of each forward."""
    case, strategy = job.case, strategies.registry.get(job.case.strategy)
    workload = job.workload()
    levers.set_float32_precision(case.precision)
    trainer = Trainer(
        workload=workload,
        strategy=strategy,
        case=case,
        devices=place.devices,
        mesh=place.mesh,
        optimizer=partial(torch.optim.SGD, lr=workload.parity_learning_rate),
        train=False,
        seed=job.seed,
    )
    start, seen = trainer.full_parameters(), trainer.observe()
    for batch in make_batches(workload, strategy, case, job.source, rank=rank, seed=job.seed, count=STEPS):
        terms = trainer.step(batch)
        if check_weight:
            _check_weight(batch, float(terms[1]), case.workload)
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
    distance = math.sqrt(sum(float((trained[n].double() - w.double()).square().sum()) for n, w in reference.items()))
    path = math.sqrt(sum(float((w.double() - start[n].double()).square().sum()) for n, w in reference.items()))
    if path == 0:
        raise BenchError("no parameter moved on one device; give the workload a loss that depends on its parameters")
    unused: list[Plain] = [name for name, weight in reference.items() if torch.equal(weight, start[name])]
    unmoved: list[Plain] = [
        name for name, weight in trained.items() if torch.equal(weight, start[name]) and name not in unused
    ]
    return {"error": distance / path, "unmoved_parameters": unmoved, "unused_parameters": unused}


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
