"""However a launch ends: its first cause is told, quickly, and no process is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.measuring.control import out_of_memory
from bench.measuring.launcher import Launcher, LaunchError
from bench.schema import Outcome
from tests.measuring import bad_ends
from tests.measuring.conftest import workers
from tests.measuring.support import await_true, is_gone, make_case, make_job

Task = Callable[[Any, Any], None]
ROOT = Path(__file__).resolve().parents[2]


def outcome_of(launcher: Launcher, task: Task, job: Any = None, *, world_size: int = 2, limit: float = 30) -> Outcome:
    """How a launch ended that was to fail, within much less than its limit."""
    with pytest.raises(LaunchError) as raised, launcher.start(task, job, world_size, limit) as session:
        session.replies()
    return raised.value.outcome


@pytest.fixture(autouse=True)
def warm(launcher: Launcher) -> None:
    """The first start of a launcher takes seconds, which no test here is about."""
    with launcher.start(bad_ends.reply_pids, None, 1, 60) as session:
        session.replies()


def test_exception_on_rank_1_is_told_within_seconds(launcher: Launcher) -> None:
    started = time.monotonic()
    outcome = outcome_of(launcher, bad_ends.raise_on_rank_1)
    assert time.monotonic() - started < 8  # rank 0 would sleep for 600 s
    assert (outcome.status, outcome.rank, outcome.phase) == ("error", 1, "planted phase")
    assert outcome.reason == "ValueError: planted on rank 1"
    assert outcome.traceback is not None
    assert "in raise_on_rank_1" in outcome.traceback and "ValueError: planted on rank 1" in outcome.traceback


def test_exception_while_the_peer_waits_in_a_collective(launcher: Launcher) -> None:
    started = time.monotonic()
    outcome = outcome_of(launcher, bad_ends.raise_in_a_collective, make_job(make_case("ddp")))
    assert time.monotonic() - started < 15  # the group's own time limit is 60 s
    assert (outcome.status, outcome.rank, outcome.phase) == ("error", 1, "planted collective")
    assert outcome.reason == "ValueError: planted on rank 1"


def test_peer_that_aborts_afterwards_is_not_taken_for_the_cause(launcher: Launcher) -> None:
    outcome = outcome_of(launcher, bad_ends.rank_0_aborts_after_rank_1_raised)
    assert (outcome.rank, outcome.reason) == (1, "ValueError: planted on rank 1")


def test_peer_that_complains_about_a_killed_rank_is_not_taken_for_the_cause(launcher: Launcher) -> None:
    outcome = outcome_of(launcher, bad_ends.rank_0_raises_after_rank_1_was_killed)
    assert (outcome.status, outcome.rank) == ("error", 1)
    assert "SIGKILL" in str(outcome.reason)


def test_killed_worker_is_told_with_the_signals_name(launcher: Launcher) -> None:
    outcome = outcome_of(launcher, bad_ends.kill_itself)
    assert (outcome.status, outcome.rank, outcome.phase) == ("error", 1, "planted phase")
    assert "SIGKILL" in str(outcome.reason)


def test_exit_call_is_told_with_its_status(launcher: Launcher) -> None:
    outcome = outcome_of(launcher, bad_ends.exit_with_3)
    assert (outcome.status, outcome.rank, outcome.phase) == ("error", 1, "planted phase")
    assert "3" in str(outcome.reason)


def test_worker_that_leaves_without_a_word_is_told_with_its_last_output(launcher: Launcher) -> None:
    outcome = outcome_of(launcher, bad_ends.leave_with_4, world_size=1)
    assert (outcome.status, outcome.rank, outcome.phase) == ("error", 0, "planted phase")
    assert str(outcome.reason).endswith("exit status 4 before its results arrived; its last words: planted last words")
    assert "planted last words" in str(outcome.traceback)


def test_worker_that_a_library_aborts_is_told_with_what_the_library_said(launcher: Launcher) -> None:
    outcome = outcome_of(launcher, bad_ends.abort_with_words, world_size=1)
    assert (outcome.status, outcome.rank, outcome.phase) == ("error", 0, "planted phase")
    assert outcome.reason == "rank 0 was ended by SIGABRT; its last words: planted [16 vs 12]"


def test_worker_that_ends_well_but_without_results_is_an_error(launcher: Launcher) -> None:
    outcome = outcome_of(launcher, bad_ends.leave_without_a_reply, world_size=1)
    assert (outcome.status, outcome.rank) == ("error", 0)
    assert "exit status 0 before its results" in str(outcome.reason)


@pytest.mark.parametrize("kind", ["python", "cuda", "host"])
def test_out_of_memory_is_a_status_of_its_own_also_when_a_peer_fails_first(launcher: Launcher, kind: str) -> None:
    outcome = outcome_of(launcher, bad_ends.run_out_of_memory, kind)
    assert (outcome.status, outcome.rank, outcome.phase) == ("oom", 1, "planted phase")
    assert outcome.reason


def test_only_memory_errors_count_as_out_of_memory() -> None:
    assert out_of_memory(MemoryError())
    assert out_of_memory(RuntimeError("could not create a primitive"))
    assert not out_of_memory(RuntimeError("shape mismatch"))
    assert not out_of_memory(ValueError("can't allocate memory"))


def test_hang_ends_at_the_limit_and_names_every_ranks_phase(launcher: Launcher) -> None:
    started = time.monotonic()
    outcome = outcome_of(launcher, bad_ends.hang, limit=2)
    assert 2 <= time.monotonic() - started < 10
    assert outcome.status == "timeout"
    assert "within 2 s" in str(outcome.reason)
    assert "rank 0: planted wait" in str(outcome.reason) and "rank 1: planted hang" in str(outcome.reason)
    assert outcome.phase in ("planted wait", "planted hang")


def test_completed_launch_stays_ok_when_its_teardown_aborts(launcher: Launcher) -> None:
    with launcher.start(bad_ends.abort_after_the_finish, None, 2, 30) as session:
        session.replies()
        assert session.command({"op": "finish"}) == [{"op": "finish"}] * 2
    assert [process.exitcode for process in session.processes] == [-signal.SIGABRT] * 2


@pytest.mark.parametrize(
    "task",
    [bad_ends.rank_0_aborts_before_rank_1_answers, bad_ends.rank_0_raises_before_rank_1_answers],
    ids=["abort", "exception"],
)
def test_teardown_that_fails_before_the_peer_has_answered_costs_nothing(launcher: Launcher, task: Task) -> None:
    """Every rank's results arrive: what happened to one of them afterwards does not matter."""
    with launcher.start(task, None, 2, 30) as session:
        session.replies()
        assert session.command({"op": "finish"}) == [{"rank": 0}, {"rank": 1}]


