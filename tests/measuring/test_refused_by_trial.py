"""What one device trains and a strategy does not is skipped with torch's words; a fault of one rank stays an error."""

from __future__ import annotations

import pytest

from bench.measuring.launch import time_case
from bench.measuring.launcher import Launcher
from bench.schema import PARITY_LIMIT
from bench.workloads import Workload
from tests.measuring import own_models, parting_models
from tests.measuring import peculiar_models as models
from tests.measuring.test_refusals import SHORT, checked, ids, job_of

ONE_DEVICE = "one device takes these steps, {} does not ({}"
KEPT = "reads head.weight from a place of its own"


@pytest.mark.parametrize(
    ("cls", "strategy", "why"),
    [
        (models.JaggedInput, "dp", "RuntimeError: split_with_sizes()"),
        (models.NestedInput, "balanced_dp", "RuntimeError: "),
        (models.SparseInput, "dp", "NotImplementedError: Could not run 'aten::as_strided'"),
        (models.SparseOutput, "balanced_dp", "NotImplementedError: Could not run 'aten::as_strided'"),
        (models.HarmlessOddities, "dp", "NotImplementedError: Could not run 'aten::as_strided'"),
    ],
    ids=ids,
)
def test_what_only_torchs_error_tells_is_skipped_with_its_words(
    launcher: Launcher, cls: type[Workload], strategy: str, why: str
) -> None:
    outcome = checked(launcher, job_of(cls, strategy, {})).outcome
    assert (outcome.status, outcome.phase) == ("skipped", "cause of the miss"), outcome
    assert ONE_DEVICE.format(strategy, why) in str(outcome.reason)
    assert len(str(outcome.reason)) < 300 and "\n" not in str(outcome.reason)
    assert "Traceback" in str(outcome.traceback)


@pytest.mark.parametrize(
    ("cls", "strategy"),
    [
        *((cls, name) for cls in (models.JaggedInput, models.NestedInput) for name in ("single", "ddp", "fsdp")),
        *((models.SparseInput, name) for name in ("ddp", "fsdp1")),
        *((models.SparseOutput, name) for name in ("ddp", "fsdp", "fsdp1")),
        *((models.ListsItsWeights, name) for name in ("ddp", "dp")),
        *((models.WritesToAList, name) for name in ("ddp", "fsdp1")),
        *((models.CountsItsBlocks, name) for name in ("ddp", "fsdp", "fsdp1")),
        *((models.WritesInPlace, name) for name in ("ddp", "fsdp1")),
        *((models.TogglesGradients, name) for name in ("ddp", "fsdp")),
        *((own_models.SparseGradients, name) for name in ("dp", "balanced_dp")),
        *((models.PackedOutput, name) for name in ("ddp", "fsdp", "fsdp1")),
        *((models.WholeNumbers, name) for name in ("single", "dp", "ddp")),
    ],
    ids=ids,
)
def test_what_strategies_take_trains(launcher: Launcher, cls: type[Workload], strategy: str) -> None:
    result = checked(launcher, job_of(cls, strategy, {}))
    assert result.outcome.status == "ok", result.outcome
    assert result.trace is not None and result.trace.parity is not None
    assert result.trace.parity.error < PARITY_LIMIT / 10


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp1"])
def test_a_list_of_weights_that_shards_leave_behind_is_named(launcher: Launcher, strategy: str) -> None:
    outcome = checked(launcher, job_of(models.ListsItsWeights, strategy, {})).outcome
    assert outcome.status == "skipped" and KEPT in str(outcome.reason), outcome


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp1"])
@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (models.RaisesOnRank, "RuntimeError: a fault of rank 1"),
        (models.MissesAKeyOnRank, "KeyError: 1"),
        (models.MissesAFile, "FileNotFoundError: "),
    ],
    ids=ids,
)
def test_a_fault_of_one_rank_stays_an_error(launcher: Launcher, strategy: str, cls: type[Workload], said: str) -> None:
    outcome = checked(launcher, job_of(cls, strategy, {})).outcome
    assert outcome.status == "error" and str(outcome.reason).startswith(said), outcome
    assert outcome.phase == "parity steps"


