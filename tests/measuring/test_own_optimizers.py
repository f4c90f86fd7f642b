"""Optimizers that want whole parameters are skipped where a strategy has none; their own faults stay errors."""

from __future__ import annotations

import pytest

from bench.measuring.launch import time_case
from bench.measuring.launcher import Launcher
from bench.strategies import registry
from bench.workloads import Workload
from tests.measuring import own_optimizers
from tests.measuring.test_refusals import SHORT, ids, job_of


@pytest.mark.parametrize(
    ("cls", "strategy", "why"),
    [
        (
            own_optimizers.WithMuon,
            "fsdp1",
            "takes whole parameters, and not what fsdp1 makes of them (ValueError: Muon only",
        ),
        (own_optimizers.WithAdafactor, "fsdp1", "moves these otherwise than the whole; use ddp, or"),
        (
            own_optimizers.WithFlatSGD,
            "fsdp",
            "the optimizer FlatSGD takes whole parameters, and not what fsdp makes of them",
        ),
        *((own_optimizers.WithStepsInBackward, name, "works in hooks on parameters") for name in ("ddp", "fsdp1")),
        (own_optimizers.DecaysMatrices, "fsdp1", "moves these otherwise than the whole; use ddp, or"),
    ],
    ids=ids,
)
def test_an_optimizer_that_wants_whole_parameters_is_skipped_when_timed(
    launcher: Launcher, cls: type[Workload], strategy: str, why: str
) -> None:
    outcome = time_case(launcher, job_of(cls, strategy, {}, parity=False), 2, SHORT).outcome
    assert outcome.status == "skipped" and why in str(outcome.reason), outcome


@pytest.mark.parametrize(
    ("cls", "strategy"),
    [
        (own_optimizers.WithMuon, "ddp"),
        (own_optimizers.WithMuon, "fsdp"),
        (own_optimizers.WithAdafactor, "dp"),
        (own_optimizers.DecaysMatrices, "fsdp"),
        (own_optimizers.WithStepsInBackward, "dp"),
        (own_optimizers.WithStepsInBackward, "fsdp"),
    ],
    ids=ids,
)
def test_an_optimizer_is_timed_where_it_gets_whole_parameters(
    launcher: Launcher, cls: type[Workload], strategy: str
) -> None:
    job = job_of(cls, strategy, {}, parity=False)
    assert time_case(launcher, job, registry.get(strategy).world_size(job.case), SHORT).outcome.status == "ok"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp1"])
def test_a_fault_of_an_optimizers_second_step_stays_an_error(launcher: Launcher, strategy: str) -> None:
    outcome = time_case(launcher, job_of(own_optimizers.WithTwoSteps, strategy, {}, parity=False), 2, SHORT).outcome
    assert (outcome.status, outcome.reason) == ("error", "ValueError: a fault of the second step"), outcome


def test_an_optimizer_that_needs_a_closure_is_a_fault_of_the_workload(launcher: Launcher) -> None:
    outcome = time_case(launcher, job_of(own_optimizers.WithClosure, "ddp", {}, parity=False), 2, SHORT).outcome
    assert outcome.status == "error" and "BenchError: LBFGS needs a closure" in str(outcome.reason), outcome
