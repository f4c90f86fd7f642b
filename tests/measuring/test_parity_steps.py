"""The steps of the parity check on a model that nobody tuned it for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.measuring.launcher import Launcher
from bench.measuring.parity import clearly_moved
from bench.measuring.parity_steps import rate_for, settle
from bench.schema import PARITY_LIMIT
from bench.workloads import Batch, Workload
from tests.measuring import own_models
from tests.measuring.test_refusals import checked, ids, job_of


@pytest.mark.parametrize(("cls", "double"), [(own_models.PlainNet, True), (own_models.NamesAType, False)], ids=ids)
def test_float64_where_the_model_can(launcher: Launcher, cls: type[Workload], double: bool) -> None:
    result = checked(launcher, job_of(cls, "ddp", {}))
    assert result.outcome.status == "ok" and result.trace is not None and result.trace.parity is not None
    assert result.trace.parity.double is double
    assert result.trace.parity.error < PARITY_LIMIT / 10


def test_rate_makes_the_first_step_a_share_of_the_weights() -> None:
    # ||w|| = sqrt(9 + 16) = 5, ||g|| = sqrt(0 + 4) = 2
    pairs = [(torch.tensor([3.0]), torch.tensor([0.0])), (torch.tensor([4.0]), torch.tensor([2.0]))]
    assert rate_for(pairs, 0.01) == pytest.approx(0.01 * 5 / 2)
    assert rate_for([(torch.zeros(1), torch.tensor([2.0]))], 0.01) == pytest.approx(0.01 / 2)  # a step 0.01 long
    assert rate_for([(torch.ones(1), torch.zeros(1))], 0.01) == rate_for([], 0.01) == 0.01


def test_a_movement_within_rounding_is_no_movement() -> None:
    before = torch.tensor([1.0, 0.5])
    one_bit = torch.tensor([1.0 + 2**-23, 0.5])
    assert not clearly_moved(before, one_bit, path=1e-6)
    assert clearly_moved(before, torch.tensor([1.001, 0.5]), path=1.0)
    assert not clearly_moved(torch.zeros(2), torch.tensor([1e-9, 0.0]), path=1.0)  # a billionth of all movement


def test_batch_norm_gets_the_statistics_of_the_batch() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.5)).eval()
    settle(Batch(args=(torch.tensor([[1.0], [3.0]]).double(),), kwargs={}, targets=None), model)
    norm = model[0]
    assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None and norm.running_var is not None
    assert (norm.running_mean.item(), norm.running_var.item()) == (2.0, 2.0)  # variance over N - 1
    assert not norm.training and norm.momentum == 0.1


def test_weights_that_start_at_zero_do_not_hold_gradients_back() -> None:
    head = nn.Linear(4, 2)
    nn.init.zeros_(head.weight)
    model = nn.Sequential(nn.Linear(3, 4), head)
    before = model[0].weight.detach().double()
    settle(Batch(args=(torch.zeros(1, 3),), kwargs={}, targets=None), model)
    assert head.weight.dtype == torch.float64 and 0.005 < float(head.weight.detach().std()) < 0.04
    assert torch.equal(model[0].weight.detach(), before)  # others stay as they are
