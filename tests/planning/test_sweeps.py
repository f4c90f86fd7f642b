"""Sweeps: what the load-balance scenario asks for, when it is measured, and that no launch runs twice."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from bench.planning.plan import reason_to_skip
from bench.schema import Case
from scenarios import test_load_balance as load_balance
from tests.planning.made_up_machines import cpu, gpus, plan_of

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]
MNIST = ("--device-type", "cpu", "--workloads", "mnist_cnn", "--launches", "2")
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


# --- when they are measured -----------------------------------------------------------------------------


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """The suite's scenarios and conftest.py in a folder of their own."""
    shutil.copytree(ROOT / "scenarios", pytester.path / "scenarios", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "conftest.py", pytester.path)
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_inprocess("-p", "no:cacheprovider", *MNIST, *arguments)


def collected(suite: pytest.Pytester, *arguments: str) -> list[str]:
    """Node ids, in order."""
    result = run(suite, "--collect-only", "-q", *arguments)
    assert result.ret == 0, result.stderr.str()
    return [line for line in result.outlines if "::" in line]


def swept(ids: list[str]) -> set[str]:
    """Shares that are timed."""
    return {id.partition("gpu0_bsz:")[2].partition("-launch")[0] for id in ids if "gpu0_bsz:" in id and "launch" in id}


def test_sweep_is_not_measured_unless_asked_for(suite: pytest.Pytester) -> None:
    ids = collected(suite, "scenarios")
    assert ids and swept(ids) == set() and not [id for id in ids if "test_load_balance" in id]


@pytest.mark.parametrize(
    "arguments",
    [
        ("scenarios", "--sweeps", "load_balance"),
        ("scenarios/test_load_balance.py::test_training_step",),
        ("scenarios/test_mnist_cnn.py", "scenarios/test_load_balance.py"),
    ],
    ids=" ".join,
)
def test_sweep_is_measured_when_its_name_or_its_file_asks_for_it(
    suite: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    assert swept(collected(suite, *arguments)) == set(SHARES)


def test_full_preset_measures_every_sweep(suite: pytest.Pytester) -> None:
    assert {"0", "auto"} <= swept(collected(suite, "scenarios", "--preset", "full"))


def test_any_module_can_declare_itself_a_sweep(suite: pytest.Pytester) -> None:
    text = suite.path.joinpath("scenarios", "test_mnist_cnn.py").read_text()
    suite.path.joinpath("scenarios", "test_more.py").write_text(
        text.replace("def cases", "SWEEP = True\n\n\ndef cases", 1).replace(
            'plan.comparison("mnist_cnn")', '[plan.case("mnist_cnn", "ddp", 2, 32)]'
        )
    )
    found = ["b32" in id for id in collected(suite, "scenarios", "--sweeps", "load_balance")]
    assert found and not any(found)
    found = ["b32" in id for id in collected(suite, "scenarios", "--sweeps", "load_balance,more")]
    assert sum(found) == 2  # launches; its check is that of every ddp case


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scenarios", "--sweeps", "nope"), ("no sweep 'nope'", "load_balance")),
        (("scenarios/test_mnist_cnn.py", "--sweeps", "load_balance"), ("no sweep 'load_balance'", "folder scenarios")),
        (("scenarios", "--sweeps", ","), ("--sweeps is empty",)),
    ],
    ids=str,
)
def test_unknown_sweep_is_a_usage_error(
    suite: pytest.Pytester, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = run(suite, *arguments)
    said = f"{result.stdout.str()}\n{result.stderr.str()}"
    assert result.ret == 4 and [word for word in words if word not in said] == [] and "Traceback" not in said
    assert not (suite.path / "results").exists()


def test_launch_that_two_scenarios_ask_for_runs_once_and_under_its_main_scenario(suite: pytest.Pytester) -> None:
    ids = collected(suite, "scenarios", "--sweeps", "load_balance", "--strategies", "single,dp,ddp,balanced_dp")
    launches = Counter(id.partition("[")[2] for id in ids)
    assert set(launches.values()) == {1}
    # Timing and parity of dp and ddp are in both modules: 2 launches and a check each.
    both = [id for id in ids if "[mnist_cnn-ddp-" in id or "[mnist_cnn-dp-2x-b128-fp32-launch" in id]
    assert len(both) == 2 + 2 + 1 and {id.partition("::")[0] for id in both} == {"scenarios/test_mnist_cnn.py"}
    # Without the main scenario the sweep measures them itself.
    alone = collected(suite, "scenarios/test_load_balance.py")
    assert sum("[mnist_cnn-ddp-" in id for id in alone) == 3


def test_order_is_parity_first_then_launch_by_launch(suite: pytest.Pytester) -> None:
    ids = collected(suite, "scenarios", "--sweeps", "load_balance")
    turns = [-1 if id.endswith("-parity]") else int(id[-2]) for id in ids]
    assert turns == sorted(turns) and set(turns) == {-1, 0, 1}
    again = collected(suite, "scenarios", "--sweeps", "load_balance", "--seed", "1")
    assert set(again) == set(ids) and again != ids


def test_dry_run_lists_the_sweep_and_counts_each_case_once(suite: pytest.Pytester) -> None:
    result = run(suite, "scenarios", "--sweeps", "load_balance", "--strategies", "dp,ddp", "--dry-run")
    assert result.ret == 0
    said = result.stdout.str()
    # 6 shares, dp with both losses, ddp; a check for each.
    assert "9 cases, 18 launches, 9 parity checks" in said
    assert said.count("  mnist_cnn-ddp-2x-b128-fp32\n") == 1
    assert "  mnist_cnn-balanced_dp-2x-b128-fp32-gpu0_bsz:auto\n" in said
    assert not (suite.path / "results").exists()
