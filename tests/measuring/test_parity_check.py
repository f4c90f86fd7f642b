"""Real two-process gloo runs: every strategy trains what one device trains, and planted faults are caught."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.measuring import parity
from bench.measuring.launcher import Launcher
from bench.measuring.parity import parity_case, parity_of
from bench.schema import PARITY_LIMIT, Case, Outcome, ParityTrace
from bench.strategies import registry
from tests.measuring import planted
from tests.measuring.support import make_case, make_job

WAYS: list[tuple[str, dict[str, str], int]] = [
    ("single", {}, 1),
    ("dp", {}, 1),
    ("dp", {"loss_on": "replica"}, 1),
    ("balanced_dp", {}, 1),
    ("balanced_dp", {"gpu0_bsz": "0"}, 1),
    ("balanced_dp", {"loss_on": "replica"}, 1),
    ("ddp", {}, 1),
    ("ddp", {"static_graph": "on"}, 1),
    ("ddp", {"bucket_cap_mb": "1"}, 1),
    ("fsdp", {}, 1),
    ("fsdp", {"reshard_after_forward": "off"}, 1),
    ("fsdp1", {}, 1),
    ("fsdp1", {"sharding_strategy": "shard_grad_op"}, 1),
    ("fsdp1", {"sharding_strategy": "no_shard"}, 1),
    ("dp", {}, 2),
    ("balanced_dp", {}, 2),
    ("ddp", {}, 2),
    ("fsdp", {}, 2),
    ("fsdp1", {}, 2),
]
Task = Callable[[Any, Any], None]


@pytest.mark.parametrize(("strategy", "settings", "steps"), WAYS, ids=lambda value: str(value))
def test_every_way_of_training_has_parity(
    launcher: Launcher, strategy: str, settings: dict[str, str], steps: int
) -> None:
    case = parity_case(make_case(strategy, settings=settings, accumulation_steps=steps))
    result = parity_of(launcher, make_job(case), registry.get(strategy).world_size(case))
    assert result.outcome == Outcome(status="ok"), result.outcome.traceback
    assert result.trace is not None and result.trace.parity is not None
    assert result.trace.parity.error < PARITY_LIMIT / 5  # right code: about 1e-6
    assert result.trace.parity.unmoved_parameters == result.trace.parity.unused_parameters == ()


def planted_parity(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, task: Task, *, one_process: bool = False
) -> tuple[Outcome, ParityTrace]:
    """The suite's own check and verdict, with the strategy that the task registers in the workers."""
    monkeypatch.setattr(parity, "check_parity", task)
    # The driver knows no planted strategy, so its check is made as that of DDP.
    case = replace(parity_case(make_case("ddp")), strategy=planted.PLANTED)
    result = parity_of(launcher, make_job(case, one_process=one_process), 1 if one_process else 2)
    assert result.trace is not None and result.trace.parity is not None, result.outcome.traceback
    return result.outcome, result.trace.parity


def test_summed_instead_of_averaged_gradients_are_caught(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, found = planted_parity(launcher, monkeypatch, planted.summed_gradients)
    assert found.error > 0.5  # twice the right step, each time
    assert outcome.status == "error"
    assert outcome.reason is not None and re.search(r"parity_error \d\.\d+ is above 0\.0001", outcome.reason)


@pytest.mark.parametrize(
    "task",
    [planted.never_synchronised, planted.not_wrapped, planted.equal_weight_for_unequal_shards],
    ids=lambda task: task.__name__,
)
def test_wrong_gradients_of_two_ranks_are_caught(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, task: Task
) -> None:
    outcome, found = planted_parity(launcher, monkeypatch, task)
    assert outcome.status == "error" and "parity_error" in str(outcome.reason)
    assert found.error > 100 * PARITY_LIMIT


def test_unequal_chunks_with_equal_weight_are_caught(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    task = planted.equal_weight_for_unequal_chunks
    outcome, found = planted_parity(launcher, monkeypatch, task, one_process=True)
    assert outcome.status == "error" and "parity_error" in str(outcome.reason)
    assert found.error > 100 * PARITY_LIMIT


def test_bare_model_that_calls_itself_data_parallel_is_caught(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, found = planted_parity(launcher, monkeypatch, planted.bare_model_called_dp, one_process=True)
    assert found.error == 0.0  # it trains just what one device trains, since it is one
    assert outcome.status == "error"
    # 4 samples over 2 devices, 3 steps
    assert "the devices took [4] samples in 3 forwards, not [2] in 6" in str(outcome.reason)


def test_unequal_shards_weighted_by_their_samples_have_parity(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, found = planted_parity(launcher, monkeypatch, planted.unequal_shards)
    assert outcome.status == "ok" and found.error < PARITY_LIMIT / 5


@pytest.mark.parametrize(
    "task", [planted.optimizer_before_sharding, planted.forward_before_optimizer], ids=lambda task: task.__name__
)
def test_parameters_that_the_optimizer_does_not_reach_are_named(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, task: Task
) -> None:
    outcome, found = planted_parity(launcher, monkeypatch, task)
    layers = ("features.conv1", "features.conv2", "head.fc1", "head.fc2")
    names = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    assert set(found.unmoved_parameters) == names
    assert found.error == pytest.approx(1.0)  # nothing moved: the whole path is missing
    assert outcome.status == "error"
    assert outcome.reason is not None and "8 parameters did not move" in outcome.reason
    assert "features.conv1.weight" in outcome.reason


def test_workload_whose_weight_and_loss_disagree_is_caught(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "check_parity", planted.wrong_weight)
    case = parity_case(make_case("single", workload=planted.PLANTED))
    result = parity_of(launcher, make_job(case), 1)
    assert result.outcome.status == "error"
    # 2 samples a device, declared twice
    assert "declares a weight of 4 for a batch whose loss counts 2" in str(result.outcome.reason)


# --- the verdict, on made-up figures ---------------------------------------------------------------


def verdict(error: float, **rest: Any) -> Outcome:
    return parity.verdict(ParityTrace(error=error, **rest))


def test_verdict_is_drawn_at_the_limit() -> None:
    assert verdict(9.9e-5).status == "ok"
    assert verdict(1.1e-4).status == "error"
    assert verdict(float("nan")).status == "error"


def test_lossy_levers_get_no_verdict_but_must_still_move_every_parameter() -> None:
    assert verdict(0.02, lossy=True).status == "ok"
    stuck = verdict(0.02, lossy=True, unmoved_parameters=("head.fc1.bias",))
    assert stuck.status == "error" and "1 parameters did not move" in str(stuck.reason)
    assert "head.fc1.bias" in str(stuck.reason)


def test_parameters_that_one_device_does_not_move_either_are_no_fault() -> None:
    assert verdict(1e-6, unused_parameters=("pooler.weight",)).status == "ok"


@pytest.mark.parametrize(("strategy", "steps", "batch"), [("single", 1, 2), ("ddp", 1, 4), ("ddp", 3, 12)])
def test_parity_case_has_two_samples_a_device_and_accumulation_step(strategy: str, steps: int, batch: int) -> None:
    case = make_case(strategy, batch=768, accumulation_steps=steps, precision="bf16")
    checked: Case = parity_case(case)
    assert (checked.global_batch_size, checked.purpose) == (batch, "parity")
    assert (checked.strategy, checked.devices, checked.precision) == (case.strategy, case.devices, "bf16")