@pytest.mark.parametrize("end", ["well", "abort"])
def test_rank_that_had_answered_is_not_taken_for_the_cause(launcher: Launcher, end: str) -> None:
    outcome = outcome_of(launcher, bad_ends.rank_1_fails_after_rank_0_had_answered, end)
    assert (outcome.status, outcome.rank, outcome.phase) == ("error", 1, "phase of 1")
    assert "exit status 4" in str(outcome.reason)


def test_exception_in_the_driver_ends_the_workers(launcher: Launcher) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        launcher.start(bad_ends.in_a_group, make_job(make_case("ddp")), 2, 30) as session,
    ):
        session.replies()
        raise KeyboardInterrupt
    assert await_true(lambda: not workers(), seconds=5)


def test_interrupt_between_the_starts_of_two_workers_leaves_neither(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = BaseProcess.start, []

    def start_and_interrupt(process: BaseProcess) -> None:
        start(process)
        started.append(process)
        if len(started) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(BaseProcess, "start", start_and_interrupt)
    # Where the tests run as a shell's background job, Ctrl-C is ignored from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), launcher.start(bad_ends.hang, None, 2, 30.0):
            pytest.fail("the interrupt was lost")
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(started) == 2  # held back until both had an owner
    assert [process.exitcode for process in started] == [-signal.SIGKILL] * 2


def test_worker_that_cannot_be_started_takes_the_others_with_it(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = BaseProcess.start, []

    def start_once(process: BaseProcess) -> None:
        if started:
            raise OSError("planted: no more processes")
        start(process)
        started.append(process)

    monkeypatch.setattr(BaseProcess, "start", start_once)
    with pytest.raises(OSError, match="planted"), launcher.start(bad_ends.hang, None, 2, 30.0):
        pytest.fail("it started")
    started[0].join(5)
    assert started[0].exitcode == -signal.SIGKILL


def test_failed_launch_leaves_other_children_of_the_driver_alone(launcher: Launcher) -> None:
    bystander = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    bystander.start()
    try:
        assert outcome_of(launcher, bad_ends.raise_on_rank_1).status == "error"
        assert bystander.is_alive()
    finally:
        bystander.kill()
        bystander.join()


def test_children_of_a_worker_do_not_outlive_it(launcher: Launcher) -> None:
    with launcher.start(bad_ends.leave_a_child, None, 1, 30) as session:
        pid = session.replies()[0]["pid"]
    assert isinstance(pid, int)
    assert await_true(lambda: is_gone(pid), seconds=5)


def test_failed_launch_does_not_disturb_the_next(launcher: Launcher) -> None:
    outcome_of(launcher, bad_ends.kill_itself)
    with launcher.start(bad_ends.reply_pids, None, 2, 30) as session:
        pids = {reply["pid"] for reply in session.replies()}
    assert len(pids) == 2 and os.getpid() not in pids


def listening(pid: int) -> list[Any]:
    found = psutil.Process(pid).net_connections(kind="tcp")
    return [connection.laddr for connection in found if connection.status == psutil.CONN_LISTEN]


def test_driver_and_workers_listen_on_loopback_only(launcher: Launcher) -> None:
    with launcher.start(bad_ends.in_a_group, make_job(make_case("ddp")), 2, 30) as session:
        pids = [reply["pid"] for reply in session.replies()]
        addresses = [address for pid in (os.getpid(), *pids) for address in listening(int(str(pid)))]
        session.command({"op": "finish"})
    assert addresses
    assert {address.ip.removeprefix("::ffff:") for address in addresses} <= {"127.0.0.1", "::1"}


DRIVER = """
from bench.measuring.launcher import Launcher
from tests.measuring import bad_ends

if __name__ == "__main__":
    launcher = Launcher(threads_per_worker=1)
    with launcher.start(bad_ends.hang, None, 2, 600) as session:
        import time

        while any(session._control.phase(rank) == "start" for rank in (0, 1)):
            time.sleep(0.05)
        print(*(process.pid for process in session.processes), flush=True)
        time.sleep(600)
"""


def test_killed_driver_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its workers are busy in C code, where no thread of theirs could notice."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    try:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        assert len(pids) == 2
        helpers = [child.pid for child in psutil.Process(driver.pid).children()]
        driver.send_signal(signal.SIGKILL)
        driver.wait(timeout=10)
        assert await_true(lambda: all(map(is_gone, pids)), seconds=10)
        assert await_true(lambda: all(map(is_gone, helpers)), seconds=10)
    finally:
        driver.kill()
        driver.wait()
