"""Every strategy with one device over NCCL, and with the one device listed twice."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.gpu_runs import STRATEGIES, TOGETHER, GpuRuns

PROCESS_GROUPS = ("ddp", "fsdp", "fsdp1", "zero1")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_device_trains_and_trains_the_same(gpu_runs: GpuRuns, strategy: str) -> None:
    case = gpu_runs.get("one").case("mnist_cnn", strategy)
    assert (case["status"], case["parity_status"]) == ("ok", "ok"), case["reason"]
    assert case["parity_error"] < 1e-4 and case["samples_per_second"] > 0
    assert not case["emulated"] and not case["oversubscribed"]


def test_one_device_uses_nccl(gpu_runs: GpuRuns) -> None:
    backends = {launch.strategy: launch.backend for launch in gpu_runs.get("one").data.launches}
    assert {backends[strategy] for strategy in PROCESS_GROUPS} == {"nccl"}
    assert backends["single"] is None and backends["dp"] is None


@pytest.mark.parametrize("workload", ["mnist_cnn", "bert_small"])
@pytest.mark.parametrize("strategy", TOGETHER)
def test_the_device_listed_twice_trains_the_same(gpu_runs: GpuRuns, workload: str, strategy: str) -> None:
    case = gpu_runs.get("twice").case(workload, strategy)
    assert (case["status"], case["parity_status"]) == ("ok", "ok"), case["reason"]
    assert case["oversubscribed"] and not case["emulated"]
    assert len(case["chunk_sizes"]) == 2


def test_two_ranks_on_a_device_use_nccl_from_2_30_on_and_gloo_before(gpu_runs: GpuRuns) -> None:
    expected = "nccl" if tuple(torch.cuda.nccl.version()) >= (2, 30) else "gloo"
    backends = {launch.backend for launch in gpu_runs.get("twice").data.launches if launch.strategy in PROCESS_GROUPS}
    assert backends == {expected}


def test_auto_finds_a_split_and_says_what_it_rests_on(gpu_runs: GpuRuns) -> None:
    run = gpu_runs.get("auto")
    case = run.case("resnet50", "balanced_dp")
    assert case["status"] == "ok", case["reason"]
    (launch,) = [item for item in run.data.launches if item.strategy == "balanced_dp" and item.purpose == "timing"]
    # One card stands for both devices, so there is one peak for two positions: it must say so, not invent a second.
    assert launch.balance
    print(launch.balance)
