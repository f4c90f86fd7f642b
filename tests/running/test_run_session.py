"""From cases to rows on the disk, with made-up launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.errors import ResultsError
from bench.measuring.parity import parity_case
from bench.measuring.products import Products
from bench.metrics import registry as metrics
from bench.recording.reader import read_run
from bench.running import session as running
from bench.schema import MatrixProduct, Outcome, Trace
from bench.watching.watcher import Watcher
from tests.planning.made_up_machines import gpus
from tests.recording.made_up import made_run
from tests.running.made_up_launches import MadeUpLaunches, Open, mnist, rows


def test_every_launch_is_on_the_disk_at_once(open_session: Open) -> None:
    plan, (single, ddp) = mnist()
    session = open_session(plan)
    session.prepare([single, ddp])
    session.time(single, 0)
    assert [row.case_id for row in rows(session)] == [str(single)]
    session.time(ddp, 0)
    session.time(single, 1)
    found = sorted(rows(session), key=lambda row: row.position)
    assert [(row.position, row.case_id, row.launch) for row in found] == [
        (0, str(single), 0), (1, str(ddp), 0), (2, str(single), 1)
    ]  # fmt: skip
    assert {(row.status, row.purpose, row.threads_per_worker) for row in found} == {("ok", "timing", 1)}
    assert {row.backend for row in found if row.strategy == "ddp"} == {"gloo"}
    samples = read_run(session.folder).samples
    steps = samples[(samples["metric"] == "step_seconds") & (samples["case_id"] == str(ddp))]
    assert sorted(steps["value"]) == [0.5, 1.0]  # rounds of 1 and 2 s with 2 steps each


def test_products_are_in_the_row_of_the_run_before_the_first_launch_and_after_the_last(
    open_session: Open, launches: MadeUpLaunches
) -> None:
    found = (MatrixProduct(device_index=0, precision="fp32", devices_at_once=1, size=512, flops_per_second=1e9),)
    launches.products = Products(found=found, problem="planted")
    plan, cases = mnist("single")
    session = open_session(plan)
    session.prepare([*cases, *plan.parity_cases(cases)])
    assert read_run(session.folder).run.matrix_products == found
    row = session.time(cases[0], 0).row
    session.finish()
    data = read_run(session.folder)
    assert data.run.matrix_products == found and data.run.finished_at is not None
    assert data.run.notes == (*made_run().notes, "planted")
    # 1e6 FLOP a sample, 128 samples, steps of 0.5 and 1 s, a product at 1e9 FLOP/s.
    samples = data.samples[data.samples["metric"] == "matmul_utilization"]
    assert row.status == "ok" and sorted(samples["value"]) == pytest.approx([0.128, 0.256])


def test_nothing_to_time_needs_no_product(open_session: Open, launches: MadeUpLaunches) -> None:
    launches.products = Products(problem="planted")
    plan, cases = mnist("ddp", precision="tf32")
    session = open_session(plan)
    session.prepare(cases)
    assert read_run(session.folder).run.notes == made_run().notes, "tf32 is skipped on CPU"


@pytest.mark.parametrize("status", ["oom", "timeout"])
def test_case_that_ran_out_is_not_tried_again_and_the_others_are(
    open_session: Open, launches: MadeUpLaunches, status: Any
) -> None:
    plan, (single, ddp) = mnist()
    session = open_session(plan)
    launches.outcomes[str(ddp)] = Outcome(status=status, reason="planted", rank=1, phase="warm-up", traceback="tb")
    for number in (0, 1):
        for case in (ddp, single):
            session.time(case, number)
    assert launches.tried.count(str(ddp)) == 1 and launches.tried.count(str(single)) == 2
    first, second = (row for row in sorted(rows(session), key=lambda r: r.position) if row.case_id == str(ddp))
    assert (first.status, first.reason, first.rank, first.phase, first.traceback) == (
        status, "planted", 1, "warm-up", "tb"
    )  # fmt: skip
    assert second.status == "skipped" and second.reason is not None and status in second.reason
    assert second.threads_per_worker is None


@pytest.mark.parametrize(("phase", "tried"), [("cause of the miss", False), ("parity steps", True)])
def test_a_strategy_that_was_seen_to_train_something_else_is_not_timed(
    open_session: Open, launches: MadeUpLaunches, phase: str, tried: bool
) -> None:
    plan, (single, ddp) = mnist()
    session, checked = open_session(plan), parity_case(ddp)
    launches.outcomes[str(checked)] = Outcome(status="skipped", reason="reads shards", phase=phase)
    for case in (ddp, replace(ddp, global_batch_size=64), replace(ddp, precision="bf16"), single):
        session.check_parity(checked)
        row = session.time(case, 0).row
        refused = case is not single and not tried
        assert (row.status, row.reason) == (("skipped", "reads shards") if refused else ("ok", None))
    assert (str(ddp) in launches.tried) is tried


def test_case_that_failed_is_tried_again(open_session: Open, launches: MadeUpLaunches) -> None:
    plan, (single, _) = mnist()
    session = open_session(plan)
    launches.outcomes[str(single)] = Outcome(status="error", reason="planted")
    for number in (0, 1):
        assert session.time(single, number).row.status == "error"
    assert launches.tried == [str(single)] * 2


def test_case_that_cannot_run_is_recorded_with_the_reason(open_session: Open, launches: MadeUpLaunches) -> None:
    plan, (too_many, odd) = mnist("ddp", global_batch_size="8000,33")
    session = open_session(plan)
    by_batch = {case.global_batch_size: session.time(case, 0).row for case in (too_many, odd)}
    assert launches.tried == []
    assert {row.status for row in by_batch.values()} == {"skipped"}
    # The 5,000 images that ship
    assert "8000" in str(by_batch[8000].reason) and "5000" in str(by_batch[8000].reason)
    assert by_batch[33].reason == "global_batch_size 33 does not divide over 2 devices; use 32 or 34"
    assert (by_batch[8000].chunk_sizes, by_batch[33].chunk_sizes) == ((4000, 4000), ())
    assert len(rows(session)) == 2


def test_devices_that_cannot_talk_fail_the_cases_that_need_them(
    open_session: Open, launches: MadeUpLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "preflight", lambda launcher, job: "planted" if job.backend == "nccl" else None)
    plan, cases = mnist("single,dp,ddp", gpus(2))
    session = open_session(plan)
    assert session.prepare(cases) == ["planted"]
    found = {case.strategy: session.time(case, 0).row for case in cases}
    assert {name: row.status for name, row in found.items()} == {"single": "ok", "dp": "ok", "ddp": "error"}
    assert (found["ddp"].reason, found["ddp"].phase) == ("planted", "preflight")


def test_missed_parity_keeps_its_figure(open_session: Open, launches: MadeUpLaunches) -> None:
    plan, cases = mnist("ddp")
    (check,) = plan.parity_cases(cases)
    launches.outcomes[str(check)] = Outcome(status="error", reason="parity_error 0.9 is above 0.0001")
    session = open_session(plan)
    finished = session.check_parity(check)
    assert (finished.row.status, finished.row.purpose) == ("error", "parity")
    samples = read_run(session.folder).samples
    assert list(samples["metric"]) == ["parity_error"] and list(samples["value"]) == [0.9]


def test_metric_that_fails_does_not_hide_the_others(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trace: Trace) -> Any:
        raise KeyError("planted")

    broken = replace(metrics.get("epoch_seconds"), compute=fail)
    monkeypatch.setitem(metrics._items, "epoch_seconds", broken)
    plan, (single, _) = mnist()
    session = open_session(plan)
    assert session.time(single, 0).row.status == "ok"
    samples = read_run(session.folder).samples
    (row,) = samples[samples["metric"] == "epoch_seconds"].to_dict("records")
    assert row["value"] != row["value"] or row["value"] is None  # null
    assert "KeyError" in row["note"] and "planted" in row["note"]
    assert (samples["metric"] == "step_seconds").sum() == 2


def test_job_carries_what_was_typed(open_session: Open, launches: MadeUpLaunches) -> None:
    plan, (_, ddp) = mnist(seed=7, launch_timeout=11.0)
    open_session(plan).time(ddp, 0)
    (job,) = launches.jobs
    assert (job.case, job.seed, job.timeout_seconds, job.backend) == (ddp, 7, 11.0, "gloo")


def test_one_watcher_serves_every_timed_launch_and_ends_with_the_session(
    open_session: Open, launches: MadeUpLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, cases = mnist()
    session = open_session(plan)
    for case in cases:
        session.time(case, 0)
    (watcher,) = set(launches.watchers)
    assert isinstance(watcher, Watcher) and len(launches.watchers) == len(cases) > 1
    closed: list[bool] = []
    monkeypatch.setattr(watcher, "close", lambda: closed.append(True))
    session.close()
    assert closed == [True]


def test_finished_run_is_compacted_with_estimates(open_session: Open) -> None:
    plan, (single, ddp) = mnist()
    session = open_session(plan)
    for number in (0, 1, 2):
        for case in (single, ddp):
            session.time(case, number)
    session.finish()
    data = read_run(session.folder)
    assert len(data.launches) == 6
    assert data.run.finished_at is not None
    assert (session.folder / "estimates.parquet").is_file()


def test_one_results_folder_holds_a_run_id_once(open_session: Open) -> None:
    plan, _ = mnist()
    open_session(plan)
    with pytest.raises(ResultsError, match=made_run().run_id):
        open_session(plan)