def test_freezing_in_the_forward_is_lost_on_replicas(launcher: Launcher) -> None:
    outcome = checked(launcher, job_of(models.TogglesGradients, "dp", {})).outcome
    assert outcome.status == "skipped" and "reads the model's own parameters()" in str(outcome.reason), outcome


def test_shards_that_differ_from_rank_to_rank_are_looked_at_on_each(launcher: Launcher) -> None:
    outcome = checked(launcher, job_of(models.ScaledByAGain, "fsdp1", {})).outcome
    assert outcome.status == "skipped", outcome
    assert "reads layers.0.gain while its block does not run" in str(outcome.reason)


def test_packed_sequences_are_not_gathered(launcher: Launcher) -> None:
    outcome = checked(launcher, job_of(models.PackedOutput, "dp", {})).outcome
    assert outcome.status == "skipped", outcome
    assert "cannot gather an output of type PackedSequence" in str(outcome.reason)
    assert checked(launcher, job_of(models.PackedOutput, "dp", {"loss_on": "replica"})).outcome.status == "ok"


@pytest.mark.parametrize("strategy", ["dp", "ddp", "fsdp"])
def test_a_model_of_one_batch_size_is_a_fault_on_any_device(launcher: Launcher, strategy: str) -> None:
    outcome = checked(launcher, job_of(models.FixedBatch, strategy, {})).outcome
    assert outcome.status == "error" and "shape '[4, 8]' is invalid" in str(outcome.reason), outcome


def test_what_fails_in_training_mode_alone_is_tried_when_timed(launcher: Launcher) -> None:
    assert checked(launcher, job_of(models.SparseInTraining, "dp", {})).outcome.status == "ok"
    outcome = time_case(launcher, job_of(models.SparseInTraining, "dp", {}, parity=False), 1, SHORT).outcome
    assert (outcome.status, outcome.phase) == ("skipped", "warm-up"), outcome
    assert ONE_DEVICE.format("dp", "NotImplementedError") in str(outcome.reason)


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (models.WritesToAList, "a block writes to a list, a dictionary or another container"),
        (models.WritesInPlace, "a block writes to its input in place, which FSDP2 hands it as a view"),
    ],
    ids=ids,
)
def test_what_fsdp2_does_to_inputs_of_blocks_is_told(launcher: Launcher, cls: type[Workload], why: str) -> None:
    outcome = checked(launcher, job_of(cls, "fsdp", {})).outcome
    assert outcome.status == "skipped" and why in str(outcome.reason), outcome


@pytest.mark.parametrize("strategy", ["dp", "balanced_dp", "ddp"])
def test_statistics_of_each_batch_are_blamed_on_the_model(launcher: Launcher, strategy: str) -> None:
    outcome = checked(launcher, job_of(models.BatchStatistics, strategy, {})).outcome
    assert outcome.status == "error" and "couple the samples of a batch" in str(outcome.reason), outcome


def test_ddp_names_its_parameters_where_a_forward_freezes_some(launcher: Launcher) -> None:
    outcome = checked(launcher, job_of(models.FreezesInForward, "ddp", {})).outcome
    assert outcome.status == "skipped", outcome
    assert "(layers.0.0.weight, layers.0.0.bias, spare.weight, spare.bias)" in str(outcome.reason)


def test_a_backward_that_gives_no_gradient_on_one_rank_is_seen(launcher: Launcher) -> None:
    outcome = checked(launcher, job_of(parting_models.GivesNoneByData, "fsdp", {})).outcome
    assert outcome.status == "skipped", outcome
    assert "layers.1.scale get one on rank 0 or on rank 1" in str(outcome.reason)
