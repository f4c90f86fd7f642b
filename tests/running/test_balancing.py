"""Probes, the choice and the rows of gpu0_bsz=auto, with made-up peaks in place of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.base import DataSource
from bench.measuring import yardstick
from bench.measuring.flops import FlopCount
from bench.measuring.launch import Clock, LaunchResult
from bench.measuring.tasks import Job
from bench.metrics import registry as metrics
from bench.recording.reader import read_run
from bench.running import session as running
from bench.running.balancing import Balancer, Settled
from bench.running.session import RunSession
from bench.schema import Case, DeviceTrace, Launch, NameValue, Outcome, ParityTrace, Trace
from bench.strategies import registry as strategies
from tests.planning.made_up_machines import cpu, gpus, plan_of
from tests.recording.made_up import made_run

OK = Outcome(status="ok")
OOM = Outcome(status="oom", reason="CUDA out of memory, 3.1 GiB asked for", rank=0, phase="warm-up")
MIB = 2**20
# On two devices: 1,000 MiB and 600 MiB fixed, 10 MiB a sample, GPU 0 gathers 5 MiB a sample of the micro-batch.
FIXED, SLOPE, GATHERED = (1000, 600), 10, 5


def auto_case(**changes: Any) -> Case:
    settings = (NameValue(name="gpu0_bsz", value="auto"),)
    case = Case(
        workload="mnist_cnn", strategy="balanced_dp", device_type="cuda", devices=(0, 1), global_batch_size=64,
        size="standard", settings=settings,
    )  # fmt: skip
    return replace(case, **changes)


def job_of(case: Case) -> Job:
    source = DataSource(kind="synthetic", text="noise", num_samples=1000)
    return Job(case=case, source=source, seed=0, backend=None, timeout_seconds=60.0)


class MadeUpGpus:
    """Launches whose peaks follow the formula above; a micro-batch above `fits` is out of memory."""

    def __init__(self) -> None:
        self.fits = 10**9
        self.outcome = OK
        self.blind = False
        self.tried: list[tuple[str, tuple[int, ...]]] = []

    def time(self, job: Job) -> LaunchResult:
        sizes = strategies.get(job.case.strategy).chunk_sizes(job.case)
        self.tried.append((str(job.case), sizes))
        outcome = OOM if sum(sizes) > self.fits else self.outcome
        if outcome != OK:
            return LaunchResult(outcome=outcome, clock=Clock(wall_seconds=1.5))
        peaks = [fixed + SLOPE * size for fixed, size in zip(FIXED, sizes, strict=False)]
        peaks[0] += GATHERED * sum(sizes)
        devices = tuple(
            DeviceTrace(device_index=index, peak_allocated_bytes=None if self.blind and index else peak * MIB)
            for index, peak in enumerate(peaks)
        )
        trace = Trace(case=job.case, round_seconds=(1.0,), devices=devices)
        return LaunchResult(outcome=OK, clock=Clock(), trace=trace)


@pytest.fixture
def box() -> MadeUpGpus:
    return MadeUpGpus()


def settle(box: MadeUpGpus, case: Case) -> Settled:
    return Balancer(box.time).settle(job_of(case))


def test_two_probes_lead_to_the_split_that_was_worked_out_by_hand(box: MadeUpGpus) -> None:
    settled = settle(box, auto_case())
    # The micro-batch at the default share 64 // 4, half of it at its even share.
    assert [sizes for _, sizes in box.tried] == [(16, 48), (16, 16)]
    assert box.tried[1][0] == "mnist_cnn-balanced_dp-2x-b32-fp32-gpu0_bsz:16"
    # GPU 0: 1000 + 320 + 10 a; the other 600 + 10 (64 - a): even where 1320 + 10 a = 1240 - 10 a, so below 0.
    assert settled.case.setting("gpu0_bsz") == "0"
    assert settled.predicted_peak_bytes == pytest.approx((1320 * MIB, 1240 * MIB))
    assert settled.balance is not None and settled.failed is None
    assert settled.balance.startswith(
        "probes [16, 48] peaked at 1.45 GiB / 1.05 GiB and [16, 16] peaked at 1.29 GiB / "
    )
    assert "fixed 1000 MiB / 600 MiB, 10 MiB a sample, GPU 0 gathers 5 MiB a sample" in settled.balance
    assert "cannot even that out, so it takes 0" in settled.balance


def test_share_between_none_and_the_even_one(box: MadeUpGpus) -> None:
    # 1000 + 5 * 128 + 10 a = 600 + 10 (128 - a) where 20 a = 240
    settled = settle(box, auto_case(global_batch_size=128))
    assert settled.case.setting("gpu0_bsz") == "12"
    assert settled.predicted_peak_bytes == pytest.approx((1760 * MIB, 1760 * MIB))


def test_what_was_measured_stands_beside_the_prediction(box: MadeUpGpus) -> None:
    settled = settle(box, auto_case(global_batch_size=128))
    result, balance = settled.complete(box.time(job_of(settled.case)))
    assert result.trace is not None
    assert result.trace.predicted_peak_bytes == pytest.approx((1760 * MIB, 1760 * MIB))
    assert balance is not None and balance.endswith("; measured 1.72 GiB / 1.72 GiB")


def test_probes_run_once_a_case(box: MadeUpGpus) -> None:
    balancer = Balancer(box.time)
    first, second = (balancer.settle(job_of(auto_case())) for _ in range(2))
    assert second is first and len(box.tried) == 2
    balancer.settle(job_of(auto_case(precision="bf16")))
    assert len(box.tried) == 4


def test_probes_keep_the_accumulation_and_the_other_settings(box: MadeUpGpus) -> None:
    replica = NameValue(name="loss_on", value="replica")
    case = auto_case(accumulation_steps=2, global_batch_size=128, settings=(*auto_case().settings, replica))
    settled = settle(box, case)
    assert [text for text, _ in box.tried] == [
        "mnist_cnn-balanced_dp-2x-b128-fp32-acc2-gpu0_bsz:16-loss_on:replica",
        "mnist_cnn-balanced_dp-2x-b64-fp32-acc2-gpu0_bsz:16-loss_on:replica",
    ]
    assert replica in settled.case.settings and settled.case.global_batch_size == 128


def test_probes_that_run_out_are_halved_and_the_choice_is_for_the_whole_micro_batch(box: MadeUpGpus) -> None:
    box.fits = 40
    settled = settle(box, auto_case(global_batch_size=128))
    assert [sizes for _, sizes in box.tried] == [(32, 96), (16, 48), (8, 24), (8, 8)]
    assert settled.case.setting("gpu0_bsz") == "12" and settled.case.global_batch_size == 128


def test_probes_that_never_fit_end_the_launch_as_out_of_memory(box: MadeUpGpus) -> None:
    box.fits = 1
    settled = settle(box, auto_case(global_batch_size=16))
    assert [sum(sizes) for _, sizes in box.tried] == [16, 8, 4]  # 2 samples would leave a device without one
    assert settled.failed is not None
    outcome = settled.failed.outcome
    assert (outcome.status, outcome.rank, outcome.phase) == ("oom", 0, "warm-up")
    assert outcome.reason == (
        "the probe of gpu0_bsz=auto with gpu0_bsz 1 of 4 samples ended as oom: CUDA out of memory, 3.1 GiB asked for"
    )


@pytest.mark.parametrize("status", ["error", "timeout"])
def test_probe_that_fails_ends_the_launch_the_same_way_and_is_tried_again(box: MadeUpGpus, status: Any) -> None:
    box.outcome = Outcome(status=status, reason="planted", traceback="tb")
    balancer = Balancer(box.time)
    settled = balancer.settle(job_of(auto_case()))
    assert settled.failed is not None and settled.failed.trace is None
    assert (settled.failed.outcome.status, settled.failed.outcome.traceback) == (status, "tb")
    assert "probe of gpu0_bsz=auto with gpu0_bsz 16 of 64 samples ended as" in str(settled.failed.outcome.reason)
    assert len(box.tried) == 1
    box.outcome = OK
    assert balancer.settle(job_of(auto_case())).failed is None


@pytest.mark.parametrize(
    ("changes", "why", "sizes"),
    [
        ({"device_type": "cpu"}, "on CPU there is no device memory to read", "[16, 48]"),
        ({"devices": (0, 0)}, "a device is listed more than once", "[16, 48]"),
        ({"devices": (0,)}, "one device takes all samples", "[64]"),
        ({"global_batch_size": 3}, "3 samples over 2 devices are too few for two different probes", "[0, 3]"),
        ({"purpose": "parity"}, "a parity check runs at the default share", "[16, 48]"),
    ],
)
def test_where_no_memory_can_be_read_the_default_is_used_and_said(
    box: MadeUpGpus, changes: dict[str, Any], why: str, sizes: str
) -> None:
    settled = settle(box, auto_case(**changes))
    assert box.tried == [] and settled.predicted_peak_bytes == () and settled.failed is None
    assert settled.balance is not None and settled.balance.startswith(why)
    assert settled.balance.endswith(f"; the default was used: gpu0_bsz {settled.case.setting('gpu0_bsz')}, {sizes}")


def test_peaks_that_are_missing_lead_to_the_default_with_the_reason(box: MadeUpGpus) -> None:
    box.blind = True
    settled = settle(box, auto_case())
    assert settled.case.setting("gpu0_bsz") == "16" and settled.predicted_peak_bytes == ()
    assert settled.balance is not None and "the split [16, 48] has no peak on device 1; the default" in settled.balance


def test_cases_without_auto_are_left_alone(box: MadeUpGpus) -> None:
    number = (NameValue(name="gpu0_bsz", value="3"),)
    for case in (auto_case(settings=()), auto_case(settings=number), auto_case(strategy="dp", settings=())):
        assert settle(box, case) == Settled(case=case)
    result = box.time(job_of(auto_case(settings=())))
    assert Settled(case=auto_case(settings=())).complete(result) == (result, None)


# --- in a run ------------------------------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path: Path, box: MadeUpGpus, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RunSession]]:
    def timed(launcher: Any, job: Job, world_size: int, plan: Any, *rest: Any) -> LaunchResult:
        return box.time(job)

    def parity(launcher: Any, job: Job, world_size: int) -> LaunchResult:
        box.tried.append((str(job.case), strategies.get("balanced_dp").chunk_sizes(job.case)))
        return LaunchResult(outcome=OK, clock=Clock(), trace=Trace(case=job.case, parity=ParityTrace(error=1e-7)))

    monkeypatch.setattr(running, "time_case", timed)
    monkeypatch.setattr(running, "parity_of", parity)
    monkeypatch.setattr(yardstick, "count_flops", lambda launcher, job: FlopCount(unknown="made up"))
    sessions: list[RunSession] = []
    yield sessions
    for session in sessions:
        session.close()


def session_of(opened: list[RunSession], tmp_path: Path, machine: Any, **options: Any) -> tuple[RunSession, Case]:
    plan = plan_of(machine, workloads="mnist_cnn", strategies="balanced_dp:gpu0_bsz=auto", results=tmp_path, **options)
    (case,) = plan.comparison("mnist_cnn")
    launcher: Any = SimpleNamespace(threads_per_worker=1)
    opened.append(RunSession(plan, launcher, made_run(device_type=machine.device_type)))
    return opened[-1], case


def rows(session: RunSession) -> list[Launch]:
    return list(read_run(session.folder).launches)


def test_rows_keep_the_auto_case_with_the_split_that_was_used(
    opened: list[RunSession], tmp_path: Path, box: MadeUpGpus
) -> None:
    session, case = session_of(opened, tmp_path, gpus(2), global_batch_size="128")
    for launch in (0, 1):
        assert session.time(case, launch).row.status == "ok"
    assert [text for text, _ in box.tried] == [
        "mnist_cnn-balanced_dp-2x-b128-fp32-gpu0_bsz:32",
        "mnist_cnn-balanced_dp-2x-b64-fp32-gpu0_bsz:32",
        "mnist_cnn-balanced_dp-2x-b128-fp32-gpu0_bsz:12",
        "mnist_cnn-balanced_dp-2x-b128-fp32-gpu0_bsz:12",
    ]
    for row in rows(session):
        assert row.case_id == "mnist_cnn-balanced_dp-2x-b128-fp32-gpu0_bsz:auto"
        assert row.settings == (NameValue(name="gpu0_bsz", value="auto"),)
        assert row.chunk_sizes == (12, 116)
        assert row.balance is not None and "chosen gpu0_bsz 12 of 128, [12, 116]" in row.balance
    samples = read_run(session.folder).samples
    predicted = samples[samples["metric"] == "predicted_peak_bytes"]
    assert list(predicted["value"]) == pytest.approx([1760 * MIB] * 4)
    assert list(predicted["device_index"]) == [0, 1, 0, 1]


def test_run_on_cpu_says_that_the_default_was_used(opened: list[RunSession], tmp_path: Path, box: MadeUpGpus) -> None:
    session, case = session_of(opened, tmp_path, cpu(2))
    session.time(case, 0)
    (row,) = rows(session)
    assert row.chunk_sizes == (32, 96) and len(box.tried) == 1
    assert row.balance == "on CPU there is no device memory to read; the default was used: gpu0_bsz 32, [32, 96]"


def test_case_whose_probes_ran_out_is_not_tried_again(
    opened: list[RunSession], tmp_path: Path, box: MadeUpGpus
) -> None:
    box.fits = 1
    session, case = session_of(opened, tmp_path, gpus(2), global_batch_size="8")
    first, second = session.time(case, 0).row, session.time(case, 1).row
    assert first.status == "oom" and "the probe of gpu0_bsz=auto" in str(first.reason)
    assert first.chunk_sizes == (2, 6) and first.wall_seconds == 1.5
    assert second.status == "skipped" and len(box.tried) == 2


def test_parity_of_an_auto_case_is_checked_at_the_default_share(
    opened: list[RunSession], tmp_path: Path, box: MadeUpGpus
) -> None:
    session, case = session_of(opened, tmp_path, gpus(2))
    (check,) = session.plan.parity_cases([case])
    row = session.check_parity(check).row
    assert box.tried == [("mnist_cnn-balanced_dp-2x-b8-fp32-gpu0_bsz:2-parity", (2, 6))]
    assert row.case_id.endswith("gpu0_bsz:auto-parity") and "default share" in str(row.balance)


def test_rows_of_other_cases_have_no_text_of_a_balance(opened: list[RunSession], tmp_path: Path) -> None:
    session, case = session_of(opened, tmp_path, gpus(2))
    row = session.time(replace(case, settings=()), 0).row
    assert row.balance is None and row.chunk_sizes == (128, 384)
    names = {sample for sample in read_run(session.folder).samples["metric"]}
    assert "predicted_peak_bytes" not in names and "peak_allocated_bytes" in names


def test_prediction_is_a_value_for_each_device_and_nothing_without_one() -> None:
    compute = metrics.get("predicted_peak_bytes").compute
    trace = Trace(case=auto_case(), predicted_peak_bytes=(3.0, 4.0))
    assert [(value.device_index, value.value) for value in compute(trace)] == [(0, 3.0), (1, 4.0)]
    assert list(compute(replace(trace, predicted_peak_bytes=()))) == []
