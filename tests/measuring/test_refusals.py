"""What a strategy cannot take is skipped with the reason, what it can take trains right, and a fault is an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel.scatter_gather import gather

from bench.measuring.causes import first_cause
from bench.measuring.control import Failure
from bench.measuring.launch import LaunchResult, RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.parity import parity_case, parity_of
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.schema import PARITY_LIMIT
from bench.strategies import registry
from bench.workloads import Workload
from tests.measuring import odd_models, own_models, rare_models
from tests.measuring.support import make_case, make_job

ON_REPLICA = {"loss_on": "replica"}
FIND_UNUSED = {"find_unused_parameters": "on"}
STATIC = {"static_graph": "on"}
REDUCE_UNUSED = {"reduce_unused_parameters": "on"}
reduces_unused = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="this torch cannot reduce unused parameters"
)
SHORT = RoundPlan(rounds=1, round_seconds=0.01, warmup=WarmupRule(tolerance=9, max_rounds=2, max_seconds=1))

# What trains, although somebody might expect that it does not.
TAKEN: list[tuple[type[Workload], str, dict[str, str]]] = [
    *((rare_models.GraphNodes, name, {}) for name in ("single", "ddp", "fsdp")),
    *((rare_models.PackedInput, name, {}) for name in ("single", "ddp")),
    *((rare_models.DefaultDictOutput, name, {}) for name in ("dp", "fsdp", "fsdp1")),
    *((rare_models.Communicates, name, {}) for name in ("single", "ddp", "fsdp")),
    *((rare_models.ReturnsNothing, name, {}) for name in ("single", "dp", "ddp", "fsdp", "fsdp1")),
    *((rare_models.EmptyParameter, name, {}) for name in ("single", "dp", "ddp")),
    *((rare_models.HookOnParameter, name, {}) for name in ("dp", "ddp")),
    (rare_models.StacksParameters, "ddp", {}),
    *((own_models.KeywordOnly, name, {}) for name in ("dp", "balanced_dp", "ddp", "fsdp", "fsdp1")),
    *((own_models.TiedWeights, name, {}) for name in ("dp", "ddp", "fsdp", "fsdp1")),
    *((own_models.DataclassOutput, name, {}) for name in ("ddp", "fsdp", "fsdp1")),
    (own_models.DataclassOutput, "dp", ON_REPLICA),
    (own_models.DataclassOutput, "balanced_dp", ON_REPLICA),
    (own_models.DataclassOutput, "ddp", STATIC),
    (own_models.OpaqueOutput, "dp", ON_REPLICA),
    (own_models.OpaqueOutput, "ddp", {}),
    *((own_models.UnusedParameters, name, {}) for name in ("dp", "fsdp", "fsdp1")),
    (own_models.UnusedParameters, "ddp", FIND_UNUSED),
    (own_models.UnusedParameters, "ddp", STATIC),
    (own_models.UsedTwice, "ddp", STATIC),
    (own_models.SparseGradients, "ddp", {}),
    *((own_models.Normalised, name, {}) for name in ("dp", "ddp", "fsdp")),
    *((own_models.SparseExperts, name, {}) for name in ("dp", "balanced_dp", "fsdp1")),
    (own_models.SparseExperts, "ddp", FIND_UNUSED),
    pytest.param(own_models.SparseExperts, "fsdp", REDUCE_UNUSED, marks=reduces_unused),
    (own_models.SkipsLayersOfTheRoot, "fsdp1", {}),
    *((own_models.OwnMeanLoss, name, {}) for name in ("dp", "ddp", "fsdp", "fsdp1")),
    (own_models.OwnMeanLoss, "balanced_dp", ON_REPLICA),
    (own_models.OwnMeanLossAsItIs, "dp", ON_REPLICA),
    *((own_models.TimeFirst, name, ON_REPLICA) for name in ("dp", "balanced_dp")),
    *((own_models.TimeFirst, name, {}) for name in ("ddp", "fsdp", "fsdp1")),
    (own_models.ScaledByItsNorm, "ddp", {}),
    (odd_models.OwnSumLoss, "balanced_dp", {}),
    *((odd_models.ExtraOutput, name, {}) for name in ("balanced_dp", "fsdp", "fsdp1")),
    *((odd_models.NestedBlocks, name, {}) for name in ("ddp", "fsdp", "fsdp1")),
    *((odd_models.WritesItsInput, name, {}) for name in ("single", "dp", "balanced_dp", "ddp")),
    (odd_models.ListOfSamples, "balanced_dp", ON_REPLICA),
    (odd_models.GradientInForward, "ddp", {}),
    *((odd_models.MaskOfAnotherType, name, {}) for name in ("dp", "ddp", "fsdp")),
]
UNUSED = {
    own_models.UnusedParameters: ("spare.weight", "spare.bias"),
    odd_models.ExtraOutput: ("other.weight", "other.bias"),
}
# What does not, with words of the reason and of the remedy.
REFUSED: list[tuple[type[Workload], str, dict[str, str], str, str]] = [
    (own_models.DataclassOutput, "dp", {}, "cannot gather an output of type Output", "loss_on=replica"),
    (own_models.DataclassOutput, "balanced_dp", {}, "cannot gather an output of type Output", "loss_on=replica"),
    (own_models.OpaqueOutput, "dp", {}, "cannot gather an output of type Opaque", "loss_on=replica"),
    (own_models.OpaqueOutput, "fsdp", {}, "finds none in a Opaque", "return a tensor"),
    (own_models.OpaqueOutput, "fsdp1", {}, "finds none in a Opaque", "return a tensor"),
    (own_models.OpaqueOutput, "ddp", STATIC, "finds none in a Opaque", "return a tensor"),
    (own_models.UnusedParameters, "ddp", {}, "(spare.weight, spare.bias)", "ddp:find_unused_parameters=on"),
    (own_models.UsedTwice, "ddp", {}, "more than once in a backward pass", "ddp:static_graph=on"),
    (own_models.ReadsParameters, "dp", {}, "reads its own parameters()", "by its name"),
    (own_models.ReadsParameters, "balanced_dp", {}, "reads its own parameters()", "by its name"),
    (own_models.TiedBlocks, "fsdp", {}, "embedding.weight is decoder.weight", "out of the workload's blocks()"),
    (own_models.TiedBlocks, "fsdp1", {}, "embedding.weight is decoder.weight", "out of the workload's blocks()"),
    (own_models.ScalarParameter, "fsdp", {}, "a parameter without dimensions", "shape (1,)"),
    (own_models.ScalarParameter, "fsdp1", {}, "a parameter without dimensions", "shape (1,)"),
    (own_models.SparseGradients, "fsdp", {}, "sparse gradients", "sparse=False"),
    (own_models.SparseGradients, "fsdp1", {}, "sparse gradients", "sparse=False"),
    (own_models.SparseExperts, "fsdp", {}, "layers.1.experts.0.weight", "fsdp:reduce_unused_parameters=on"),
    (own_models.SparseExperts, "ddp", {}, "some parameters get no gradient", "ddp:find_unused_parameters=on"),
    (own_models.SparseLater, "fsdp", {}, "layers.1.experts.0.weight", "fsdp:reduce_unused_parameters=on"),
    *(
        (own_models.SkipsLayers, name, {}, "rank 0 comes to layers.0 where rank 1 comes to layers.1", "blocks()")
        for name in ("fsdp", "fsdp1")
    ),
    pytest.param(own_models.SkipsLayers, "fsdp", REDUCE_UNUSED, "comes to layers.1", "blocks()", marks=reduces_unused),
    (own_models.OwnMeanLoss, "balanced_dp", {}, "they take 2, 6", "balanced_dp:loss_on=replica"),
    (own_models.OwnMeanLossAsItIs, "dp", {}, "gives tensors of the shapes (2,)", "dp:loss_on=replica"),
    (own_models.OwnMeanLossAsItIs, "balanced_dp", {}, "of the shapes (2,)", "balanced_dp:loss_on=replica"),
    (own_models.TimeFirst, "balanced_dp", {}, "where this model has no samples", "balanced_dp:loss_on=replica"),
    (odd_models.TwoHeads, "fsdp", {}, "head.weight, head.bias, other.weight", "fsdp:reduce_unused_parameters=on"),
    (odd_models.ListOfSamples, "balanced_dp", {}, "the replicas gave 2, 6 tensors", "loss_on=replica"),
    (odd_models.ListOfSamples, "dp", {}, "of the shapes (8,), (8,), of which the loss fails", "loss_on=replica"),
    (odd_models.GradientOfBlock, "fsdp1", {}, "cannot gather layers.0 inside a transform", "use ddp"),
    (rare_models.GraphNodes, "dp", {}, "one of shape (12, 8) does not have the batch's 4 samples", "or use ddp"),
    (rare_models.GraphNodes, "balanced_dp", {}, "(24, 8) does not have the batch's 8 samples", "or use ddp"),
    (rare_models.PackedInput, "dp", {}, "does not have the batch's 4 samples there", "or use ddp"),
    (rare_models.EmptyParameter, "fsdp", {}, "a parameter without elements", "leave it out"),
    (rare_models.HookOnParameter, "fsdp", {}, "drops hooks on parameters, as head.weight has", "use ddp"),
    (rare_models.HookOnParameter, "fsdp1", {}, "drops hooks on parameters, as head.weight has", "use ddp"),
    (rare_models.StacksParameters, "dp", {}, "reads the model's own parameters()", "by their names"),
    (rare_models.StacksParameters, "balanced_dp", {}, "reads the model's own parameters()", "by their names"),
    (rare_models.AsksForAParameter, "dp", {}, "reads the model's own parameters()", "by their names"),
    (rare_models.CompiledModel, "dp", {}, "cannot replicate a module that torch.compile", "or use ddp"),
    (rare_models.ScriptedHead, "fsdp1", {}, "cannot shard a scripted model", "without torch.jit"),
    *((odd_models.ReadsAWeightOutside, name, {}, "while", "inside the block, or leave") for name in ("fsdp", "fsdp1")),
    (odd_models.PastItsBlocks, "fsdp", {}, "while that block does not run", "inside the block"),
    (odd_models.PastItsBlocks, "fsdp1", {}, "while that block does not run", "inside the block"),
    (odd_models.GradientInForward, "fsdp", {}, "while that block does not run", "inside the block"),
    (
        odd_models.HeadInTrainingAlone,
        "ddp",
        {},
        "in evaluation mode, in which parity is checked (auxiliary.weight",
        "ddp:find_unused",
    ),
    (own_models.OwnPenalty, "dp", {}, "of type int: a plain number", "by their names"),
    (own_models.OwnPenalty, "balanced_dp", {}, "of type int: a plain number", "by their names"),
    (own_models.ScaledByItsNorm, "fsdp", {}, "while that block does not run", "inside the block"),
]

# Where the error itself does not say why, a search on one device does.
SEARCHED = (rare_models.StacksParameters, rare_models.AsksForAParameter, odd_models.ReadsAWeightOutside)


def job_of(cls: type[Workload], strategy: str, settings: dict[str, str], *, parity: bool = True, batch: int = 4) -> Job:
    case = make_case(strategy, workload=cls.name, settings=settings, batch=batch, data=None)
    job = make_job(parity_case(case) if parity else case)
    return replace(job, address=f"{cls.__module__}:{cls.__name__}")


def checked(launcher: Launcher, job: Job) -> LaunchResult:
    return parity_of(launcher, job, registry.get(job.case.strategy).world_size(job.case))


def ids(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize(("cls", "strategy", "settings"), TAKEN, ids=ids)
def test_trains_what_one_device_trains(
    launcher: Launcher, cls: type[Workload], strategy: str, settings: dict[str, str]
) -> None:
    result = checked(launcher, job_of(cls, strategy, settings))
    assert result.outcome.status == "ok", result.outcome.traceback
    assert result.trace is not None and result.trace.parity is not None
    assert result.trace.parity.error < PARITY_LIMIT / 10
    assert result.trace.parity.unused_parameters == UNUSED.get(cls, ())


@pytest.mark.parametrize(("cls", "strategy", "settings", "why", "remedy"), REFUSED, ids=ids)
def test_is_skipped_with_the_reason(
    launcher: Launcher, cls: type[Workload], strategy: str, settings: dict[str, str], why: str, remedy: str
) -> None:
    outcome = checked(launcher, job_of(cls, strategy, settings)).outcome
    assert outcome.status == "skipped", outcome
    assert outcome.reason is not None and why in outcome.reason and remedy in outcome.reason
    searched = cls in SEARCHED and strategy != "fsdp"
    assert outcome.phase == ("cause of the miss" if searched else "parity steps") and outcome.rank is not None
    assert outcome.traceback is not None and "RefusedError" in outcome.traceback


def test_batch_norm_with_one_value_a_channel_is_skipped_when_timed(launcher: Launcher) -> None:
    job = job_of(own_models.Normalised, "ddp", {}, parity=False, batch=2)  # one sample a device
    outcome = time_case(launcher, job, 2, SHORT).outcome
    assert outcome.status == "skipped" and "raise --global-batch-size" in str(outcome.reason)
    assert "torch.Size([1, 8])" in str(outcome.reason)


def test_fsdp_accumulates_what_its_ranks_reach_in_another_order(launcher: Launcher) -> None:
    case = make_case("fsdp", workload="crossed_experts", batch=8, data=None, accumulation_steps=2)
    address = f"{odd_models.__name__}:CrossedExperts"
    result = checked(launcher, replace(make_job(parity_case(case)), address=address))
    assert result.outcome.status == "ok", result.outcome


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (odd_models.ForeignBlock, "holds Linear, which is no module of the model"),
        (odd_models.WholeModelAsBlock, "holds the model itself"),
        (odd_models.NoListOfBlocks, "returns NoneType"),
    ],
    ids=ids,
)
def test_blocks_that_are_none_are_a_fault_of_the_workload(launcher: Launcher, cls: type[Workload], why: str) -> None:
    outcome = checked(launcher, job_of(cls, "ddp", {})).outcome
    assert outcome.status == "error" and f"blocks() of workload {cls.name} {why}" in str(outcome.reason)


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp1"])
def test_parameters_of_several_types_in_a_block_are_skipped_when_timed(launcher: Launcher, strategy: str) -> None:
    outcome = time_case(launcher, job_of(odd_models.MixedTypes, strategy, {}, parity=False), 2, SHORT).outcome
    assert outcome.status == "skipped" and "parameters of different types" in str(outcome.reason)


def test_a_mean_loss_over_a_last_smaller_chunk_is_skipped_when_timed(launcher: Launcher) -> None:
    outcome = time_case(launcher, job_of(own_models.OwnMeanLoss, "dp", {}, parity=False, batch=5), 1, SHORT).outcome
    assert outcome.status == "skipped" and "they take 3, 2" in str(outcome.reason)


@pytest.mark.parametrize(
    ("strategy", "settings"), [("dp", {}), ("dp", ON_REPLICA), ("balanced_dp", {}), ("fsdp1", {})], ids=ids
)
def test_a_miss_for_reading_parameters_that_are_not_whole_says_so(
    launcher: Launcher, strategy: str, settings: dict[str, str]
) -> None:
    outcome = checked(launcher, job_of(own_models.ScaledByItsNorm, strategy, settings)).outcome
    assert (outcome.status, outcome.phase) == ("skipped", "cause of the miss"), outcome
    assert "under this strategy: a replica" in str(outcome.reason) and "is above 0.0001" in str(outcome.reason)


@pytest.mark.parametrize("strategy", ["single", "dp", "ddp", "fsdp"])
@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (rare_models.GrowsInForward, "BenchError: the first forward makes parameters (extra.bias, extra.weight)"),
        (rare_models.NothingCounts, "BenchError: nothing counts in a batch of"),
        (rare_models.FaultyAndReads, "KeyError: 'a fault of the loss'"),
        (rare_models.LossOfShape, "returns a tensor of shape (1,); return two scalars"),
    ],
    ids=ids,
)
def test_a_fault_of_the_model_is_said_before_torch_stumbles_over_it(
    launcher: Launcher, strategy: str, cls: type[Workload], said: str
) -> None:
    outcome = checked(launcher, job_of(cls, strategy, {})).outcome
    assert outcome.status == "error" and said in str(outcome.reason), outcome


def test_a_miss_for_a_weight_that_is_read_as_a_shard_names_it(launcher: Launcher) -> None:
    outcome = checked(launcher, job_of(odd_models.ScaledByABlock, "fsdp1", {})).outcome
    assert (outcome.status, outcome.phase) == ("skipped", "cause of the miss"), outcome
    assert "reads layers.0.0.weight while its block does not" in str(outcome.reason)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp1"])
def test_a_loss_that_is_a_constant_on_one_rank_is_told_as_such(launcher: Launcher, strategy: str) -> None:
    outcome = checked(launcher, job_of(rare_models.NoGraphOnRank, strategy, {})).outcome
    assert (outcome.status, outcome.rank) == ("error", 1), outcome
    assert "has no gradient, as where nothing counts in a batch" in str(outcome.reason)


@pytest.mark.parametrize("strategy", ["single", "dp", "balanced_dp", "ddp", "fsdp", "fsdp1"])
def test_a_fault_of_the_model_stays_an_error(launcher: Launcher, strategy: str) -> None:
    outcome = checked(launcher, job_of(own_models.Faulty, strategy, {})).outcome
    assert outcome.status == "error" and str(outcome.reason).startswith("TypeError: 'Output' object is not iterable")
    assert outcome.traceback is not None and "own_models.py" in outcome.traceback


# --- without workers -----------------------------------------------------------------------------


def test_what_torchs_own_gather_raises_is_recognised() -> None:
    outputs = [own_models.Output(logits=torch.zeros(1), doubled=torch.zeros(1))] * 2
    with pytest.raises(TypeError) as caught:
        gather(outputs, "cpu")
    reason = registry.get("dp").refusal(caught.value, None)
    assert reason is not None and "cannot gather this output" in reason and "loss_on=replica" in reason


def test_a_replicas_stop_iteration_is_recognised_as_torch_raises_it_again() -> None:
    text = "Caught StopIteration in replica 1 on device 1.\nOriginal Traceback (most recent call last): ..."
    for name in ("dp", "balanced_dp"):
        assert "next(self.parameters())" in str(registry.get(name).refusal(StopIteration(text), None))
    assert registry.get("ddp").refusal(StopIteration(text), None) is None


@pytest.mark.parametrize("name", registry.names())
def test_other_errors_are_nobodys_refusal(name: str) -> None:
    model = nn.Linear(1, 1)
    for error in (TypeError("no"), ValueError("no"), RuntimeError("no"), NotImplementedError("no"), KeyError("no")):
        assert registry.get(name).refusal(error, model) is None


def failure(rank: int, time: float, **rest: bool) -> Failure:
    plain = Failure(rank=rank, time=time, phase="steps", message=f"said by {rank}", traceback="", out_of_memory=False)
    return replace(plain, **rest)


@pytest.mark.parametrize(
    ("failures", "status", "rank"),
    [
        ([failure(0, 1.0, refused=True), failure(1, 1.1)], "skipped", 0),
        ([failure(1, 1.0), failure(0, 1.1, refused=True)], "error", 1),
        ([failure(0, 1.0, refused=True), failure(1, 1.1, out_of_memory=True)], "oom", 1),
    ],
)
def test_the_first_cause_decides(failures: list[Failure], status: str, rank: int) -> None:
    outcome = first_cause(failures, [], lambda _: "parity steps")
    assert (outcome.status, outcome.rank, outcome.reason) == (status, rank, f"said by {rank}")
