"""Bad input: a usage error that lists what exists, or names both numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from bench.errors import UsageError
from bench.planning.cli import add_options, read_options
from bench.planning.options import RunOptions
from bench.planning.plan import reason_to_skip
from tests.planning.made_up_machines import cpu, gpus, plan_of

STRATEGIES = ("single", "dp", "balanced_dp", "ddp", "fsdp", "fsdp1")


def refusal(machine: Any = None, **options: Any) -> str:
    with pytest.raises(UsageError) as raised:
        plan_of(machine or cpu(), **options)
    return str(raised.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategies": "ddp,nope"}, ("strategy 'nope'", *STRATEGIES)),
        ({"workloads": "resnet50,nope"}, ("workload 'nope'", "mnist_cnn", "resnet50", "bert_small")),
        ({"preset": "nope"}, ("preset 'nope'", "quick", "standard", "full")),
        ({"data": "nope"}, ("data 'nope'", "synthetic", "real")),
        ({"levers": "nope=1"}, ("lever 'nope'", "precision", "accumulation_steps")),
        ({"precision": "fp8"}, ("'fp8'", "fp32", "tf32", "bf16")),
        ({"levers": "precision=fp8"}, ("'fp8'", "fp32", "tf32", "bf16")),
        ({"strategies": "dp:nope=1"}, ("'nope'", "loss_on")),
        ({"strategies": "single:nope=1"}, ("'nope'", "none")),
        ({"strategies": "dp:loss_on=nope"}, ("'nope'", "device0", "replica")),
        ({"strategies": "fsdp1:sharding_strategy=nope"}, ("'nope'", "full_shard", "shard_grad_op", "no_shard")),
    ],
    ids=str,
)
def test_unknown_name_lists_what_exists(options: dict[str, str], words: tuple[str, ...]) -> None:
    text = refusal(**options)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("name", ["torchvision:vit_h_14", "mine/model", "mine.py"])
def test_own_model_under_workloads_is_sent_to_workload(name: str) -> None:
    hint = f"; a model of your own goes to --workload {name}"
    assert refusal(workloads=f"resnet50,{name}").endswith(hint)
    assert "--workload " not in refusal(workloads="resnet")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategies": "balanced_dp:gpu0_bsz=many"}, ("gpu0_bsz", "'many'", "whole number")),
        ({"strategies": "balanced_dp:gpu0_bsz=-1"}, ("gpu0_bsz", "'-1'", "whole number")),
        ({"strategies": "balanced_dp:gpu0_bsz"}, ("gpu0_bsz", "lacks a value")),
        ({"strategies": "balanced_dp:gpu0_bsz="}, ("gpu0_bsz", "whole number")),
        ({"strategies": ""}, ("--strategies", "empty")),
        ({"workloads": " , "}, ("--workloads", "empty")),
        ({"levers": ""}, ("--levers", "empty")),
        ({"levers": "accumulation_steps"}, ("accumulation_steps", "lacks a value")),
        ({"levers": "accumulation_steps=0"}, ("accumulation_steps", "'0'", "whole number from 1")),
        ({"levers": "accumulation_steps=two"}, ("accumulation_steps", "'two'")),
        ({"global_batch_size": "0"}, ("--global-batch-size", "'0'", "from 1 to")),
        ({"global_batch_size": "64,many"}, ("--global-batch-size", "'many'")),
        ({"global_batch_size": "-8"}, ("--global-batch-size", "'-8'")),
        ({"batch_per_device": "1.5"}, ("--batch-per-device", "'1.5'")),
        ({"global_batch_size": "8", "batch_per_device": "4"}, ("--global-batch-size", "--batch-per-device")),
        ({"launches": 0}, ("--launches 0", "1 or more")),
        ({"rounds": -1}, ("--rounds -1", "1 or more")),
        ({"launch_timeout": 0.0}, ("--launch-timeout 0",)),
        ({"launch_timeout": float("nan")}, ("--launch-timeout nan",)),
        ({"launch_timeout": float("inf")}, ("--launch-timeout inf", "at most 604800")),
        ({"seed": -1}, ("--seed -1", "0 to 4294967295")),
        ({"seed": 1 << 64}, ("--seed 18446744073709551616", "0 to 4294967295")),
        ({"global_batch_size": "99999999999999999999"}, ("--global-batch-size", "1000000000")),
        ({"devices": " "}, ("--devices is empty",)),
        ({"data_root": Path("/nowhere/at/all")}, ("--data-root /nowhere/at/all does not exist",)),
    ],
    ids=str,
)
def test_value_that_means_nothing_is_named_with_what_would(options: dict[str, Any], words: tuple[str, ...]) -> None:
    text = refusal(**options)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("machine", "devices", "words"),
    [
        (gpus(1), "4", ("4 devices", "1 GPU", "--devices 0,0")),
        (cpu(2), "5", ("5 devices", "2 CPU cores")),
        (gpus(2), "0", ("0 devices", "2 GPUs")),
        (gpus(2), "-1", ("-1", "2 GPUs")),
        (gpus(2), "0,2", ("device 2", "2 GPUs")),
        (gpus(2), "0,-1", ("device -1", "2 GPUs")),
        (gpus(2), ",", ("2 GPUs",)),
        (gpus(2), "all", ("'all'", "2 GPUs")),
        (gpus(2), "0,x", ("'0,x'", "2 GPUs")),
        (gpus(2), "", ("2 GPUs",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_devices_that_are_not_there_are_refused_with_both_numbers(
    machine: Any, devices: str, words: tuple[str, ...]
) -> None:
    text = refusal(machine, devices=devices)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    "options",
    [
        {"strategies": "balanced_dp:gpu0_bsz=1:gpu0_bsz=2"},
        {"levers": "precision=bf16", "precision": "fp32"},
        {"levers": "accumulation_steps=2,accumulation_steps=4"},
    ],
    ids=str,
)
def test_one_setting_with_two_values_is_refused(options: dict[str, str]) -> None:
    """Otherwise one of them would be dropped without a word."""
    refusal(**options)


@pytest.mark.parametrize("arguments", [["--launches", "many"], ["--seed", "x"], ["--launch-timeout", "soon"]])
def test_numbers_are_checked_where_they_are_typed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_options_left_out_are_the_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert read_options(parser.parse_args([])) == RunOptions()


def test_typed_options_arrive() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    typed = "--preset full --devices 0,0 --strategies ddp --launches 3 --rounds 4 --seed 7 --dry-run --run-id x"
    options = read_options(parser.parse_args(typed.split()))
    assert (options.preset, options.devices, options.strategies) == ("full", "0,0", "ddp")
    assert (options.launches, options.rounds, options.seed) == (3, 4, 7)
    assert options.dry_run and options.run_id == "x"


# --- what is no usage error, but skipped with a reason -----------------------------------------------


def test_batch_that_does_not_divide_is_skipped_with_the_nearest_batches() -> None:
    plan = plan_of(gpus(4), global_batch_size="250", workloads="resnet50", preset="full")
    reasons = {
        (case.strategy, case.num_devices): reason_to_skip(case, plan.machine, None)
        for case in plan.comparison("resnet50")
    }
    text = "global_batch_size 250 does not divide over 4 devices; use 248 or 252"
    assert {reasons[strategy, 4] for strategy in ("ddp", "fsdp", "fsdp1")} == {text}
    # One process splits 250 samples over 4 devices, and 250 = 2 * 125.
    assert {reasons[strategy, 4] for strategy in ("dp", "balanced_dp")} == {None}
    assert {reasons[strategy, 2] for strategy in ("dp", "ddp", "fsdp", "fsdp1")} == {None}
    assert reasons["single", 1] is None


def test_precision_that_the_device_lacks_is_skipped_with_the_remedy() -> None:
    on_cpu = plan_of(cpu(), precision="tf32")
    old = plan_of(gpus(2, bf16=False), precision="bf16")
    for plan, word in ((on_cpu, "tf32"), (old, "bf16")):
        for case in plan.comparison("resnet50"):
            reason = reason_to_skip(case, plan.machine, None)
            assert reason is not None and word in reason and "use fp32" in reason


def test_batch_above_the_samples_of_the_data_is_skipped_with_both_numbers() -> None:
    plan = plan_of(cpu(), global_batch_size="8000", workloads="mnist_cnn")
    reason = reason_to_skip(plan.comparison("mnist_cnn")[0], plan.machine, 5000)
    assert reason is not None and "8000" in reason and "5000" in reason and "--data synthetic" in reason


def test_gpu0_bsz_above_the_even_share_is_skipped_with_the_numbers() -> None:
    plan = plan_of(gpus(4), strategies="balanced_dp:gpu0_bsz=100", global_batch_size="256", workloads="resnet50")
    reasons = {case.num_devices: reason_to_skip(case, plan.machine, None) for case in plan.comparison("resnet50")}
    assert reasons[2] is None  # 256 // 2 = 128
    assert reasons[4] is not None and "gpu0_bsz 100" in reasons[4] and "64" in reasons[4]
