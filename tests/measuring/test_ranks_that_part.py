"""FSDP's ranks must do the same: what differs is looked for at the start, at the end, and after a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch.distributed.fsdp import FSDPModule

from bench import levers
from bench.measuring.launch import RoundPlan, may_have_parted, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.parity import parity_case, parity_of
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.schema import PARITY_LIMIT, Outcome
from bench.workloads import Workload
from tests.measuring import parting_models as models
from tests.measuring.support import make_case, make_job

REDUCE_UNUSED = {"reduce_unused_parameters": "on"}
NO_SHARD = {"sharding_strategy": "shard_grad_op"}
reduces_unused = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="this torch cannot reduce unused parameters"
)
EXPERTS = "layers.1.experts.0.weight, layers.1.experts.0.bias, layers.1.experts.1.weight"
STAY = "keep the requires_grad that they were wrapped with"
PENALTY = "rank 0 comes to the backward of everything outside the blocks where rank 1 comes to the end of its forward"
PARTS = "rank 0 comes to the backward of layers.1.inner where rank 1 comes to layers.0.inner"
LATE = "rank 0 comes to the gradients of layers.1 where rank 1 comes to the"


def job_of(cls: type[Workload], strategy: str, settings: dict[str, str], *, parity: bool, seconds: float = 60.0) -> Job:
    case = make_case(strategy, workload=cls.name, settings=settings, data=None)
    job = make_job(parity_case(case) if parity else case, timeout_seconds=seconds)
    return replace(job, address=f"{cls.__module__}:{cls.__name__}")


@pytest.mark.parametrize(
    ("cls", "strategy", "settings", "why", "remedy"),
    [
        (models.TogglesGradients, "fsdp1", {}, f"{STAY}: on rank 0 the forward changes that of layers.1", "in build()"),
        (models.TogglesGradients, "fsdp1", NO_SHARD, "changes that of layers.1", "in build()"),
        (models.FreezesByData, "fsdp1", {}, f"{STAY}: on rank 1 the forward changes that of layers.0", "in build()"),
        (models.FreezesByData, "fsdp", {}, LATE, "find_unused_parameters=on"),
        (models.NoGradientByData, "fsdp", {}, LATE, "find_unused_parameters=on"),
        pytest.param(models.NoGradientByData, "fsdp", REDUCE_UNUSED, LATE, "ddp with find", marks=reduces_unused),
        (models.ExpertsInCheckpoint, "fsdp", {}, EXPERTS, "fsdp:reduce_unused_parameters=on"),
        (models.CheckpointAroundExperts, "fsdp", {}, EXPERTS, "fsdp:reduce_unused_parameters=on"),
        (models.ExpertsOutsideBlocks, "fsdp", {}, "layers.0.experts.0.weight", "fsdp:reduce_unused_parameters=on"),
        (models.StopsByData, "fsdp1", {}, "same blocks a gradient: layers.0 get", "find_unused_parameters=on"),
        (models.StopsByData, "fsdp1", NO_SHARD, "same blocks a gradient: layers.0 get", "find_unused_parameters=on"),
        (models.DetachesInCheckpoint, "fsdp1", {}, PARTS, "find_unused_parameters=on"),
        (models.DetachesInCheckpoint, "fsdp", {}, PARTS, "find_unused_parameters=on"),
        pytest.param(models.DetachesInCheckpoint, "fsdp", REDUCE_UNUSED, PARTS, "use ddp with", marks=reduces_unused),
        (models.CutsByData, "fsdp", {}, LATE, "find_unused_parameters=on"),
        pytest.param(models.CutsByData, "fsdp", REDUCE_UNUSED, LATE, "ddp with find", marks=reduces_unused),
        (models.PenaltyByData, "fsdp", {}, PENALTY, "find_unused_parameters=on"),
        (models.PenaltyByData, "fsdp1", {}, PENALTY, "find_unused_parameters=on"),
        (models.CompiledParts, "fsdp", {}, "rank 0 comes to layers.0 where rank 1 comes to layers.1", "blocks()"),
        (models.CompiledParts, "fsdp1", {}, "rank 0 comes to layers.0 where rank 1 comes to layers.1", "blocks()"),
        (models.ChecksInReentrantlyByData, "fsdp1", {}, "output that needs a gradient: layers.0", "use ddp with"),
    ],
)
def test_is_skipped_with_the_reason(
    launcher: Launcher, cls: type[Workload], strategy: str, settings: dict[str, str], why: str, remedy: str
) -> None:
    outcome = parity_of(launcher, job_of(cls, strategy, settings, parity=True), 2).outcome
    assert outcome.status == "skipped", outcome
    assert why in str(outcome.reason) and remedy in str(outcome.reason)


@pytest.mark.parametrize(
    ("cls", "strategy", "settings"),
    [
        (models.TogglesGradients, "fsdp", {}),
        (models.CheckpointAroundExperts, "fsdp1", {}),
        *((models.ChecksInByData, strategy, {}) for strategy in ("fsdp", "fsdp1")),
        pytest.param(models.ChecksInByData, "fsdp", REDUCE_UNUSED, marks=reduces_unused),
        (models.CompiledWhole, "fsdp1", {}),
        *((models.GivesPairs, strategy, {}) for strategy in ("fsdp", "fsdp1")),
        pytest.param(models.ExpertsInCheckpoint, "fsdp", REDUCE_UNUSED, marks=reduces_unused),
        pytest.param(models.CheckpointAroundExperts, "fsdp", REDUCE_UNUSED, marks=reduces_unused),
    ],
)
def test_trains_what_one_device_trains(
    launcher: Launcher, cls: type[Workload], strategy: str, settings: dict[str, str]
) -> None:
    result = parity_of(launcher, job_of(cls, strategy, settings, parity=True), 2)
    assert result.outcome.status == "ok", result.outcome
    assert result.trace is not None and result.trace.parity is not None
    assert result.trace.parity.error < PARITY_LIMIT / 10


def test_one_device_needs_requires_grad_to_stay_too(launcher: Launcher) -> None:
    job = job_of(models.TogglesGradients, "fsdp1", {}, parity=True)
    alone = replace(job, case=replace(job.case, devices=(0,)))
    assert STAY in str(parity_of(launcher, alone, 1).outcome.reason)


@pytest.mark.parametrize(
    ("cls", "strategy"),
    [(models.PartsLate, "fsdp"), (models.PartsLate, "fsdp1"), (models.UsesAnotherExpertLate, "fsdp")],
)
def test_what_differs_after_the_rounds_is_seen_at_the_end(
    launcher: Launcher, cls: type[Workload], strategy: str
) -> None:
    # Three steps of warm-up and two rounds of one are the same on both ranks: the sixth step is the last look.
    plan = RoundPlan(rounds=2, round_seconds=0, warmup=WarmupRule(tolerance=9, max_rounds=2, max_seconds=1))
    result = time_case(launcher, job_of(cls, strategy, {}, parity=False), 2, plan)
    assert (result.outcome.status, result.outcome.phase) == ("skipped", "a last look"), result.outcome
    assert result.clock.measured_seconds is not None


def test_a_launch_that_hung_is_looked_at_again_step_by_step(launcher: Launcher) -> None:
    plan = RoundPlan(rounds=4, round_seconds=0, warmup=WarmupRule(tolerance=9, max_rounds=3, max_seconds=1))
    outcome = time_case(launcher, job_of(models.PartsLate, "fsdp1", {}, parity=False, seconds=20), 2, plan).outcome
    assert (outcome.status, outcome.phase) == ("skipped", "step 6"), outcome
    assert "rank 0 comes to layers.0 where rank 1 comes to layers.1" in str(outcome.reason)
    assert "this launch, which did not look at it, ended: no result within 20 s" in str(outcome.reason)


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp1"])
def test_layers_left_out_by_chance_are_the_same_on_all_ranks(launcher: Launcher, strategy: str) -> None:
    plan = RoundPlan(rounds=12, round_seconds=0, warmup=WarmupRule(tolerance=9, max_rounds=2, max_seconds=1))
    assert (
        time_case(launcher, job_of(models.LeavesLayersOut, strategy, {}, parity=False), 2, plan).outcome.status == "ok"
    )
    assert parity_of(launcher, job_of(models.LeavesLayersOut, strategy, {}, parity=True), 2).outcome.status == "ok"


@pytest.mark.parametrize(
    ("status", "reason", "may"),
    [
        ("timeout", "no result within 60 s", True),
        ("error", "RuntimeError: Connection reset by peer", True),
        ("error", "rank 1 was ended by SIGABRT", True),
        ("error", "rank 1 was ended by SIGKILL", False),
        ("error", "BenchError: the loss is nan", False),
        ("oom", "RuntimeError: can't allocate memory", False),
    ],
)
def test_only_lost_peers_and_hangs_are_worth_a_second_look(status: str, reason: str, may: bool) -> None:
    outcome = Outcome(status=status, reason=reason)  # type: ignore[arg-type]
    assert may_have_parted(outcome, make_case("fsdp")) is may
    assert may_have_parted(outcome, make_case("fsdp1")) is may
    assert not may_have_parted(outcome, make_case("ddp"))  # its reducer says itself what is missing
    assert not may_have_parted(outcome, make_case("fsdp", devices=(0,)))


@pytest.mark.parametrize(("sync", "status"), [("last", "ok"), ("every", "skipped")])
def test_what_is_reduced_in_every_piece_must_agree_in_every_piece(launcher: Launcher, sync: str, status: str) -> None:
    """Gradients that wait for the last micro-batch may come from different parts before."""
    job = job_of(models.PartsInTheFirstPiece, "fsdp", {}, parity=False)
    case = levers.registry.get("accumulation_sync").apply(replace(job.case, accumulation_steps=2), sync)
    outcome = parity_of(launcher, replace(job, case=parity_case(case)), 2).outcome
    assert outcome.status == status, outcome
    assert status == "ok" or "reduce_unused_parameters=on" in str(outcome.reason)
