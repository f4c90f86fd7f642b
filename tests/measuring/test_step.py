"""Batches and the training step, in this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench import strategies, workloads
from bench.errors import BenchError
from bench.measuring.batches import StepBatch, make_batches
from bench.measuring.place import Place, backend_for
from bench.measuring.step import Trainer
from bench.measuring.tasks import Rounds
from bench.measuring.wrapped import PrecisionModule
from bench.schema import Case
from bench.strategies import Context
from bench.workloads import DataSource
from tests.measuring.support import NOISE, make_case

CPU = torch.device("cpu")
WORKLOAD = workloads.registry.get("mnist_cnn")("quick")


def batches_of(case: Case, rank: int, count: int = 2, source: DataSource = NOISE) -> list[StepBatch]:
    strategy = strategies.registry.get(case.strategy)
    return make_batches(WORKLOAD, strategy, case, source, rank=rank, seed=0, count=count)


def sample_numbers(batch: StepBatch, num_samples: int = NOISE.num_samples) -> list[list[int]]:
    """Which samples of the data each micro-batch holds."""
    dataset = WORKLOAD.dataset(NOISE, 0)
    known = {tuple(dataset[index].args[0].flatten()[:5].tolist()): index for index in range(min(num_samples, 40))}
    return [[known[tuple(row.flatten()[:5].tolist())] for row in micro.args[0]] for micro in batch.micro_batches]


def test_ranks_share_the_same_global_batch_in_order() -> None:
    case = make_case("ddp", batch=8, accumulation_steps=2)  # micro-batches of 4, of which each rank takes 2
    first, second = (batches_of(case, rank) for rank in (0, 1))
    assert [sample_numbers(batch) for batch in first] == [[[0, 1], [4, 5]], [[8, 9], [12, 13]]]
    assert [sample_numbers(batch) for batch in second] == [[[2, 3], [6, 7]], [[10, 11], [14, 15]]]
    assert [batch.weight for batch in first + second] == [8.0] * 4  # of the whole global batch


def test_one_process_takes_the_whole_batch_from_the_host() -> None:
    (batch, _) = batches_of(make_case("dp", batch=6, accumulation_steps=3), rank=0)
    assert sample_numbers(batch) == [[0, 1], [2, 3], [4, 5]]
    assert batch.weight == 6.0


def test_batches_rotate_and_start_again_at_the_end_of_the_data() -> None:
    five = DataSource(kind="synthetic", text="five", num_samples=5)
    batches = batches_of(make_case("single", batch=2), rank=0, count=3, source=five)
    # The sixth sample is the first again.
    assert [sample_numbers(batch) for batch in batches] == [[[0, 1]], [[2, 3]], [[4, 0]]]


class Watched(nn.Module):
    """A model that notes the dtype of its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.seen = nn.Conv2d(1, 2, 3), list[torch.dtype]()

    def forward(self, images: Tensor) -> Tensor:
        activation = self.conv(images)
        self.seen.append(activation.dtype)
        return activation.mean(dim=(2, 3))  # type: ignore[no-any-return]


@pytest.mark.parametrize("strategy", ["single", "dp", "balanced_dp"])
@pytest.mark.parametrize("loss_inside", [False, True])
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_dtype_inside_every_replica(strategy: str, loss_inside: bool, precision: str, dtype: torch.dtype) -> None:
    case, model = make_case(strategy, batch=8, precision=precision), Watched()
    module = PrecisionModule(model, WORKLOAD, case, loss_inside)
    context = Context(case=case, devices=(CPU,) * case.num_devices, blocks=())
    wrapped = strategies.registry.get(strategy).wrap(module, context)
    images, targets = torch.randn(8, 1, 28, 28), torch.zeros(8, dtype=torch.long)
    output = wrapped((images,), {}, targets) if loss_inside else wrapped((images,), {})
    assert model.seen == [dtype] * case.num_devices
    if loss_inside:
        assert output.shape == (case.num_devices, 2) and output.dtype == torch.float32
        assert output[:, 1].sum() == 8  # the weights of the replicas


def trainer_of(case: Case, **rest: Any) -> Trainer:
    strategy = strategies.registry.get(case.strategy)
    devices = (CPU,) * case.num_devices
    return Trainer(workload=WORKLOAD, strategy=strategy, case=case, devices=devices, mesh=None, seed=0, **rest)


@pytest.mark.parametrize("settings", [{}, {"loss_on": "replica"}], ids=str)
@pytest.mark.parametrize("strategy", ["dp", "balanced_dp"])
def test_loss_and_weight_do_not_depend_on_where_the_loss_is(strategy: str, settings: dict[str, str]) -> None:
    single, case = make_case("single", batch=7), make_case(strategy, batch=7, settings=settings)
    (expected_batch,), (batch,) = batches_of(single, 0, 1), batches_of(case, 0, 1)
    expected = trainer_of(single, train=False).step(expected_batch)
    torch.testing.assert_close(trainer_of(case, train=False).step(batch), expected, rtol=1e-5, atol=1e-5)
    assert expected[1] == 7


def test_gradients_of_the_step_before_are_dropped() -> None:
    case = make_case("single", batch=4)
    (batch,) = batches_of(case, 0, 1)
    trainer = trainer_of(case, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0), train=False)
    gradients = []
    for _ in range(2):
        trainer.step(batch)
        gradients.append([parameter.grad.clone() for parameter in trainer.wrapped.parameters()])  # type: ignore[union-attr]
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("strategy", ["single", "dp", "balanced_dp"])
def test_parameters_keep_the_models_own_names(strategy: str) -> None:
    names = set(trainer_of(make_case(strategy)).full_parameters())
    assert names == {name for name, _ in WORKLOAD.build().named_parameters()}


class MadeUpTrainer:
    """Its step returns what was given to it."""

    def __init__(self, loss: float, precision: str = "fp32") -> None:
        self.loss, self.steps = loss, 0
        self.case = make_case("single", precision=precision)

    def step(self, batch: StepBatch) -> Tensor:
        self.steps += 1
        return torch.tensor([self.loss, 4.0])


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize(("precision", "says_fp32"), [("fp32", False), ("bf16", True)])
def test_round_whose_loss_is_not_finite_is_an_error(loss: float, precision: str, says_fp32: bool) -> None:
    made_up: Any = MadeUpTrainer(loss, precision)
    rounds = Rounds(made_up, [StepBatch(micro_batches=(), weight=4.0)], Place(devices=(CPU,), mesh=None))
    with pytest.raises(BenchError, match=f"the loss is {loss}; lower the learning rate") as raised:
        rounds.run(3)
    assert ("--precision fp32" in str(raised.value)) == says_fp32
    assert made_up.steps == 3  # looked at once, after the round


def test_group_backend_follows_devices_and_nccl_version() -> None:
    ddp, dp = strategies.registry.get("ddp"), strategies.registry.get("dp")
    twice = make_case("ddp", device_type="cuda", devices=(0, 0))
    assert backend_for(make_case("ddp"), ddp, None) == "gloo"
    assert backend_for(make_case("dp"), dp, None) is None
    assert backend_for(make_case("ddp", device_type="cuda"), ddp, (2, 20, 5)) == "nccl"
    assert backend_for(twice, ddp, (2, 30, 7)) == "nccl"
    assert backend_for(twice, ddp, (2, 29, 9)) == "gloo"
    assert backend_for(twice, ddp, None) == "gloo"
