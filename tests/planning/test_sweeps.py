"""Sweeps: what the load-balance scenario asks for."""

from __future__ import annotations

from bench.planning.plan import reason_to_skip
from bench.schema import Case
from scenarios import test_load_balance as load_balance
from tests.planning.made_up_machines import cpu, gpus, plan_of

SHARES = ("0", "6", "13", "19", "64", "auto")


def texts(cases: list[Case]) -> list[str]:
    return [str(case) for case in cases]


def settings(cases: list[Case]) -> list[str]:
    """gpu0_bsz of each case of balanced_dp at the batch of the first."""
    found = [case for case in cases if case.strategy == "balanced_dp"]
    return [case.setting("gpu0_bsz") or "" for case in found if case.global_batch_size == found[0].global_batch_size]


# --- the cases ------------------------------------------------------------------------------------------


def test_every_share_of_the_micro_batch_beside_dp_and_ddp() -> None:
    cases = load_balance.cases(plan_of(cpu(), workloads="mnist_cnn", strategies="single"))
    assert texts(cases) == [
        *(f"mnist_cnn-balanced_dp-2x-b128-fp32-gpu0_bsz:{share}" for share in SHARES),
        "mnist_cnn-dp-2x-b128-fp32",
        "mnist_cnn-dp-2x-b128-fp32-loss_on:replica",
        "mnist_cnn-ddp-2x-b128-fp32",
    ]


def test_shares_that_round_to_the_same_number_are_one_case() -> None:
    # 8 samples: 0, 0.4, 0.8 and 1.2 are 0, 0, 1 and 1; even is 4.
    cases = load_balance.cases(plan_of(cpu(), workloads="bert_small"))
    assert settings(cases) == ["0", "1", "4", "auto"]


def test_no_share_is_above_the_even_one() -> None:
    # 64 samples over 8 devices: 15 % are 10, the even share is 8.
    plan = plan_of(gpus(8), workloads="mnist_cnn", global_batch_size="64")
    cases = load_balance.cases(plan)
    assert settings(cases) == ["0", "3", "6", "8", "auto"]
    assert {reason_to_skip(case, plan.machine, None) for case in cases} == {None}


def test_all_workloads_on_all_devices_at_their_own_batch_and_precision() -> None:
    plan = plan_of(gpus(4))
    cases = load_balance.cases(plan)
    assert {case.devices for case in cases} == {(0, 1, 2, 3)}
    found = {(case.workload, case.global_batch_size, case.precision) for case in cases if case.strategy == "ddp"}
    # 128, 64 and 32 a device
    assert found == {("mnist_cnn", 512, "fp32"), ("resnet50", 256, "bf16"), ("bert_small", 128, "bf16")}


def test_on_gpus_half_the_batch_tells_what_gpu_0_gathers() -> None:
    def halves(**options: str) -> list[str]:
        cases = load_balance.cases(plan_of(gpus(4), workloads="resnet50", precision="fp32", **options))
        return texts([case for case in cases if case.global_batch_size < 256])

    assert halves() == ["resnet50-balanced_dp-4x-b128-fp32-gpu0_bsz:32"]
    assert halves(levers="accumulation_steps=2") == ["resnet50-balanced_dp-4x-b128-fp32-acc2-gpu0_bsz:16"]
    for two in ({"global_batch_size": "64,128"}, {"batch_per_device": "16,32"}):  # they tell it already
        assert not [text for text in halves(**two) if "-b32-" in text]
    assert [text for text in halves(batch_per_device="32") if "-b64-" in text]
    cpu_cases = load_balance.cases(plan_of(cpu(), workloads="resnet50"))
    assert len({case.global_batch_size for case in cpu_cases}) == 1


def test_shares_count_per_micro_batch() -> None:
    plan = plan_of(cpu(), workloads="mnist_cnn", levers="accumulation_steps=2")
    assert settings(load_balance.cases(plan)) == ["0", "3", "6", "10", "32", "auto"]  # of 64


def test_one_device_has_no_other_share_than_all() -> None:
    plan = plan_of(cpu(1), workloads="mnist_cnn", devices="1")
    assert {case.num_devices for case in load_balance.cases(plan)} == {1}
