"""Does a strategy train what one device trains? Measured in launches of their own.

Three plain SGD steps (no momentum; AdamW would hide a wrong gradient scale) in IEEE fp32 with
deterministic cuDNN, dropout off and BatchNorm statistics frozen, from the same seed:
`parity_error = ||w - w_ref|| / ||w_ref - w_0||` over all parameters together, since per-tensor
ratios fail on parameters whose true gradient is 0. Right code gives about 1e-6, gradients that
are summed instead of averaged about 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import torch
from torch import Tensor

from bench import levers, strategies
from bench.errors import BenchError, RefusedError
from bench.measuring.batches import StepBatch
from bench.measuring.control import Channel, Message, Plain
from bench.measuring.diagnosis import OneDevice, diagnose
from bench.measuring.launch import Clock, LaunchResult, run_launch
from bench.measuring.launcher import Launcher, Session, Task
from bench.measuring.parity_steps import (
    Trained,
    Way,
    choose_way,
    parity_batches,
    parity_trainer,
    reference_case,
    train,
)
from bench.measuring.place import Place, own_devices, training_place
from bench.measuring.tasks import Job, prepare_process
from bench.measuring.trials import case_alone, refused_by_trial
from bench.schema import PARITY_LIMIT, Case, Outcome, ParityTrace, Trace

WAY = "parity_way"
NOISE = 1e-6
"""Gradients and movements below this share of all together are rounding."""

CAUSE = "cause of the miss"
"""The phase in which a miss is looked into: a refusal there holds for the training of every batch size."""
STRATEGY_STEPS = "parity steps"
"""The phase in which a strategy is trained: what fails in it has not failed on one device."""


def parity_case(case: Case) -> Case:
    """The case that checks the training of `case`: the same but for a small fixed batch."""
    per_device = strategies.registry.get(case.strategy).parity_samples_per_device(case)
    batch = per_device * case.num_devices * case.accumulation_steps
    return replace(case, global_batch_size=batch, purpose="parity")


def is_lossy(case: Case) -> bool:
    """A lever or an option of the case changes the arithmetic on purpose: its distance gets no verdict."""
    # Without settings there is no option to look at.
    return levers.is_lossy(case) or (bool(case.settings) and strategies.registry.get(case.strategy).is_lossy(case))


def exact_case(case: Case) -> Case:
    """The same without what is lossy: its training can be judged."""
    return strategies.registry.get(case.strategy).without_loss(levers.without_loss(case))


def check_parity(job: Job, channel: Channel, *, double: bool = True) -> None:
    """Worker task: train the reference on rank 0 and the strategy on all, and reply with the distance.

    double: in float64, where `Way` says so.
    """
    channel.phase("build")
    case = job.case
    prepare_process(job, channel.rank)
    torch.backends.cudnn.deterministic = True
    channel.reply({})
    next(channel.commands())
    alone_job = replace(job, case=reference_case(case))
    alone = Place(devices=own_devices(case, channel.rank)[:1], mesh=None)
    reference: Trained | None = None
    if channel.rank == 0:
        channel.phase("reference")
        # Without a process group: a model that communicates would wait for ranks that do not train.
        way = choose_way(alone_job, alone, double=double and not is_lossy(case))
        reference = train(alone_job, alone, way, rank=0, reference=True)
        channel.store.set(WAY, json.dumps(asdict(way)))
    way = Way(**json.loads(channel.store.get(WAY)))
    channel.phase("process group")
    with training_place(case, job.backend, channel, job.timeout_seconds) as place:
        channel.phase(STRATEGY_STEPS)
        trained = _train(job, place, channel, alone, way)
    compared: Message = {}
    if reference is not None:
        compared = _compare(reference, trained.weights)
        met = compared["error"] <= PARITY_LIMIT and all(map(math.isfinite, reference.losses))  # type: ignore[operator]
        if not is_lossy(case) and not met:
            channel.phase(CAUSE)
            compared = {**compared, **_cause(job, alone_job, alone, way, reference, trained.weights)}
    shares: Message = {"seen": list(trained.seen), "expected": list(trained.expected)}
    channel.reply({**compared, **shares, "double": way.double})


def _train(job: Job, place: Place, channel: Channel, alone: Place, way: Way) -> Trained:
    """Train the strategy; RefusedError where it fails on what one device (`alone`) takes."""
    try:
        return train(job, place, way, rank=channel.rank, reference=False)
    except Exception as error:
        if way.double or job.address is None:  # in float64 it is taken again in float32; the suite's own all take
            raise
        one = replace(job, case=case_alone(job.case))
        reason = refused_by_trial(
            error, job.case, channel, lambda: (parity_trainer(one, alone, way), parity_batches(one, way, rank=0))
        )
        if reason is None:
            raise
        channel.phase(CAUSE)
        raise RefusedError(reason) from error


def _cause(
    checked: Job, job: Job, alone: Place, way: Way, reference: Trained, trained: Mapping[str, Tensor]
) -> Message:
    """What a look at the model says of a miss, see `diagnose`; RefusedError where the strategy cannot take it."""

    def batches(pieces: int) -> list[StepBatch]:
        return parity_batches(replace(job, case=replace(job.case, accumulation_steps=pieces)), way, rank=0)

    found = diagnose(
        OneDevice(
            job=job,
            trainer=partial(parity_trainer, job, alone, way),
            batches=batches,
            losses=reference.losses,
            weights=reference.weights,
            error_of=partial(_error, reference),
            missed=checked.case,
            strategy=strategies.registry.get(checked.case.strategy),
        )
    )
    if "refused" in found:
        raise RefusedError(f"{_miss(_error(reference, trained))}: {found['refused']}")
    moved = any(not torch.equal(weight, reference.start[name]) for name, weight in trained.items())
    # A forward that draws random numbers may leave parts of the model out, but not all of it.
    return {**found, "unmoved_parameters": []} if "undecided" in found and moved else found


def _compare(reference: Trained, trained: Mapping[str, Tensor]) -> Message:
    """The distance, and the parameters that did not move."""
    start, wanted = reference.start, reference.weights
    if trained.keys() != wanted.keys():
        different = sorted(trained.keys() ^ wanted.keys())
        raise BenchError(f"the strategy's parameters are not the model's: {', '.join(different[:4])}")
    path = _distance(wanted, start)
    if path == 0:
        raise BenchError("no parameter moved on one device; give the workload a loss that depends on its parameters")
    unused: list[Plain] = [
        name for name in wanted if name in reference.without_gradient and torch.equal(wanted[name], start[name])
    ]
    unmoved: list[Plain] = [
        name
        for name, weight in trained.items()
        if torch.equal(weight, start[name]) and clearly_moved(start[name], wanted[name], path)
    ]
    return {"error": _error(reference, trained), "unmoved_parameters": unmoved, "unused_parameters": unused}


def _error(reference: Trained, trained: Mapping[str, Tensor]) -> float:
    return _distance(trained, reference.weights) / _distance(reference.weights, reference.start)


def _miss(error: float) -> str:
    return f"parity_error {error:.3g} is above {PARITY_LIMIT:g}"


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((one[n].double() - w.double()).square().sum()) for n, w in other.items()))


def clearly_moved(before: Tensor, after: Tensor, path: float) -> bool:
    """By more than rounding does: it tells a parameter that is not trained from one that hardly moves."""
    if before.numel() == 0 or not before.dtype.is_floating_point:  # whole numbers are not trained
        return False
    moved = (after.double() - before.double()).abs()
    resolved = 4 * torch.finfo(before.dtype).eps * float(before.abs().max())
    return float(moved.norm()) > NOISE * path and float(moved.max()) > resolved


def parity_of(launcher: Launcher, job: Job, world_size: int) -> LaunchResult:
    """Run one parity launch of `job.case` (see `parity_case`); a miss is an error with its figure.

    Where the strategy fails in float64, the result is that of a second launch, in float32: there it may train.
    """
    result = _launch(launcher, check_parity, job, world_size)
    # A kernel of attention may refuse float64 alone.
    ends = ("error", "oom", "skipped") if job.case.setting("attention") else ("error", "oom")
    failed = result.outcome.status in ends and result.outcome.phase == STRATEGY_STEPS
    if result.trace is None and failed and _may_double(job):
        return _launch(launcher, partial(check_parity, double=False), job, world_size)
    return result


def _may_double(job: Job) -> bool:
    return not is_lossy(job.case) and job.workload().parity_learning_rate is None


def _launch(launcher: Launcher, task: Task, job: Job, world_size: int) -> LaunchResult:
    wrong: list[Outcome] = []

    def drive(session: Session, clock: Clock) -> tuple[Trace, None]:
        replies = session.command({"op": "finish"})
        clock.measured_seconds = clock.lap()
        reply = replies[0]
        seen, expected = (
            sorted(int(size) for each in replies for size in each[name])  # type: ignore[union-attr,arg-type]
            for name in ("seen", "expected")
        )
        wrong.extend(wrong_shares(expected, seen))
        parity = ParityTrace(
            error=float(reply["error"]),  # type: ignore[arg-type]
            lossy=is_lossy(job.case),
            double=bool(reply["double"]),
            unmoved_parameters=tuple(reply["unmoved_parameters"]),  # type: ignore[arg-type]
            unused_parameters=tuple(reply["unused_parameters"]),  # type: ignore[arg-type]
            blame=reply.get("blame"),  # type: ignore[arg-type]
            undecided=reply.get("undecided"),  # type: ignore[arg-type]
        )
        return Trace(case=job.case, parity=parity), None

    result = run_launch(launcher, task, job, world_size, drive)
    if result.trace is None or result.trace.parity is None:
        return result
    return replace(result, outcome=wrong[0] if wrong else verdict(result.trace.parity))


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
    """`ok`, or an error that says what was missed, and by whom. Lossy levers and random forwards get no verdict."""
    met, figure = parity.error <= PARITY_LIMIT, _miss(parity.error)
    if parity.blame:
        return Outcome(status="error", reason=parity.blame if met else f"{figure}: {parity.blame}", phase="parity")
    if parity.unmoved_parameters:
        names = ", ".join(parity.unmoved_parameters[:4])
        reason = (
            f"{len(parity.unmoved_parameters)} parameters did not move although one device moves them: {names}; "
            "the optimizer must be built after wrapping, and every rank's gradient must arrive"
        )
        return Outcome(status="error", reason=reason, phase="parity")
    if not parity.lossy and not parity.undecided and not met:
        reason = f"{figure}: this strategy does not train what one device trains; its timings are kept but not ranked"
        return Outcome(status="error", reason=reason, phase="parity")
    return Outcome(status="ok")
