"""Every lever and option that a CPU can honour, in real launches of ddp and fsdp: it trains the same, and is timed.

What is asked for comes from the declarations: a new value is tested without a word here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import levers
from bench.levers import Abilities
from bench.measuring.launch import LaunchResult, RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.parity import is_lossy, parity_case, parity_of
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.schema import PARITY_LIMIT, Case
from bench.strategies import registry
from tests.measuring import lever_models
from tests.measuring.support import make_case, make_job

SHORT = RoundPlan(rounds=1, round_seconds=1e-6, warmup=WarmupRule(least_rounds=4, max_rounds=4, max_seconds=1.0))
WAYS = ("ddp", "fsdp")
SLOW = {"compile"}
"""Compiling takes minutes of a small machine."""


def numbers(least: int, default: str) -> list[str]:
    return [str(number) for number in (least, least + 1, least + 2) if str(number) != default][:2]


def asked() -> Iterator[Any]:
    """(strategy, levers, options) of every single change."""
    for strategy in WAYS:
        yield pytest.param(strategy, {}, {}, id=f"{strategy}-plain")
        for lever in levers.registry:
            for value in [
                text for text in lever.values or numbers(lever.least, lever.default) if text != lever.default
            ]:
                more = {"accumulation_steps": "2"} if lever.name == "accumulation_sync" else {}
                marks = [pytest.mark.slow] if lever.name in SLOW else []
                yield pytest.param(
                    strategy, {lever.name: value, **more}, {}, id=f"{strategy}-{lever.name}={value}", marks=marks
                )
    for strategy in ("zero1", "fsdp1"):
        yield pytest.param(strategy, {"precision": "fp16"}, {}, id=f"{strategy}-precision=fp16")
        yield pytest.param(strategy, {"checkpoint_every": "1"}, {}, id=f"{strategy}-checkpoint_every=1")
    for strategy in (*WAYS, "fsdp1"):
        for option in registry.get(strategy).options:
            for value in [text for text in option.values or numbers(max(1, option.least), option.default)]:
                if value != option.default:
                    yield pytest.param(strategy, {}, {option.name: value}, id=f"{strategy}:{option.name}={value}")


TOGETHER = [
    ("ddp", {"precision": "bf16", "accumulation_steps": "2", "accumulation_sync": "every", "checkpoint_every": "2",
             "optimizer_kernel": "fused", "channels_last": "on", "attention": "flash", "data_placement": "resident"},
     {"comm_hook": "bf16", "gradient_as_bucket_view": "off"}),
    ("fsdp", {"accumulation_steps": "2", "checkpoint_every": "1", "optimizer_kernel": "fused", "attention": "math",
              "data_placement": "resident"}, {"prefetch": "1", "shard_group": "1", "reshard_after_forward": "off"}),
    ("zero1", {"accumulation_steps": "2", "checkpoint_every": "1", "optimizer_kernel": "foreach",
               "channels_last": "on"}, {}),
]  # fmt: skip
COMPILED = [
    ("ddp", {"compile": "blocks", "checkpoint_every": "1", "accumulation_steps": "2"}, {}),
    ("fsdp", {"compile": "blocks", "checkpoint_every": "1", "precision": "bf16"}, {"prefetch": "1"}),
    ("fsdp1", {"compile": "model"}, {}),
    ("zero1", {"compile": "model"}, {}),
    ("single", {"compile": "model", "channels_last": "on"}, {}),
]


def case_of(strategy: str, values: dict[str, str], options: dict[str, str], **rest: Any) -> Case:
    case = make_case(strategy, batch=12, workload="everything", data=None, settings=options, **rest)
    for name, value in values.items():
        case = levers.registry.get(name).apply(case, value)
    return case


def job_of(case: Case, compiled: Path, workload: str = "Everything") -> Job:
    job = make_job(case, timeout_seconds=240.0)
    return replace(job, address=f"{lever_models.__name__}:{workload}", compiled=str(compiled))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


def has_parity(launcher: Launcher, case: Case, job: Job) -> None:
    checked = parity_of(launcher, replace(job, case=parity_case(case)), registry.get(case.strategy).world_size(case))
    assert checked.outcome.status == "ok", checked.outcome
    assert checked.trace is not None and checked.trace.parity is not None
    parity = checked.trace.parity
    assert parity.lossy is is_lossy(case) and parity.unmoved_parameters == ()
    assert 0 < parity.error < 1 if parity.lossy else parity.error < PARITY_LIMIT / 5


def timed(launcher: Launcher, case: Case, job: Job) -> LaunchResult:
    """With the workload's own optimizer, in training mode."""
    result = time_case(launcher, replace(job, case=case), registry.get(case.strategy).world_size(case), SHORT)
    assert result.outcome.status == "ok", result.outcome
    return result


