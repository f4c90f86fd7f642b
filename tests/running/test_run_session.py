"""From cases to rows on the disk, with made-up launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.errors import DataError, ResultsError
from bench.measuring import yardstick
from bench.measuring.flops import FlopCount
from bench.measuring.launch import Clock, LaunchResult
from bench.measuring.parity import parity_case
from bench.measuring.products import Products
from bench.measuring.tasks import Job
from bench.metrics import registry as metrics
from bench.planning.plan import Plan
from bench.recording.reader import read_run
from bench.running import session as running
from bench.running.machinery import run_notes
from bench.running.progress import clock_text
from bench.running.session import RunSession
from bench.schema import Case, DeviceTrace, Launch, MatrixProduct, Outcome, ParityTrace, Trace
from bench.watching.watcher import Watcher
from bench.workloads.mnist_cnn import MnistCnn
from tests.planning.made_up_machines import cpu, gpus, plan_of
from tests.recording.made_up import made_run

OK = Outcome(status="ok")


class MadeUpLaunches:
    """Stands in for the two ways to launch: ends as scripted for a case, else well."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.tried: list[str] = []
        self.jobs: list[Job] = []
        self.watchers: list[Any] = []
        self.products = Products()

    def timed(self, launcher: Any, job: Job, world_size: int, plan: Any, watcher: Any = None) -> LaunchResult:
        self.watchers.append(watcher)
        outcome = self._outcome(job)
        devices = tuple(DeviceTrace(device_index=index) for index in range(job.case.num_devices))
        trace = Trace(case=job.case, steps_per_round=2, round_seconds=(1.0, 2.0), devices=devices)
        return LaunchResult(outcome=outcome, clock=Clock(), trace=trace if outcome == OK else None)

    def parity(self, launcher: Any, job: Job, world_size: int) -> LaunchResult:
        trace = Trace(case=job.case, parity=ParityTrace(error=0.9))
        return LaunchResult(outcome=self._outcome(job), clock=Clock(), trace=trace)

    def _outcome(self, job: Job) -> Outcome:
        self.tried.append(str(job.case))
        self.jobs.append(job)
        return self.outcomes.get(str(job.case), OK)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> MadeUpLaunches:
    made = MadeUpLaunches()
    monkeypatch.setattr(running, "time_case", made.timed)
    monkeypatch.setattr(running, "parity_of", made.parity)
    monkeypatch.setattr(running, "preflight", lambda launcher, job: None)
    monkeypatch.setattr(yardstick, "measure_products", lambda launcher, job: made.products)
    monkeypatch.setattr(yardstick, "count_flops", lambda launcher, job: FlopCount(per_sample=1e6))
    return made


Open = Callable[[Plan], RunSession]


@pytest.fixture
def open_session(tmp_path: Path, launches: MadeUpLaunches) -> Iterator[Open]:
    opened = []

    def make(plan: Plan) -> RunSession:
        plan = replace(plan, options=replace(plan.options, results=tmp_path))
        launcher: Any = SimpleNamespace(threads_per_worker=1)
        opened.append(RunSession(plan, launcher, made_run(device_type=plan.machine.device_type)))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


def rows(session: RunSession) -> list[Launch]:
    return list(read_run(session.folder).launches)


def mnist(strategies: str = "single,ddp", machine: Any = None, **options: Any) -> tuple[Plan, list[Case]]:
    plan = plan_of(machine or cpu(), workloads="mnist_cnn", strategies=strategies, **options)
    return plan, plan.comparison("mnist_cnn")


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


def test_data_is_prepared_once_for_all_launches(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = MnistCnn.prepare

    def prepare(self: MnistCnn, data: str, data_root: Any, cache: Path) -> Any:
        calls.append(data)
        return original(self, data, data_root, cache)

    monkeypatch.setattr(MnistCnn, "prepare", prepare)
    plan, cases = mnist()
    session = open_session(plan)
    session.prepare(cases)
    assert calls == ["real"]  # before any launch
    for case in cases:
        session.time(case, 0)
    assert calls == ["real"]
    assert {row.data_source for row in rows(session)} != {None}


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


def test_data_that_is_not_there_skips_its_cases_with_the_remedy(open_session: Open, launches: MadeUpLaunches) -> None:
    plan = plan_of(cpu(), workloads="bert_small,mnist_cnn", strategies="single", data="real")
    session = open_session(plan)
    (bert,), (digits,) = plan.comparison("bert_small"), plan.comparison("mnist_cnn")
    session.prepare([bert, digits])
    row = session.time(bert, 0).row
    assert row.status == "skipped" and "--data-root" in str(row.reason)
    assert session.time(digits, 0).row.status == "ok"


def test_data_that_breaks_is_an_error_with_a_traceback(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: MnistCnn, data: str, data_root: Any, cache: Path) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(MnistCnn, "prepare", prepare)
    plan, (single, _) = mnist()
    session = open_session(plan)
    session.prepare([single])
    row = session.time(single, 0).row
    assert (row.status, row.reason, row.phase) == ("error", "ZeroDivisionError: planted", "data")
    assert row.traceback is not None and "in prepare" in row.traceback


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


def test_damaged_data_is_an_error_and_not_a_skip(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: MnistCnn, data: str, data_root: Any, cache: Path) -> Any:
        raise DataError("digits.gz is damaged; download it again")

    monkeypatch.setattr(MnistCnn, "prepare", prepare)
    plan, (single, _) = mnist()
    row = open_session(plan).time(single, 0).row
    assert (row.status, row.reason) == ("error", "digits.gz is damaged; download it again")


def test_data_root_that_nobody_reads_is_said(tmp_path: Path) -> None:
    _, unused = run_notes(plan_of(cpu(), workloads="mnist_cnn,resnet50", data_root=tmp_path), [], {})
    assert "--data-root is not used by resnet50:" in unused and "--data real" in unused
    assert len(run_notes(plan_of(cpu(), workloads="mnist_cnn", data_root=tmp_path), [], {})) == 1


def test_notes_say_why_the_gpus_have_no_gauges() -> None:
    machine = replace(gpus(1), notes=("no gauges of the GPUs: no library",))
    assert "no gauges of the GPUs: no library" in run_notes(plan_of(machine), [], {})


def test_notes_say_what_a_figure_cannot_mean() -> None:
    plan, cases = mnist("single,dp,dp:loss_on=replica,ddp", cpu())
    (note,) = run_notes(plan, cases, {})
    assert note.endswith("not GPU speed; dp: host replicas (emulated), not ranked")
    (note,) = run_notes(plan, cases[:1], {})
    assert note.endswith("not GPU speed")
    (note,) = run_notes(plan_of(gpus(1), devices="0,0"), [], {})
    assert "more than once" in note
    assert run_notes(plan_of(gpus(2)), [], {}) == ()


def test_notes_say_which_scenario_does_not_hear_strategies() -> None:
    hears = {"mnist_cnn": True, "load_balance": False}
    assert run_notes(plan_of(gpus(2)), [], hears) == ()
    (note,) = run_notes(plan_of(gpus(2), strategies="ddp"), [], hears)
    assert note == "load_balance has strategies of its own, not those of --strategies"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (125, "2:05"), (3725, "1:02:05"), (-3, "0:00")]
)
def test_clock_text(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text
