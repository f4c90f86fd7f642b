"""Which cases a run has, on a CPU machine and on made-up GPU machines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import workloads
from bench.measuring.machine import Machine
from bench.planning.plan import reason_to_skip
from bench.planning.presets import PRESETS
from bench.schema import NameValue
from tests.planning.made_up_machines import cpu, gpus, ids, plan_of


def test_default_on_a_cpu_machine_is_the_quick_preset_on_two_workers() -> None:
    plan = plan_of(cpu(8))
    assert (plan.preset.name, plan.devices, plan.size, plan.launches) == ("quick", (0, 1), "quick", 3)
    assert ids(plan) == [
        "bert_small-single-1x-b8-fp32",
        "bert_small-dp-2x-b8-fp32",
        "bert_small-dp-2x-b8-fp32-loss_on:replica",
        "bert_small-balanced_dp-2x-b8-fp32",
        "bert_small-balanced_dp-2x-b8-fp32-loss_on:replica",
        "bert_small-ddp-2x-b8-fp32",
        "bert_small-fsdp-2x-b8-fp32",
        "mnist_cnn-single-1x-b128-fp32",
        "mnist_cnn-dp-2x-b128-fp32",
        "mnist_cnn-balanced_dp-2x-b128-fp32",
        "mnist_cnn-ddp-2x-b128-fp32",
        "mnist_cnn-fsdp-2x-b128-fp32",
        "resnet50-single-1x-b8-fp32",
        "resnet50-dp-2x-b8-fp32",
        "resnet50-balanced_dp-2x-b8-fp32",
        "resnet50-ddp-2x-b8-fp32",
        "resnet50-fsdp-2x-b8-fp32",
    ]


def test_machine_with_one_core_lists_it_twice() -> None:
    plan = plan_of(cpu(1))
    assert plan.devices == (0, 0)
    assert "mnist_cnn-ddp-2x0+0-b128-fp32" in ids(plan)


def test_default_on_four_gpus_is_the_standard_preset_on_all_of_them() -> None:
    plan = plan_of(gpus(4))
    assert (plan.preset.name, plan.devices, plan.size, plan.launches) == ("standard", (0, 1, 2, 3), "standard", 6)


def test_standard_resnet50_on_four_gpus() -> None:
    # 64 images a device: 64, 128 and 256 in all; the baseline runs at each of them.
    assert ids(plan_of(gpus(4), workloads="resnet50")) == [
        "resnet50-single-1x-b64-bf16",
        "resnet50-single-1x-b128-bf16",
        "resnet50-single-1x-b256-bf16",
        "resnet50-dp-2x-b128-bf16",
        "resnet50-dp-4x-b256-bf16",
        "resnet50-balanced_dp-2x-b128-bf16",
        "resnet50-balanced_dp-4x-b256-bf16",
        "resnet50-ddp-2x-b128-bf16",
        "resnet50-ddp-4x-b256-bf16",
        "resnet50-fsdp-2x-b128-bf16",
        "resnet50-fsdp-4x-b256-bf16",
    ]


def test_standard_mnist_on_four_gpus_is_512_in_all_and_fp32() -> None:
    assert ids(plan_of(gpus(4), workloads="mnist_cnn", strategies="single,ddp")) == [
        "mnist_cnn-single-1x-b512-fp32",
        "mnist_cnn-ddp-2x-b512-fp32",
        "mnist_cnn-ddp-4x-b512-fp32",
    ]


def test_standard_bert_on_four_gpus_compares_both_places_of_the_loss() -> None:
    # 32 sequences a device
    assert ids(plan_of(gpus(4), workloads="bert_small", strategies="single,dp,ddp")) == [
        "bert_small-single-1x-b32-bf16",
        "bert_small-single-1x-b64-bf16",
        "bert_small-single-1x-b128-bf16",
        "bert_small-dp-2x-b64-bf16",
        "bert_small-dp-2x-b64-bf16-loss_on:replica",
        "bert_small-dp-4x-b128-bf16",
        "bert_small-dp-4x-b128-bf16-loss_on:replica",
        "bert_small-ddp-2x-b64-bf16",
        "bert_small-ddp-4x-b128-bf16",
    ]


def test_places_of_the_loss_differ_on_several_devices_and_for_bert_only() -> None:
    assert not any("loss_on" in text for text in ids(plan_of(gpus(1))))
    assert all(text.startswith("bert_small") for text in ids(plan_of(gpus(4))) if "loss_on" in text)


def test_place_of_the_loss_that_was_chosen_has_no_twin() -> None:
    plan = plan_of(gpus(2), workloads="bert_small", strategies="dp:loss_on=replica")
    assert ids(plan) == ["bert_small-dp-2x-b64-bf16-loss_on:replica"]
    assert len(ids(plan_of(gpus(2), workloads="bert_small", strategies="dp,dp:loss_on=replica"))) == 2


def test_card_without_bf16_measures_in_fp32() -> None:
    assert {text.split("-")[4] for text in ids(plan_of(gpus(4, bf16=False)))} == {"fp32"}


def test_precision_that_was_asked_for_wins() -> None:
    assert {text.split("-")[4] for text in ids(plan_of(gpus(4), precision="fp32"))} == {"fp32"}
    assert {text.split("-")[4] for text in ids(plan_of(gpus(2), levers="precision=tf32"))} == {"tf32"}


def test_quick_preset_on_gpus_has_the_small_size_and_shows_it() -> None:
    assert ids(plan_of(gpus(2), preset="quick", workloads="resnet50", strategies="ddp")) == [
        "resnet50-ddp-2x-b8-fp32-quick"
    ]


def test_full_preset_has_fsdp1_too() -> None:
    assert plan_of(gpus(2), preset="full").launches == 12
    assert "resnet50-fsdp1-2x-b128-bf16" in ids(plan_of(gpus(2), preset="full"))
    assert not any("fsdp1" in text for text in ids(plan_of(gpus(2))))


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [1]), (2, [2]), (3, [2, 3]), (4, [2, 4]), (6, [2, 4, 6]), (8, [2, 4, 8]), (9, [2, 4, 8, 9])],
)
def test_device_counts_are_all_and_those_between(count: int, expected: list[int]) -> None:
    assert plan_of(gpus(count)).device_counts() == expected
    assert plan_of(gpus(count), preset="quick").device_counts() == [count]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [("2", (0, 1)), ("0,0", (0, 0)), ("3,1", (3, 1)), ("1,", (1,)), (None, (0, 1, 2, 3))],
)
def test_devices_are_a_number_or_a_list_in_its_own_order(devices: str | None, expected: tuple[int, ...]) -> None:
    assert plan_of(gpus(4), devices=devices).devices == expected


def test_batch_per_device_derives_the_global_batch_and_the_baselines() -> None:
    plan = plan_of(gpus(2), batch_per_device="8,16", workloads="resnet50", strategies="single,ddp", preset="quick")
    batches = {(case.strategy, case.global_batch_size) for case in plan.comparison("resnet50")}
    # ddp at 2 * 8 and 2 * 16; the baseline at those, and at the batch of one device
    assert batches == {("single", 8), ("single", 16), ("single", 32), ("ddp", 16), ("ddp", 32)}


def test_global_batch_sizes_hold_for_every_strategy() -> None:
    plan = plan_of(cpu(), global_batch_size="32,64", workloads="mnist_cnn", strategies="single,fsdp1")
    assert ids(plan) == [
        "mnist_cnn-single-1x-b32-fp32",
        "mnist_cnn-single-1x-b64-fp32",
        "mnist_cnn-fsdp1-2x-b32-fp32",
        "mnist_cnn-fsdp1-2x-b64-fp32",
    ]


def test_order_of_workloads_and_strategies_is_as_typed_without_repeats() -> None:
    plan = plan_of(cpu(), workloads="resnet50,mnist_cnn,resnet50", strategies="ddp,single,ddp")
    assert plan.workloads == ("resnet50", "mnist_cnn")
    assert [choice.name for choice in plan.strategies] == ["ddp", "single"]
    assert plan.comparison("bert_small") == []


def test_options_of_a_strategy_show_in_the_text_unless_they_are_the_default() -> None:
    plan = plan_of(
        cpu(),
        workloads="mnist_cnn",
        strategies="dp:loss_on=device0,balanced_dp:gpu0_bsz=4,ddp:static_graph=on:bucket_cap_mb=1",
    )
    assert ids(plan) == [
        "mnist_cnn-dp-2x-b128-fp32",
        "mnist_cnn-balanced_dp-2x-b128-fp32-gpu0_bsz:4",
        "mnist_cnn-ddp-2x-b128-fp32-bucket_cap_mb:1-static_graph:on",
    ]


def test_levers_and_data_reach_every_case() -> None:
    plan = plan_of(cpu(), workloads="mnist_cnn,resnet50", levers="accumulation_steps=2", data="real")
    assert all(case.accumulation_steps == 2 for name in plan.workloads for case in plan.comparison(name))
    # Real images are what mnist_cnn takes by itself.
    assert {case.data for case in plan.comparison("mnist_cnn")} == {None}
    assert {case.data for case in plan.comparison("resnet50")} == {"real"}


def test_launches_and_the_time_limit_can_be_set() -> None:
    plan = plan_of(cpu(), launches=7, launch_timeout=12.5)
    assert (plan.launches, plan.launch_timeout_seconds) == (7, 12.5)
    assert plan_of(cpu()).launch_timeout_seconds == PRESETS["quick"].launch_timeout_seconds


@given(
    st.sampled_from([cpu(1), cpu(2), gpus(1), gpus(4), gpus(8), gpus(3, bf16=False)]),
    st.sampled_from([None, "quick", "standard", "full"]),
    st.sampled_from([None, "dp,dp:loss_on=replica,balanced_dp:gpu0_bsz=0,balanced_dp:gpu0_bsz=1,balanced_dp", "fsdp1"]),
    st.sampled_from([None, "fp32", "bf16"]),
    st.sampled_from([None, "8,16,24"]),
)
def test_cases_of_a_plan_are_different_and_so_are_their_texts(
    machine: Machine, preset: str | None, strategies: str | None, precision: str | None, batches: str | None
) -> None:
    plan = plan_of(
        machine,
        preset=preset,
        strategies=strategies,
        precision=precision,
        batch_per_device=batches,
    )
    cases = [case for name in plan.workloads for case in plan.comparison(name)]
    assert cases
    checked = [*cases, *plan.parity_cases(cases)]
    assert len({str(case) for case in checked}) == len(set(checked)) == len(checked)


# --- parity -------------------------------------------------------------------------------------------


def test_one_parity_check_for_each_way_of_training_whatever_the_batch() -> None:
    plan = plan_of(gpus(4), workloads="resnet50", strategies="single,ddp", global_batch_size="64,128", precision="fp32")
    cases = plan.comparison("resnet50")
    assert len(cases) == 6  # 2 batches at 1, 2 and 4 devices
    # 2 samples a device
    assert [str(case) for case in plan.parity_cases(cases)] == [
        "resnet50-single-1x-b2-fp32-parity",
        "resnet50-ddp-2x-b4-fp32-parity",
        "resnet50-ddp-4x-b8-fp32-parity",
    ]


def test_lossy_precision_is_checked_in_fp32_as_well() -> None:
    plan = plan_of(gpus(2), workloads="resnet50", strategies="ddp")
    texts = [str(case) for case in plan.parity_cases(plan.comparison("resnet50"))]
    assert sorted(texts) == ["resnet50-ddp-2x-b4-bf16-parity", "resnet50-ddp-2x-b4-fp32-parity"]


def test_both_places_of_the_loss_are_checked() -> None:
    plan = plan_of(cpu(), workloads="bert_small", strategies="dp")
    texts = [str(case) for case in plan.parity_cases(plan.comparison("bert_small"))]
    assert texts == ["bert_small-dp-2x-b4-fp32-parity", "bert_small-dp-2x-b4-fp32-loss_on:replica-parity"]


@pytest.mark.parametrize("gpu0_bsz", [0, 2, 3, 64])
def test_every_case_that_can_run_has_a_parity_check_that_can(gpu0_bsz: int) -> None:
    """The check's small batch must not fall below the share that was set for the first device."""
    plan = plan_of(gpus(2), workloads="resnet50", strategies=f"balanced_dp:gpu0_bsz={gpu0_bsz}", precision="fp32")
    (case,) = plan.comparison("resnet50")
    assert reason_to_skip(case, plan.machine, None) is None  # 128 // 2 = 64 at the most
    (check,) = plan.parity_cases([case])
    assert reason_to_skip(check, plan.machine, None) is None
    assert check.settings == (NameValue(name="gpu0_bsz", value=str(gpu0_bsz)),)