def trains_the_same(launcher: Launcher, case: Case, job: Job) -> LaunchResult:
    has_parity(launcher, case, job)
    return timed(launcher, case, job)


@pytest.mark.parametrize(("strategy", "values", "options"), list(asked()))
def test_each_alone(
    launcher: Launcher, compiled: Path, strategy: str, values: dict[str, str], options: dict[str, str]
) -> None:
    case = case_of(strategy, values, options)
    impossible = registry.get(strategy).unsupported(case) or levers.unsupported(case, Abilities())
    if impossible is not None:
        pytest.skip(impossible)  # with its reason, as in a run
    # FSDP2 casts what BatchNorm counts with, and refuses it: see the test below.
    workload = "WithoutBatchNorm" if "mixed_precision" in options else "Everything"
    job = job_of(case, compiled, workload)
    has_parity(launcher, case, job)
    if values:
        timed(launcher, case, job)


@pytest.mark.parametrize(("strategy", "values", "options"), TOGETHER, ids=lambda value: str(value)[:20])
def test_many_together(
    launcher: Launcher, compiled: Path, strategy: str, values: dict[str, str], options: dict[str, str]
) -> None:
    case = case_of(strategy, values, options)
    trains_the_same(launcher, case, job_of(case, compiled))


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "values", "options"), COMPILED, ids=lambda value: str(value)[:20])
def test_compiled_with_others(
    launcher: Launcher, compiled: Path, strategy: str, values: dict[str, str], options: dict[str, str]
) -> None:
    case = case_of(strategy, values, options)
    result = trains_the_same(launcher, case, job_of(case, compiled))
    assert result.trace is not None and result.trace.warmup_round_seconds[0] > result.trace.round_seconds[0]


@pytest.mark.parametrize(
    ("strategy", "values", "options", "words"),
    [
        ("fsdp", {"attention": "math"}, {}, "does not call"),
        ("ddp", {"channels_last": "on"}, {}, "the model has none"),
        ("ddp", {"checkpoint_every": "1"}, {}, "names none"),
        ("fsdp", {}, {"prefetch": "1"}, "names fewer than two"),
    ],
)
def test_a_lever_without_anything_to_act_on_is_skipped_with_the_reason(
    launcher: Launcher, compiled: Path, strategy: str, values: dict[str, str], options: dict[str, str], words: str
) -> None:
    case = case_of(strategy, values, options)
    result = time_case(launcher, job_of(case, compiled, "Plain"), 2, SHORT)
    assert result.outcome.status == "skipped" and words in str(result.outcome.reason)


def test_mixed_precision_of_fsdp_refuses_a_batch_norm(launcher: Launcher, compiled: Path) -> None:
    case = case_of("fsdp", {}, {"mixed_precision": "bf16"})
    result = time_case(launcher, job_of(case, compiled), 2, SHORT)
    assert result.outcome.status == "skipped" and "--precision bf16" in str(result.outcome.reason)


def test_hybrid_sharding_over_two_groups_of_two(launcher: Launcher, compiled: Path) -> None:
    plain, hybrid = (
        case_of("fsdp", {}, options, devices=(0, 1, 2, 3)) for options in ({}, {"shard_group": "2"})
    )  # fmt: skip
    moved = []
    for case in (plain, hybrid):
        result = trains_the_same(launcher, case, job_of(case, compiled))
        assert result.trace is not None
        moved.append([device.communication_bytes for device in result.trace.devices])
    # Groups gather and scatter half as much each, and all-reduce what they have: other bytes, the same on every rank.
    assert len({*moved[0]}) == len({*moved[1]}) == 1 and moved[0] != moved[1]


def test_what_is_communicated_is_what_a_lever_says_it_changes(launcher: Launcher, compiled: Path) -> None:
    def moved(strategy: str, values: dict[str, str], options: dict[str, str]) -> int:
        case = case_of(strategy, values, options)
        result = time_case(launcher, job_of(case, compiled), 2, SHORT)
        assert result.trace is not None and (found := result.trace.devices[0].communication_bytes) is not None
        return found

    # Of the small model: 6,404 parameters, and 33 numbers in buffers (2 x 16 of 4 bytes, a counter of 8).
    parameters, buffers = 4 * 6404, 4 * 32 + 8
    assert moved("ddp", {}, {}) == parameters + buffers
    assert moved("ddp", {"precision": "bf16"}, {}) == parameters + buffers
    assert moved("ddp", {}, {"comm_hook": "bf16"}) == parameters // 2 + buffers
    assert moved("ddp", {"accumulation_steps": "2"}, {}) == parameters + buffers
    assert moved("zero1", {}, {}) == 2 * parameters + buffers
    every = moved("ddp", {"accumulation_steps": "2", "accumulation_sync": "every"}, {})
    assert every == 2 * (parameters + buffers)
