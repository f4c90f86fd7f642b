"""A missed parity says whether the model or the strategy is to blame, and what helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.measuring import parity
from bench.measuring.diagnosis import _apart, _same
from bench.measuring.launch import LaunchResult, RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.parity import parity_case, parity_of
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.metrics.parity_error import parity_error
from bench.schema import PARITY_LIMIT, ParityTrace, Trace
from bench.strategies import registry
from bench.workloads import Workload
from tests.measuring import blame_models, own_models, parting_models, planted, rare_models
from tests.measuring.support import make_case, make_job

STRATEGY_TO_BLAME = "this strategy does not train what one device trains"
Task = Callable[..., None]

# The model, and words of the fact and of the remedy.
MODEL_TO_BLAME: list[tuple[type[Workload], str, str, str]] = [
    (blame_models.NanLoss, "single", "the loss is nan on one device too, in step 1", "a logarithm or root of 0"),
    (blame_models.NanLoss, "ddp", "the loss is nan on one device too, in step 1", "a logarithm or root of 0"),
    (blame_models.NanGradient, "ddp", "a gradient is not finite on one device either", "a logarithm or root of 0"),
    (blame_models.UnseededWeights, "ddp", "1 weights differ (head.weight)", "seed every generator of your own"),
    (blame_models.UnseededWeights, "fsdp", "build() is not reproducible", "seed every generator of your own"),
    (blame_models.NumpyExamples, "ddp", "the data is not reproducible: sample 0", "seeded from the index"),
    (blame_models.OneStream, "ddp", "the data is not reproducible: sample 0", "seeded from the index"),
    (blame_models.MeanLoss, "ddp", "those of its 2 parts add up to", "the sum over samples, not a mean"),
    (blame_models.MeanLoss, "fsdp", "those of its 2 parts add up to", "the sum over samples, not a mean"),
    (blame_models.Coupled, "dp", "those of its 2 parts add up to", "couple the samples of a batch"),
    (parting_models.NoGradientByData, "fsdp1", "each batch of 4 in 2 parts, is", "are in a batch together"),
    (rare_models.LimitedWeights, "ddp", "writes the model's own weights (embedding.weight)", "in the optimizer's step"),
    (blame_models.BreaksTheSearch, "ddp", "the search failed", "RuntimeError('built too often')"),
]
RANDOM: list[tuple[type[Workload], str]] = [
    (blame_models.DropsAlways, "ddp"),
    (blame_models.DropsAlways, "fsdp"),
    (blame_models.NumpyNoise, "ddp"),
    (blame_models.OwnGenerator, "ddp"),
]


def job_of(cls: type[Workload], strategy: str, **rest: Any) -> Job:
    job = make_job(parity_case(make_case(strategy, workload=cls.name, data=None)))
    return replace(job, case=replace(job.case, **rest), address=f"{cls.__module__}:{cls.__name__}")


def checked(launcher: Launcher, job: Job) -> LaunchResult:
    return parity_of(launcher, job, registry.get(job.case.strategy).world_size(job.case))


def planted_with(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, task: Task, cls: type[Workload] = own_models.PlainNet
) -> LaunchResult:
    """The check of a strategy that only the workers know, on a model of its own: in float64."""
    monkeypatch.setattr(parity, "check_parity", task)
    job = job_of(cls, "ddp")
    return parity_of(launcher, replace(job, case=replace(job.case, strategy=planted.PLANTED)), 2)


def ids(value: object) -> str | None:
    return value.__name__ if callable(value) and hasattr(value, "__name__") else None


@pytest.mark.parametrize(("cls", "strategy", "fact", "remedy"), MODEL_TO_BLAME, ids=ids)
def test_a_fault_of_the_model_is_told_as_such(
    launcher: Launcher, cls: type[Workload], strategy: str, fact: str, remedy: str
) -> None:
    result = checked(launcher, job_of(cls, strategy))
    assert result.trace is not None and result.trace.parity is not None, result.outcome.traceback
    assert not result.trace.parity.error <= PARITY_LIMIT
    reason = str(result.outcome.reason)
    assert result.outcome.status == "error" and reason.startswith("parity_error ")
    assert fact in reason and remedy in reason and STRATEGY_TO_BLAME not in reason


@pytest.mark.parametrize("strategy", ["dp", "balanced_dp", "fsdp"])
@pytest.mark.parametrize(
    ("cls", "written"),
    [(rare_models.LimitedWeights, "embedding.weight"), (rare_models.MovingAverage, "average.weight, average.bias")],
    ids=ids,
)
def test_weights_that_a_forward_writes_are_lost_by_replicas_and_shards(
    launcher: Launcher, strategy: str, cls: type[Workload], written: str
) -> None:
    outcome = checked(launcher, job_of(cls, strategy)).outcome
    assert (outcome.status, outcome.phase) == ("skipped", "cause of the miss"), outcome
    assert f"writes the model's own weights ({written})" in str(outcome.reason)


def test_outputs_that_join_to_something_else_are_refused(launcher: Launcher) -> None:
    outcome = checked(launcher, job_of(own_models.TimeFirst, "dp")).outcome
    assert (outcome.status, outcome.phase) == ("skipped", "cause of the miss"), outcome
    assert "of 2 it makes the shapes (5, 2, 4)); use dp:loss_on=replica" in str(outcome.reason)


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_a_loss_that_is_no_number_is_an_error_though_nothing_is_missed(launcher: Launcher, strategy: str) -> None:
    result = checked(launcher, job_of(blame_models.InfiniteLoss, strategy))
    assert result.trace is not None and result.trace.parity is not None and result.trace.parity.error <= PARITY_LIMIT
    assert result.outcome.status == "error"
    assert str(result.outcome.reason).startswith("the loss is inf on one device too, in step 1")


def test_weights_that_round_too_much_allow_no_verdict(launcher: Launcher) -> None:
    result = checked(launcher, job_of(blame_models.HalfWeights, "ddp"))
    assert result.outcome.status == "ok" and result.trace is not None and result.trace.parity is not None
    assert result.trace.parity.error > PARITY_LIMIT
    assert "weights of type torch.bfloat16 round more" in str(result.trace.parity.undecided)


@pytest.mark.parametrize(("cls", "strategy"), RANDOM, ids=ids)
def test_a_random_forward_allows_no_verdict(launcher: Launcher, cls: type[Workload], strategy: str) -> None:
    result = checked(launcher, job_of(cls, strategy))
    assert result.outcome.status == "ok", result.outcome
    assert result.trace is not None and result.trace.parity is not None
    assert result.trace.parity.error > PARITY_LIMIT
    assert "the forward draws random numbers" in str(result.trace.parity.undecided)
    (value,) = parity_error(result.trace)
    assert str(value.note).startswith("no verdict: the forward draws random numbers")


def test_a_random_forward_does_not_hide_a_strategy_that_trains_nothing(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = planted_with(launcher, monkeypatch, blame_models.optimizer_before_sharding, blame_models.DropsAlways)
    assert result.outcome.status == "error" and "6 parameters did not move" in str(result.outcome.reason)


@pytest.mark.parametrize("task", [planted.summed_gradients, planted.never_synchronised, planted.not_wrapped], ids=ids)
def test_a_fault_of_the_strategy_is_still_told_as_such(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, task: Task
) -> None:
    result = planted_with(launcher, monkeypatch, task)
    assert result.outcome.status == "error" and STRATEGY_TO_BLAME in str(result.outcome.reason)
    assert result.trace is not None and result.trace.parity is not None and result.trace.parity.double
    assert result.trace.parity.blame is result.trace.parity.undecided is None


@pytest.mark.parametrize("strategy", ["single", "ddp", "dp", "fsdp"])
def test_a_model_that_makes_itself_float32_is_checked_in_float32(launcher: Launcher, strategy: str) -> None:
    result = checked(launcher, job_of(blame_models.CastsItsHead, strategy))
    assert result.outcome.status == "ok", result.outcome
    assert result.trace is not None and result.trace.parity is not None and not result.trace.parity.double


def test_a_strategy_that_fails_in_float64_alone_is_checked_in_float32(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = planted_with(launcher, monkeypatch, blame_models.float32_only)
    assert result.outcome.status == "ok", result.outcome
    assert result.trace is not None and result.trace.parity is not None and not result.trace.parity.double
    assert result.trace.parity.error < PARITY_LIMIT / 10


def test_a_strategy_that_fails_in_both_says_what_it_said_in_float32(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = planted_with(launcher, monkeypatch, blame_models.never_takes).outcome
    assert (outcome.status, outcome.reason) == ("error", "BenchError: no model of torch.float32 is taken")


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (blame_models.LazyNet, "4 parameters of workload lazy_net have no shape yet (0.weight, 0.bias, 2.weight, "),
        (blame_models.NoModule, "build() of workload no_module returns method, not a torch.nn.Module"),
    ],
    ids=ids,
)
def test_what_cannot_be_trained_is_an_error_of_its_own(launcher: Launcher, cls: type[Workload], words: str) -> None:
    job = job_of(cls, "ddp")
    timed = replace(job, case=replace(job.case, purpose="timing"))
    plan = RoundPlan(rounds=1, round_seconds=0.01, warmup=WarmupRule(tolerance=9, max_rounds=2, max_seconds=1))
    for outcome in (checked(launcher, job).outcome, time_case(launcher, timed, 2, plan).outcome):
        assert outcome.status == "error" and str(outcome.reason).startswith(f"BenchError: {words}")


# --- without workers -----------------------------------------------------------------------------


def test_verdict_blames_the_model_before_the_strategy() -> None:
    blamed = parity.verdict(ParityTrace(error=0.5, blame="loss() is a mean", unmoved_parameters=("a",)))
    assert (blamed.status, blamed.reason) == ("error", "parity_error 0.5 is above 0.0001: loss() is a mean")
    assert parity.verdict(ParityTrace(error=0.5, undecided="random")).status == "ok"
    stuck = parity.verdict(ParityTrace(error=0.5, undecided="random", unmoved_parameters=("a",)))
    assert stuck.status == "error" and "1 parameters did not move" in str(stuck.reason)


def test_note_of_a_sample_without_a_verdict_begins_so() -> None:
    trace = Trace(case=make_case("ddp"), parity=ParityTrace(error=0.5, double=True, undecided="it is random"))
    (value,) = parity_error(trace)
    assert str(value.note).startswith("no verdict: it is random; in float64")


def test_difference_of_a_loss_and_its_parts() -> None:
    assert _apart(3.0, 1.0, 2.0) == _apart(0.0, 0.0) == 0.0
    assert _apart(1.0, 1.0, 1.0) == 0.5  # a mean: |1 - 2| / 2
    assert _apart(0.0, 2.0, -2.0) == 0.0 and _apart(1.0, 2.0, -2.0) == 0.25  # parts that cancel: 1 / (2 + 2)


def test_same_tensors() -> None:
    nan = float("nan")
    assert _same(torch.tensor([1.0, nan]), torch.tensor([1.0, nan]))
    assert _same(torch.tensor([True]), torch.tensor([True])) and _same(torch.tensor(3), torch.tensor(3))
    assert not _same(torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]))
    assert not _same(torch.tensor([1.0]), torch.tensor([1.0, 1.0])) and not _same(torch.tensor(3), torch.tensor(3.0))
    assert not _same(None, torch.tensor(3))