def test_parity_cases_of_a_default_run_can_all_run() -> None:
    for machine in (cpu(2), cpu(1), gpus(1), gpus(4), gpus(8)):
        plan = plan_of(machine)
        cases = [case for name in plan.workloads for case in plan.comparison(name)]
        assert [reason_to_skip(case, machine, None) for case in cases] == [None] * len(cases)
        checks = plan.parity_cases(cases)
        assert [reason_to_skip(case, machine, 1000) for case in checks] == [None] * len(checks)


# --- expected time ------------------------------------------------------------------------------------


def test_expected_time_grows_with_the_launches() -> None:
    plan = plan_of(cpu())
    assert plan.expected_seconds(0, 0) == 0
    assert plan.expected_seconds(10, 0) == pytest.approx(10 * plan.expected_seconds(1, 0))
    assert plan.expected_seconds(10, 4) > plan.expected_seconds(10, 0)


def test_default_plans_fit_into_the_time_that_was_promised() -> None:
    # The standard preset: at most about 45 minutes, here on the largest common box; the quick one: about 5.
    for machine, minutes in ((gpus(8), 45), (gpus(4), 45), (cpu(2), 5)):
        plan = plan_of(machine)
        cases = [case for name in plan.workloads for case in plan.comparison(name)]
        seconds = plan.expected_seconds(plan.launches * len(cases), len(plan.parity_cases(cases)))
        assert seconds <= 1.1 * 60 * minutes, f"{len(cases)} cases, {seconds / 60:.0f} minutes"


def test_a_class_found_elsewhere_does_not_join_the_suites_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan_of(cpu()).workloads
    monkeypatch.setattr(workloads.registry.get("mnist_cnn"), "address", "file.py:Somebody")
    assert plan_of(cpu()).workloads == tuple(name for name in before if name != "mnist_cnn")
