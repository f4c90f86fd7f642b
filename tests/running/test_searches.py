"""What a search asks for, out of a session with made-up launches; and how pytest collects searches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.measuring.launch import LaunchResult
from bench.running import session as running
from bench.running.asking import SessionAsk
from bench.running.max_batch import NO_LIMIT, MaxBatch, bisection_of, max_batch_searches, step_down
from bench.running.verdicts import conclude_search
from bench.schema import Case, Launch, Outcome
from tests.planning.made_up_machines import cpu, gpus, plan_of
from tests.running.made_up_launches import OK, MadeUpLaunches, Open, mnist, rows

pytest_plugins = ["pytester"]
OOM = Outcome(status="oom", reason="full")
LIMIT = {"memory_limit": "1GiB"}
PURPOSES = ("search", "timing")


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch, launches: MadeUpLaunches) -> dict[str, int]:
    """The largest batch of each strategy whose probe ends ok; what the others do is an error."""
    found: dict[str, int] = {}

    def probe(launcher: Any, job: Any, world_size: int) -> LaunchResult:
        case = job.case
        made = launches.timed(launcher, job, world_size, None)
        if made.outcome != OK or case.global_batch_size <= found[case.strategy]:
            return made
        return replace(made, outcome=OOM, trace=None)

    monkeypatch.setattr(running, "probe_case", probe)
    return found


def search(open_session: Open, plan: Any, which: MaxBatch | None = None) -> tuple[Any, list[str], list[Launch]]:
    session, said = open_session(plan), []  # type: ignore[var-annotated]
    which = which or max_batch_searches(plan)[0]
    ask = SessionAsk(session, which, say=said.append, tell=lambda finished: None)
    which.run(ask)
    return session, said, ask.rows


def test_each_strategy_to_its_limit_then_all_are_timed(open_session: Open, fits: dict[str, int]) -> None:
    fits |= {"single": 100, "ddp": 201}
    plan, _ = mnist("single,ddp", data="synthetic", **LIMIT)
    session, said, found = search(open_session, plan)
    probed = [(row.strategy, row.global_batch_size, row.status) for row in found if row.purpose == "search"]
    assert probed[:3] == [("single", 128, "oom"), ("single", 64, "ok"), ("single", 96, "ok")]
    assert [entry for entry in probed if entry[0] == "ddp"][-2:] == [("ddp", 202, "oom"), ("ddp", 200, "ok")]
    timed = [(row.launch, row.case_id) for row in found if row.purpose == "timing"]
    single, ddp = "mnist_cnn-single-1x-b100-fp32-synthetic", "mnist_cnn-ddp-2x-b200-fp32-synthetic"
    assert sorted(timed) == sorted((launch, name) for launch in range(3) for name in (single, ddp))
    assert [launch for launch, _ in timed] == [0, 0, 1, 1, 2, 2]
    assert {row.search for row in rows(session)} == {"max_batch-mnist_cnn"}
    assert f"{ddp}: 200 is the largest global batch, 202 runs out of memory (9 probes)" in said


def test_launches_that_a_case_has_are_not_made_again(open_session: Open, fits: dict[str, int]) -> None:
    plan, cases = mnist("ddp", data="synthetic", **LIMIT)
    session = open_session(plan)
    session.time(cases[0], 0)
    ask = SessionAsk(session, max_batch_searches(plan)[0], say=print, tell=lambda finished: None)
    assert [launch.row.launch for launch in ask.measure(cases)[cases[0]]] == [0, 1, 2]
    assert [row.launch for row in ask.rows] == [1, 2]
    assert len(ask.measure(cases)[cases[0]]) == 3 and len(ask.rows) == 2


def test_the_end_of_the_data_is_said_and_no_maximum_is_claimed(open_session: Open, fits: dict[str, int]) -> None:
    fits["ddp"] = 10**9
    plan, _ = mnist("ddp", **LIMIT)  # 5,000 real digits
    _, said, found = search(open_session, plan)
    last = [row for row in found if row.purpose == "search"][-1]
    assert (last.status, last.global_batch_size) == ("skipped", 5002) and "the 5000 samples of the data" in last.reason
    assert "the largest global batch is 5000 or more" in said[0]


def test_what_cannot_be_trained_is_skipped_with_the_reason(open_session: Open, fits: dict[str, int]) -> None:
    fits |= {"ddp": 300, "single": 300}
    levers = "accumulation_steps=2"
    plan, _ = mnist("single,ddp:static_graph=on", data="synthetic", levers=levers, launches=1, **LIMIT)
    _, said, found = search(open_session, plan)
    (row,) = [row for row in found if row.strategy == "ddp"]
    assert (row.purpose, row.status) == ("search", "skipped") and "cannot skip synchronisation" in (row.reason or "")
    assert [row.strategy for row in found if row.purpose == "timing"] == ["single"]


def test_probes_compile_in_a_folder_of_their_own(
    open_session: Open, fits: dict[str, int], launches: MadeUpLaunches
) -> None:
    """What a probe compiled would make the first timed launch one that compiles nothing."""
    fits["ddp"] = 200
    search(open_session, mnist("ddp", data="synthetic", **LIMIT)[0])
    folders = {purpose: {job.compiled for job in launches.jobs if job.case.purpose == purpose} for purpose in PURPOSES}
    assert folders["search"] and len(folders["timing"]) == 1 and not folders["search"] & folders["timing"]


def test_an_error_ends_the_search_of_that_strategy_and_fails_the_test(
    open_session: Open, fits: dict[str, int], launches: MadeUpLaunches
) -> None:
    fits |= {"ddp": 300, "single": 300}
    launches.outcomes["mnist_cnn-ddp-2x-b256-fp32-synthetic-search"] = Outcome(status="error", reason="boom")
    plan, _ = mnist("single,ddp", data="synthetic", **LIMIT)
    _, _, found = search(open_session, plan)
    probed = [row.global_batch_size for row in found if row.purpose == "search" and row.strategy == "ddp"]
    assert probed == [128, 256]
    with pytest.raises(pytest.fail.Exception, match="b256-fp32-synthetic-search: error: boom"):
        conclude_search(found)


def test_a_search_has_a_bound(open_session: Open, fits: dict[str, int]) -> None:
    fits["ddp"] = 300
    plan, cases = mnist("ddp", data="synthetic", **LIMIT)
    which = MaxBatch(workload="mnist_cnn", cases=tuple(cases), probes_each=3)
    _, said, found = search(open_session, plan, which)
    probed = [(row.global_batch_size, row.status) for row in found if row.purpose == "search"]
    assert probed == [(128, "ok"), (256, "ok"), (512, "oom"), (384, "skipped")]
    assert "256 or more" in said[0]


def test_where_timing_needs_more_it_is_timed_at_less(
    open_session: Open, fits: dict[str, int], launches: MadeUpLaunches
) -> None:
    fits["ddp"] = 200
    launches.outcomes["mnist_cnn-ddp-2x-b200-fp32-synthetic"] = OOM
    plan, _ = mnist("ddp", data="synthetic", **LIMIT)
    _, said, found = search(open_session, plan)
    timed = [(row.global_batch_size, row.status) for row in found if row.purpose == "timing"]
    assert timed == [(200, "oom"), (190, "ok"), (190, "ok"), (190, "ok")]
    assert "a timed launch ran out of memory; it is timed at 5 % less" in said[-1]


def test_without_a_limit_cpu_workers_are_not_filled(open_session: Open, fits: dict[str, int]) -> None:
    _, said, found = search(open_session, mnist("single,dp", data="synthetic")[0])
    assert [(row.status, row.reason) for row in found] == [("skipped", NO_LIMIT)] * 2 and said == [NO_LIMIT]
    with pytest.raises(pytest.skip.Exception, match="give each worker a limit"):
        conclude_search(found)


# --- where a search begins ------------------------------------------------------------------------------


def ways(**options: Any) -> list[Case]:
    return [case for which in max_batch_searches(plan_of(gpus(4), **options)) for case in which.cases]


def test_every_strategy_on_all_devices_and_dp_with_both_losses() -> None:
    found = ways(workloads="bert_small", strategies="single,dp,ddp", precision="fp32")
    assert [(case.strategy, case.num_devices, case.setting("loss_on")) for case in found] == [
        ("single", 1, None), ("dp", 4, None), ("dp", 4, "replica"), ("ddp", 4, None)]  # fmt: skip
    # Batches that are compared make no further searches.
    assert len(ways(workloads="mnist_cnn", strategies="ddp", global_batch_size="64,128")) == 1


def test_begins_near_the_usual_batch_at_what_can_be_split() -> None:
    (ddp,) = ways(workloads="mnist_cnn", strategies="ddp", global_batch_size="102", levers="accumulation_steps=2")
    made = bisection_of(ddp, 10_003)
    assert made is not None and (made.unit, made.start, made.least, made.most) == (8, 96, 8, 10_000)
    (balanced,) = ways(workloads="mnist_cnn", strategies="balanced_dp:gpu0_bsz=5", global_batch_size="8")
    made = bisection_of(balanced, 10_000)  # 5 samples on GPU 0 of 4 need 20, and 4, 8, 16, 32 are tried
    assert made is not None and (made.least, made.start) == (32, 32)
    assert bisection_of(ddp, 7) is None and bisection_of(ddp, None) is None


def test_a_step_down_is_5_percent_or_one_unit() -> None:
    plan = plan_of(cpu(), workloads="mnist_cnn", strategies="ddp")
    (case,) = plan.comparison("mnist_cnn")
    steps = [step_down(replace(case, global_batch_size=batch)) for batch in (200, 10, 2)]
    assert [step and step.global_batch_size for step in steps] == [190, 8, None]


# --- pytest ---------------------------------------------------------------------------------------------


def run(suite: pytest.Pytester, *arguments: str) -> str:
    options = ("--device-type", "cpu", "--workloads", "mnist_cnn", "--strategies", "single,ddp", "--launches", "1")
    result = suite.runpytest_inprocess("-p", "no:cacheprovider", *options, *arguments)
    assert result.ret == 0, result.stderr.str()
    return result.stdout.str()


def test_searches_are_tests_after_all_launches(suite: pytest.Pytester) -> None:
    said = run(suite, "scenarios", "--sweeps", "max_batch", "--collect-only", "-q")
    ids = [line for line in said.splitlines() if "::" in line]
    assert ids[-1] == "scenarios/test_max_batch.py::test_largest_batch[max_batch-mnist_cnn]" and len(ids) == 5
    assert "max_batch" not in run(suite, "scenarios", "--collect-only", "-q")
    assert "1/" in run(suite, "scenarios/test_max_batch.py", "--collect-only", "-q", "-k", "largest_batch")


def test_dry_run_says_how_many_probes_there_may_be(suite: pytest.Pytester) -> None:
    said = run(suite, "scenarios/test_max_batch.py", "--dry-run", "--memory-limit", "300MiB")
    assert "then max_batch-mnist_cnn: up to 64 probes, then 2 launches; about" in said
    assert "max_batch-mnist_cnn, which begins with:\n    mnist_cnn-single-1x-b128-fp32\n" in said
    assert "--memory-limit: every launch had 300 MiB a device" in said
    assert not (suite.path / "results").exists()
