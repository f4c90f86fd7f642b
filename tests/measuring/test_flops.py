"""FLOPs of a model, against numbers worked out by hand and published ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import workloads
from bench.measuring.batches import fetch
from bench.measuring.flops import FlopCount, count_flops, flops_of
from bench.measuring.launcher import Launcher
from bench.workloads import Batch, Workload
from tests.measuring import counted_models as models
from tests.measuring.own_models import PlainNet, SparseExperts
from tests.measuring.support import make_case, make_job


def counted(workload: Workload, tmp_path: Path) -> FlopCount:
    source = workload.prepare("synthetic", None, tmp_path)
    dataset = workload.dataset(source, 0)

    def make_batch(samples: int) -> Batch:
        return fetch(workload, dataset, range(samples))

    return flops_of(workload, make_batch, 0)


def test_resnet50_has_the_multiply_adds_that_are_published(tmp_path: Path) -> None:
    found = counted(workloads.registry.get("resnet50")("standard"), tmp_path)
    assert found.per_sample is not None
    # 4.0892 GMAC forward at 224 pixels, 8.0604 backward (the images need no gradient); 2 FLOP each.
    assert found.per_sample / 2 == pytest.approx((4.0892 + 8.0604) * 1e9, rel=1e-5)


def test_mnist_cnn_by_hand(tmp_path: Path) -> None:
    conv1, conv2 = 26 * 26 * 32 * 9, 24 * 24 * 64 * 32 * 9
    fc1, fc2 = 9216 * 128, 128 * 10
    # Forward once, the weights' gradients once, the inputs' gradients once but for the images.
    multiply_adds = 2 * conv1 + 3 * (conv2 + fc1 + fc2)
    assert counted(workloads.registry.get("mnist_cnn")("quick"), tmp_path).per_sample == 2 * multiply_adds


def test_plain_net_by_hand(tmp_path: Path) -> None:
    assert counted(PlainNet("quick"), tmp_path).per_sample == models.FLOPS_OF_NET


@pytest.mark.parametrize("kind", [models.Checkpointed, models.CheckpointedInTheOlderWay])
def test_what_is_computed_again_does_not_count(kind: type[Workload], tmp_path: Path) -> None:
    # The older way needs an input with a gradient, so its first product has one more for that.
    more = 2 * 8 * 8 if kind is models.CheckpointedInTheOlderWay else 0
    assert counted(kind("quick"), tmp_path).per_sample == models.FLOPS_OF_NET + more


def test_attention_counts_without_the_scores_that_its_kernel_computes_again(tmp_path: Path) -> None:
    product = 4 * 16 * 16 * 8  # scores of 4 heads; values weighted by them as much
    assert counted(models.Attends("quick"), tmp_path).per_sample == 2 * (2 + 4) * product


def test_recurrent_layers_count_as_products(tmp_path: Path) -> None:
    inputs, hidden = 5 * 24 * 3, 5 * 24 * 6
    # The first hidden state is no result, so it has no gradient.
    multiply_adds = 2 * inputs + 3 * hidden - 24 * 6
    assert counted(models.Recurrent("quick"), tmp_path).per_sample == 2 * multiply_adds


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (models.ComparesSamples, "do not grow with the samples"),
        (models.LooksAtData, "cannot be counted without data: "),
        (SparseExperts, "cannot be counted without data: "),
        (models.Additions, "no matrix product"),
    ],
)
def test_what_cannot_be_counted_has_a_reason(kind: type[Workload], words: str, tmp_path: Path) -> None:
    found = counted(kind("quick"), tmp_path)
    assert found.per_sample is None and found.unknown is not None and words in found.unknown


def test_counting_leaves_torch_as_it_was(tmp_path: Path) -> None:
    enabled = torch.backends.mkldnn.enabled
    hooks = len(torch.nn.modules.module._global_forward_hooks), len(torch.nn.modules.module._global_forward_pre_hooks)
    counted(models.LooksAtData("quick"), tmp_path)
    counted(PlainNet("quick"), tmp_path)
    assert torch.backends.mkldnn.enabled == enabled
    assert hooks == (
        len(torch.nn.modules.module._global_forward_hooks), len(torch.nn.modules.module._global_forward_pre_hooks)
    )  # fmt: skip


def test_a_launch_of_its_own_counts_and_its_end_is_a_reason(launcher: Launcher) -> None:
    job = make_job(make_case("ddp"))
    assert count_flops(launcher, job).per_sample == 71_565_312
    address = f"{models.__name__}:{models.Ends.__name__}"
    ended = count_flops(launcher, replace(job, address=address))
    assert ended.per_sample is None and "were not counted: " in str(ended.unknown)
