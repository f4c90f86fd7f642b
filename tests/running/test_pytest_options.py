"""The scenarios under pytest: what is refused, listed and ordered. Nothing is measured here."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]
USAGE_ERROR, OK = 4, 0
CPU = ("--device-type", "cpu")


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_inprocess("scenarios", "-p", "no:cacheprovider", *arguments)


def collected(suite: pytest.Pytester, *arguments: str) -> list[str]:
    """Ids of the collected tests, in order."""
    result = run(suite, "--collect-only", "-q", *CPU, *arguments)
    assert result.ret == OK, result.stderr.str()
    return [line.partition("[")[2].removesuffix("]") for line in result.outlines if "::" in line]


def everything_said(result: pytest.RunResult) -> str:
    return f"{result.stdout.str()}\n{result.stderr.str()}"


def assert_nothing_was_written(suite: pytest.Pytester) -> None:
    assert not (suite.path / "results").exists() and not (suite.path / "reports").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--strategies", "nope"), ("'nope'", "single", "dp", "balanced_dp", "ddp", "fsdp", "fsdp1")),
        (("--workloads", "nope"), ("'nope'", "mnist_cnn", "resnet50", "bert_small")),
        (("--preset", "nope"), ("'nope'", "quick", "standard", "full")),
        (("--device-type", "nope"), ("'nope'", "auto", "cuda", "cpu")),
        (("--devices", "4097"), ("4097 devices", "this machine has")),
        (("--launches", "many"), ("--launches", "'many'")),
    ],
    ids=str,
)
def test_bad_input_is_a_usage_error_that_lists_what_exists(
    suite: pytest.Pytester, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = run(suite, *(CPU if "--device-type" not in arguments else ()), *arguments)
    assert result.ret == USAGE_ERROR
    said = everything_said(result)
    assert [word for word in words if word not in said] == []
    assert "Traceback" not in said
    assert_nothing_was_written(suite)


@pytest.mark.parametrize(("option", "what"), [("--results", "results"), ("--reports", "report")])
def test_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    suite: pytest.Pytester, option: str, what: str
) -> None:
    suite.path.joinpath("taken").write_text("a file")
    result = run(suite, *CPU, "--workloads", "mnist_cnn", "--strategies", "single", option, "taken/here")
    assert result.ret == USAGE_ERROR
    said = everything_said(result)
    assert f"the {what} cannot be written to taken/here" in said and f"with {option} DIR" in said
    assert "results are in" not in said and "Traceback" not in said
    assert "parity_error" not in said and "images/s" not in said


def test_mistyped_option_is_told_with_the_nearest(suite: pytest.Pytester) -> None:
    result = run(suite, "--stratgies=dp", "--benchmark-columns=min")
    assert result.ret == USAGE_ERROR
    said = everything_said(result)
    assert "hint: --stratgies: did you mean --strategies?" in said and "--benchmark-columns:" not in said


@pytest.mark.parametrize("run_id", ["../elsewhere", "a/b", ".."])
def test_run_id_that_is_no_name_of_a_folder_is_refused(suite: pytest.Pytester, run_id: str) -> None:
    """Its tables would land outside of --results, or where no reader looks."""
    result = run(suite, *CPU, "--workloads", "mnist_cnn", "--strategies", "single", "--run-id", run_id)
    assert result.ret == USAGE_ERROR
    said = everything_said(result)
    assert run_id in said and "Traceback" not in said
    assert not (suite.path / "elsewhere").exists() and not (suite.path / "results" / "a").exists()


def test_xdist_is_refused_with_the_remedy(suite: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = run(suite, *CPU, "-n", "2")
    assert result.ret == USAGE_ERROR
    assert "one at a time" in everything_said(result) and "leave out -n" in everything_said(result)
    assert_nothing_was_written(suite)


def test_xdist_is_refused_in_its_workers_too(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the path does not tell that scenarios are among the tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = suite.runpytest_subprocess(".", "-p", "no:cacheprovider", "-n", "1", *CPU)
    assert result.ret == 1 and "run the scenarios without pytest-xdist" in everything_said(result)
    assert "INTERNALERROR" not in everything_said(result)
    assert_nothing_was_written(suite)


def test_xdist_is_not_refused_for_other_tests(suite: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    suite.path.joinpath("about_scenarios").mkdir()
    suite.path.joinpath("about_scenarios", "test_other.py").write_text("def test_it(): pass\n")
    result = suite.runpytest_inprocess("about_scenarios", "-p", "no:cacheprovider", "-n", "1", "--collect-only")
    assert result.ret == OK, everything_said(result)


def test_dry_run_lists_cases_time_and_places_and_writes_nothing(suite: pytest.Pytester) -> None:
    result = run(
        suite, *CPU, "--dry-run", "--devices", "0,0", "--run-id", "my-run", "--results", "kept", "--reports", "pages"
    )
    assert result.ret == OK
    said = everything_said(result)
    for strategy in ("dp", "balanced_dp", "ddp", "fsdp"):
        assert f"resnet50-{strategy}-2x0+0-b8-fp32" in said
    assert "mnist_cnn-single-1x-b128-fp32" in said
    # 3 x 5 cases and the two twins of BERT, 3 launches each, and a parity check for each way of training
    assert "17 cases, 51 launches, 17 parity checks" in said
    assert "minutes" in said
    assert "would be in kept/my-run" in said and "pages" in said
    assert not (suite.path / "kept").exists() and not (suite.path / "pages").exists()
    assert_nothing_was_written(suite)


def test_dry_run_says_what_would_be_skipped_and_why(suite: pytest.Pytester) -> None:
    said = run(suite, "--dry-run", *CPU, "--strategies", "ddp", "--global-batch-size", "7").stdout.str()
    assert "global_batch_size 7 does not divide over 2 devices; use 6 or 8" in said


def test_collect_only_shows_readable_ids_and_writes_nothing(suite: pytest.Pytester) -> None:
    ids = collected(suite, "--workloads", "resnet50", "--devices", "0,0", "--strategies", "single,ddp")
    assert sorted(ids) == [
        "resnet50-ddp-2x0+0-b4-fp32-parity",
        "resnet50-ddp-2x0+0-b8-fp32-launch0",
        "resnet50-ddp-2x0+0-b8-fp32-launch1",
        "resnet50-ddp-2x0+0-b8-fp32-launch2",
        "resnet50-single-1x-b2-fp32-parity",
        "resnet50-single-1x-b8-fp32-launch0",
        "resnet50-single-1x-b8-fp32-launch1",
        "resnet50-single-1x-b8-fp32-launch2",
    ]
    assert_nothing_was_written(suite)


def turn(name: str) -> str:
    """`parity`, `launch0`, `launch1`, ..."""
    return name.rpartition("-")[2]


def test_parity_comes_first_and_then_all_cases_launch_by_launch(suite: pytest.Pytester) -> None:
    ids = collected(suite, "--devices", "0,0", "--launches", "3")
    assert len(ids) == len(set(ids)) == 17 * 4
    turns = [turn(name) for name in ids]
    assert turns == ["parity"] * 17 + ["launch0"] * 17 + ["launch1"] * 17 + ["launch2"] * 17


def test_order_within_a_turn_is_random_but_seeded(suite: pytest.Pytester) -> None:
    first, again, other = (collected(suite, "--devices", "0,0", "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again
    assert first != other and sorted(first) == sorted(other)
    cases = [[name.removesuffix(f"-{turn(name)}") for name in first if turn(name) == f"launch{n}"] for n in (0, 1)]
    assert cases[0] != cases[1] and sorted(cases[0]) == sorted(cases[1])
    # Not workload by workload either.
    workloads = [name.partition("-")[0] for name in cases[0]]
    assert workloads != sorted(workloads)


def test_k_selects_among_the_ids(suite: pytest.Pytester) -> None:
    ids = collected(suite, "--devices", "0,0", "-k", "mnist_cnn and ddp and launch0")
    assert ids == ["mnist_cnn-ddp-2x0+0-b128-fp32-launch0"]


def test_case_that_is_known_to_be_skipped_has_one_launch_and_no_parity_check(suite: pytest.Pytester) -> None:
    arguments = (
        "--workloads",
        "mnist_cnn",
        "--strategies",
        "ddp",
        "--devices",
        "0,0,0,0",
        "--global-batch-size",
        "250",
    )
    assert collected(suite, *arguments) == ["mnist_cnn-ddp-4x0+0+0+0-b250-fp32-launch0"]


def test_workloads_that_were_not_chosen_leave_no_test_behind(suite: pytest.Pytester) -> None:
    ids = collected(suite, "--workloads", "mnist_cnn", "--strategies", "single", "--launches", "1")
    assert sorted(ids) == ["mnist_cnn-single-1x-b128-fp32-launch0", "mnist_cnn-single-1x-b2-fp32-parity"]
