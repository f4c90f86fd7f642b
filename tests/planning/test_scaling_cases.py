"""The scaling sweep: which batches at which numbers of devices, and what is skipped with a reason."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bench.measuring.machine import Machine
from bench.planning.plan import Plan, reason_to_skip
from bench.schema import Case
from scenarios import test_scaling as scaling
from tests.planning.made_up_machines import cpu, gpus, plan_of


def texts(cases: Iterable[Case]) -> list[str]:
    return [str(case) for case in cases]


def reasons(plan: Plan) -> dict[str, str]:
    """Why cases are skipped, by their text."""
    found = {str(case): reason_to_skip(case, plan.machine, None) for case in scaling.cases(plan)}
    return {text: reason for text, reason in found.items() if reason}


def batches(plan: Plan, strategy: str = "ddp") -> set[tuple[int, int]]:
    """Devices and global batch of each case of a strategy."""
    cases = scaling.cases(plan)
    return {(case.num_devices, case.global_batch_size) for case in cases if case.strategy == strategy}


def test_cases_on_two_cpu_workers() -> None:
    cases = scaling.cases(plan_of(cpu(), workloads="mnist_cnn", strategies="dp,ddp"))
    # 128 samples in all, 64 each: the two kinds share the case on both devices.
    assert texts(cases) == [
        "mnist_cnn-single-1x-b128-fp32",
        "mnist_cnn-dp-1x-b128-fp32",
        "mnist_cnn-dp-2x-b128-fp32",
        "mnist_cnn-ddp-1x-b128-fp32",
        "mnist_cnn-ddp-2x-b128-fp32",
        "mnist_cnn-single-1x-b64-fp32",
        "mnist_cnn-dp-1x-b64-fp32",
        "mnist_cnn-ddp-1x-b64-fp32",
    ]


@pytest.mark.parametrize(
    ("total", "counts"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 3, 4, 8]),
        (12, [1, 2, 3, 4, 8, 12]),
        (40, [1, 2, 3, 4, 8, 16, 32, 40]),
    ],
)
def test_numbers_of_devices(total: int, counts: list[int]) -> None:
    assert scaling.device_counts(total) == counts


@pytest.mark.parametrize(
    ("machine", "workload", "strong", "per_device"),
    [
        (gpus(4), "resnet50", 252, 64),  # 256 is 21.3 times 12
        (gpus(4), "mnist_cnn", 516, 128),  # 512 is 42.7 times 12
        (gpus(8), "resnet50", 504, 64),  # 512 is 21.3 times 24
        (gpus(3), "bert_small", 96, 32),  # its own 32 x 3, which 6 divides
    ],
)
def test_the_strong_batch_is_the_nearest_that_all_counts_divide(
    machine: Machine, workload: str, strong: int, per_device: int
) -> None:
    plan = plan_of(machine, workloads=workload)
    counts = scaling.device_counts(len(plan.devices))
    assert batches(plan) == {(n, strong) for n in counts} | {(n, n * per_device) for n in counts}
    assert batches(plan, "single") == {(1, strong), (1, per_device)}
    assert reasons(plan) == {}


def test_where_that_is_far_from_the_usual_batch_counts_between_are_skipped_with_the_reason() -> None:
    # Of 8 samples 24 would be another workload: 8, which 1, 2, 4 and 8 devices divide.
    plan = plan_of(cpu(8), workloads="bert_small", strategies="ddp,dp", devices="8")
    assert {batch for _, batch in batches(plan)} == {8, *range(1, 5)}
    skipped = reasons(plan)
    assert set(skipped) == {"bert_small-ddp-3x-b8-fp32"}, "dp splits unevenly"
    assert "global_batch_size 8 does not divide over 3 devices; use 6 or 9" in skipped["bert_small-ddp-3x-b8-fp32"]


def test_all_devices_alone_where_even_powers_of_two_do_not_fit() -> None:
    # 8 samples on 7 devices: 28 is far from 8, 7 is not.
    plan = plan_of(cpu(7), workloads="bert_small", strategies="ddp", devices="7")
    assert (7, 7) in batches(plan) and "bert_small-ddp-2x-b7-fp32" in reasons(plan)


def test_each_batch_option_is_that_of_one_kind() -> None:
    strong = plan_of(gpus(2), workloads="resnet50", global_batch_size="30,33")
    assert batches(strong) == {(1, 30), (2, 30), (1, 33), (2, 33), (1, 64), (2, 128)}
    assert list(reasons(strong)) == ["resnet50-ddp-2x-b33-bf16", "resnet50-fsdp-2x-b33-bf16"]
    weak = plan_of(gpus(2), workloads="resnet50", batch_per_device="16,32")
    # 16 x 2 and 32 x 2 are the usual batches of all devices then.
    assert batches(weak) == {(1, 32), (2, 32), (1, 64), (2, 64), (1, 16)}


def test_accumulation_divides_too() -> None:
    plan = plan_of(gpus(4), workloads="resnet50", strategies="ddp", levers="accumulation_steps=5")
    # 256 is 4.3 times 60; 64 is 12.8 times 5.
    assert batches(plan) == {(n, 240) for n in (1, 2, 3, 4)} | {(n, 60 * n) for n in (1, 2, 3, 4)}
    assert reasons(plan) == {}


def test_single_is_there_whatever_the_strategies_are_and_options_stay() -> None:
    plan = plan_of(cpu(), workloads="mnist_cnn", strategies="balanced_dp:gpu0_bsz=40")
    cases = scaling.cases(plan)
    assert batches(plan, "single") == {(1, 128), (1, 64)}
    assert {case.setting("gpu0_bsz") for case in cases if case.strategy == "balanced_dp"} == {"40"}
    assert batches(plan_of(cpu(), workloads="mnist_cnn", strategies="single")) == set()


def test_a_share_above_the_even_one_is_skipped_with_the_reason() -> None:
    plan = plan_of(gpus(4), workloads="resnet50", strategies="balanced_dp:gpu0_bsz=80", precision="fp32")
    skipped = reasons(plan)
    assert "resnet50-balanced_dp-4x-b252-fp32-gpu0_bsz:80" in skipped
    assert "resnet50-balanced_dp-3x-b252-fp32-gpu0_bsz:80" not in skipped, "80 of 252 on 3 devices are below 84"
    assert "above the even share of 63" in skipped["resnet50-balanced_dp-4x-b252-fp32-gpu0_bsz:80"]


def test_both_placements_of_the_loss_where_the_comparison_shows_both() -> None:
    cases = scaling.cases(plan_of(gpus(2), workloads="bert_small,resnet50", strategies="dp"))
    replica = [case for case in cases if case.setting("loss_on") == "replica"]
    assert {(case.workload, case.num_devices) for case in replica} == {("bert_small", 2)}


def test_a_device_listed_twice_is_oversubscribed_from_there_on() -> None:
    plan = plan_of(cpu(), workloads="mnist_cnn", strategies="ddp", devices="0,1,1")
    assert {case.num_devices: case.oversubscribed for case in scaling.cases(plan)} == {1: False, 2: False, 3: True}
