"""`python -m bench compare` from the command line: exit status, formats, names."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.schema import Case, NameValue
from tests.recording.made_up import NASTY, START, cpu_run, made_case, made_run, write_run

CASES = (made_case("single", 1, 64), made_case("ddp", 4, 256), made_case("fsdp", 4, 256))
RATES = {"single": 1200.0, "ddp": 4600.0, "fsdp": 4500.0}
FINGERPRINT = "0123456789abcdef"


def night(
    results: Path,
    number: int,
    slower: dict[str, float] | None = None,
    *,
    fingerprint: str = FINGERPRINT,
    launches: int = 6,
    failed: Sequence[tuple[Case, dict[str, object]]] = (),
    torch: str = "2.14.1",
    name: str = "night",
) -> str:
    """A run of three cases with noise of 0.5 %; `slower`: by what the rate of a strategy is divided."""
    noise = random.Random(number)
    plan = []
    for case in CASES:
        if case.strategy not in {other.strategy for other, _ in failed}:
            rate = RATES[case.strategy] / (slower or {}).get(case.strategy, 1.0)
            plan.append((case, [rate * noise.lognormvariate(0, 0.005) for _ in range(launches)], []))
    run = made_run(
        run_id=f"{name}{number:02d}", started_at=START + timedelta(days=number), fingerprint=fingerprint,
        packages=(NameValue(name="torch", value=torch),),
    )  # fmt: skip
    if fingerprint != FINGERPRINT:
        run = replace(run, cpu_cores=64)
    write_run(results, plan, run=run, failed=failed)  # type: ignore[arg-type]
    return f"{name}{number:02d}"


def compare(capsys: pytest.CaptureFixture[str], results: Path, *arguments: str) -> tuple[int, str]:
    status = main(["compare", *arguments, "--results", str(results)])
    out = capsys.readouterr()
    return status, out.out + out.err


def test_a_run_against_itself_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = night(tmp_path, 0)
    for base in (name, "latest", str(tmp_path / name)):
        status, text = compare(capsys, tmp_path, base, name, "--fail-on-slower", "0%")
        assert status == 0
        assert "This is the same run on both sides: nothing can be slower." in text
        assert "slower" not in text.splitlines()[3]


def test_a_slower_case_exits_10_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = night(tmp_path, 0), night(tmp_path, 1, {"ddp": 1.10})
    status, text = compare(capsys, tmp_path, base, head)
    assert status == 10
    lines = text.splitlines()
    at = lines.index("Regressions (slower by more than 3 % with the whole interval, or broken):")
    assert lines[at + 1].strip() == "resnet50-ddp-4x-b256-bf16" and not lines[at + 2].startswith("  ")
    assert compare(capsys, tmp_path, base, head, "--fail-on-slower", "20%")[0] == 0
    assert compare(capsys, tmp_path, head, base)[0] == 0, "faster is no regression"


def test_a_window_of_nights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        night(tmp_path, number)
    same, slow = night(tmp_path, 4), night(tmp_path, 5, {"fsdp": 1.10})
    status, text = compare(capsys, tmp_path, "last:4", same)
    assert status == 0 and f"{same} against the last 4 comparable runs (night00 to night03)" in text
    assert compare(capsys, tmp_path, "last:5", slow)[0] == 10


def test_without_a_comparable_baseline_it_exits_11_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, head = night(tmp_path, 0, fingerprint="feedfacefeedface"), night(tmp_path, 1)
    for form in ("text", "markdown", "json"):
        status, text = compare(capsys, tmp_path, other, head, "--format", form)
        assert status == 11 and "64" in text and "16" in text
    status, text = compare(capsys, tmp_path, "last:10", head)
    assert status == 11 and f"there are no comparable runs before {head} in {tmp_path}" in text
    assert f"{other}, the newest of those that are not comparable: " in text


def test_without_a_case_in_common_it_exits_11(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(run_id="other")
    write_run(tmp_path, [(made_case("ddp", 2, 8), [1.0, 1.1], [])], run=run)
    status, text = compare(capsys, tmp_path, "other", night(tmp_path, 1))
    assert status == 11 and "no case could be compared" in text


def test_a_case_that_fails_now_exits_10(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = night(tmp_path, 0)
    head = night(tmp_path, 1, failed=[(CASES[1], {"status": "oom", "reason": "rank 2: CUDA out of memory"})])
    status, text = compare(capsys, tmp_path, base, head)
    assert status == 10 and "REGRESSION, broken: oom: rank 2: CUDA out of memory (before: ok)" in text


def test_few_launches_are_not_decided_and_no_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = night(tmp_path, 0, launches=1), night(tmp_path, 1, {"ddp": 1.5}, launches=1)
    status, text = compare(capsys, tmp_path, base, head)
    assert status == 0 and "Not decided for 3 of 3 cases" in text and "--launches" in text


def test_json_holds_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = night(tmp_path, 0), night(tmp_path, 1, {"ddp": 1.10}, torch="2.15.0")
    status, text = compare(capsys, tmp_path, base, head, "--format", "json")
    found = json.loads(text)
    assert (found["exit_status"], found["head"], found["base"], found["same_run"]) == (status, head, [base], False)
    ddp = next(case for case in found["cases"] if "-ddp-" in case["case_id"])
    assert (ddp["verdict"], ddp["regression"], ddp["base_launches"]) == ("slower", True, 6)
    assert 1.03 < ddp["low"] < ddp["times_as_long"] < ddp["high"] < 1.2
    assert ddp["head_seconds"] / ddp["base_seconds"] == pytest.approx(ddp["times_as_long"])
    assert {"name": "torch", "base": "2.14.1", "head": "2.15.0"} in found["environment_differences"]
    assert {"title", "seen", "remedy"} == set(found["checks"][0]) == set(found["baseline_checks"][0])


def test_markdown_takes_names_literally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("base", "head"):
        case = made_case("ddp", 4, 256, workload=NASTY)
        write_run(tmp_path, [(case, [100.0, 101.0, 102.0], [])], run=made_run(run_id=name))
    _, text = compare(capsys, tmp_path, "base", "head", "--format", "markdown")
    plain = re.sub("`[^`]*`", "", text)  # in code nothing is markup
    assert "\\<img" in plain and "<img" not in plain.replace("\\<img", "")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}


def test_checks_and_notices_of_the_judged_run_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = cpu_run(tmp_path).name
    _, text = compare(capsys, tmp_path, name, name)
    assert "CPU run: it shows the suite working, not GPU speed" in text
    assert "! Emulated by host replicas: correctness only, not ranked" in text
    assert "    -> torch's DataParallel needs GPUs" in text


@pytest.mark.parametrize("limit", ["3", "0.03", "-3%", "three%", "%"])
def test_a_limit_is_a_percentage(tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: str) -> None:
    name = night(tmp_path, 0)
    status, text = compare(capsys, tmp_path, name, name, f"--fail-on-slower={limit}")
    assert status == 2 and "write e.g. --fail-on-slower 3%" in text


def test_an_unknown_run_is_an_error_that_lists_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = night(tmp_path, 0)
    status, text = compare(capsys, tmp_path, "nonsense", name)
    assert status == 2 and "no run 'nonsense'" in text and name in text


def test_a_window_without_a_number_is_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = night(tmp_path, 0)
    for window in ("last:x", "last:", "last:-1"):
        status, text = compare(capsys, tmp_path, window, name)
        assert status == 2 and f"{window} is no window of runs" in text and "last:10" in text


def test_latest_is_told_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = night(tmp_path, 0)
    assert compare(capsys, tmp_path, "latest", "latest")[1].splitlines()[0] == f"{name} against run {name}"


def test_a_parity_that_is_missed_now_is_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parity_case = replace(CASES[1], precision="fp32")
    check = replace(parity_case, purpose="parity", global_batch_size=8)
    crash = [(check, {"status": "error", "reason": "planted"})]
    for name, rate, error in (
        ("good", 1000, 2e-7),
        ("bad", 1300, 0.9),
        ("worse", 1300, 0.9),
        ("unchecked", 1000, None),
    ):
        write_run(
            tmp_path, [(CASES[1], [rate, rate + 1.0, rate - 1.0], [])], run=made_run(run_id=name),
            parity=[(parity_case, error)] if error is not None else [],
        )  # fmt: skip
    write_run(tmp_path, [(CASES[1], [1000.0, 1001.0, 999.0], [])], run=made_run(run_id="crashed"), failed=crash)
    status, text = compare(capsys, tmp_path, "good", "bad")
    assert status == 10 and "REGRESSION, broken: parity missed: parity error 9.0e-01" in text
    status, text = compare(capsys, tmp_path, "good", "crashed")
    assert status == 10 and "REGRESSION, broken: parity check ended as error: planted (before: ok)" in text
    status, text = compare(capsys, tmp_path, "bad", "good")
    assert status != 10 and "mended: parity ok now, missed before" in text, "slower, and right now"
    assert compare(capsys, tmp_path, "bad", "worse")[0] == 0, "it was so before"
    assert compare(capsys, tmp_path, "good", "unchecked")[0] == 0, "nothing is known to be wrong"


@pytest.mark.parametrize("nights", [3, 22])
def test_a_lost_parity_is_seen_against_any_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nights: int
) -> None:
    parity_case = replace(CASES[1], precision="fp32")
    for number in range(nights + 2):
        error = 2e-7 if number != nights + 1 else 0.9
        run = made_run(run_id=f"n{number:02d}", started_at=START + timedelta(days=number))
        write_run(tmp_path, [(CASES[1], [1000.0, 1001.0], [])], run=run, parity=[(parity_case, error)])
    status, text = compare(capsys, tmp_path, f"last:{nights}", f"n{nights + 1:02d}")
    assert status == 10 and "REGRESSION, broken: parity missed" in text


def test_doubts_about_the_baseline_are_told_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = night(tmp_path, 0, launches=2), night(tmp_path, 1)
    _, text = compare(capsys, tmp_path, base, head)
    assert f"! In the baseline ({base}): Too few launches for a useful interval" in text
    assert "! Too few launches" not in text and "In the baseline" not in compare(capsys, tmp_path, head, head)[1]


def test_a_refusal_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, head = night(tmp_path, 0, fingerprint="feedfacefeedface"), night(tmp_path, 1)
    assert "give a run of a machine like this one" in compare(capsys, tmp_path, other, head)[1]
    assert "measure the same cases on this machine again" in compare(capsys, tmp_path, "last:10", head)[1]


def test_an_unknown_option_is_told_with_the_commands_own_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        compare(capsys, tmp_path, "a", "b", "--fail-on-slow-er", "3%")
    assert "usage: python -m bench compare" in capsys.readouterr().err


def test_cases_that_are_gone_and_other_data_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = night(tmp_path, 0)
    write_run(tmp_path, [(CASES[0], [1200.0, 1201, 1199], [])], run=made_run(run_id="short"))
    status, text = compare(capsys, tmp_path, base, "short")
    assert status == 0 and "Not judged: 2 cases of the baseline are not in this run." in text


def test_a_run_against_itself_is_the_same_run_even_where_nothing_ended_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [(case, {"status": "error", "reason": "x\n\x1b[31my"}) for case in CASES]
    name = night(tmp_path, 0, failed=failed)
    status, text = compare(capsys, tmp_path, name, name)
    assert status == 0 and "the same run on both sides" in text and "\x1b" not in text


def test_a_window_counts_runs_that_share_a_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    night(tmp_path, 0)
    for number in (1, 2):
        run = made_run(run_id=f"other{number}", started_at=START + timedelta(days=number))
        write_run(tmp_path, [(made_case("ddp", 2, 8, workload="bert_small"), [1.0, 1.1], [])], run=run)
    status, text = compare(capsys, tmp_path, "last:1", night(tmp_path, 3))
    assert status == 0 and "against the last comparable run (night00)" in text


def test_a_baseline_without_a_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = compare(capsys, tmp_path, "", night(tmp_path, 0))
    assert status == 2 and "the baseline has no name" in text


def test_below_one_percent_a_regression_is_called_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rates in (("a", [1000.0, 1000.1, 999.9]), ("b", [995.0, 995.1, 994.9])):
        write_run(tmp_path, [(CASES[0], rates, [])], run=made_run(run_id=name))
    status, text = compare(capsys, tmp_path, "a", "b", "--fail-on-slower", "0.1%")
    assert status == 10 and "REGRESSION, slower" in text and "REGRESSION, same" not in text
