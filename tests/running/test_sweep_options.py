"""Sweeps under pytest: when they are measured, and that no launch runs twice."""

from __future__ import annotations

from collections import Counter

import pytest

pytest_plugins = ["pytester"]
MNIST = ("--device-type", "cpu", "--workloads", "mnist_cnn", "--launches", "2")
SHARES = ("0", "6", "13", "19", "64", "auto")


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


def test_strategies_that_only_the_sweep_would_hear_are_refused(suite: pytest.Pytester) -> None:
    result = run(suite, "scenarios/test_load_balance.py", "--strategies", "single,ddp", "--dry-run")
    said = f"{result.stdout.str()}\n{result.stderr.str()}"
    assert result.ret == 4 and "--strategies chooses nothing here: load_balance has strategies of its own" in said
    # Every strategy of the sweep is named: it ignores the share all the same.
    named = run(suite, "scenarios/test_load_balance.py", "--strategies", "dp,ddp,balanced_dp:gpu0_bsz=3", "--dry-run")
    assert named.ret == 4


def test_strategies_that_the_sweep_ignores_are_told_beside_the_comparison(suite: pytest.Pytester) -> None:
    note = "load_balance has strategies of its own, not those of --strategies"
    both = ("scenarios", "--sweeps", "load_balance", "--dry-run")
    assert note in run(suite, *both, "--strategies", "single").stdout.str()
    assert note not in run(suite, *both).stdout.str()


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


def test_scaling_is_a_sweep_of_the_strategies_that_were_given_beside_single(suite: pytest.Pytester) -> None:
    ids = collected(suite, "scenarios", "--sweeps", "scaling", "--strategies", "ddp")
    timed = {id.partition("[")[2].partition("-launch")[0] for id in ids if "-launch" in id}
    assert timed == {f"mnist_cnn-{case}-fp32" for case in
                     ("single-1x-b128", "single-1x-b64", "ddp-1x-b128", "ddp-2x-b128", "ddp-1x-b64")}  # fmt: skip
    assert not [id for id in collected(suite, "scenarios", "--strategies", "ddp") if "single" in id or "-1x-" in id]


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
