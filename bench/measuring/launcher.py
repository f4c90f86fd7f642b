"""Starts fresh workers, talks with them, and ends them, whatever happens.

Workers come from multiprocessing's forkserver with the heavy imports preloaded, so that a
launch costs a fork instead of seconds of imports. CUDA is never touched before the fork.
"""

from __future__ import annotations

import fcntl
import importlib.util
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.multiprocessing import start_processes  # type: ignore[attr-defined]

from bench.errors import BenchError
from bench.measuring.causes import Exit, first_cause
from bench.measuring.control import Address, Channel, Control, Message, serve
from bench.measuring.logs import Logs
from bench.schema import Outcome

PRELOAD = ("bench.measuring.tasks", "torchvision", "transformers", "transformers.models.bert.modeling_bert", "pytest")
# A wait for replies polls the store (70 us a look), ever less often; a worker's end wakes it at once.
FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.0002, 0.01
GRACE_SECONDS = 2.0
F_SETSIG = 10
NO_MEMORY = "std::bad_alloc"
"""The last words of a process that C++ ends as nothing catches that memory was refused."""

Task: TypeAlias = Callable[[Any, Channel], None]


class LaunchError(BenchError):
    """A launch that ended before its results arrived; `outcome` says how."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason or outcome.status)
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What a process gets: the task (an importable function), its job, and where the driver is."""

    task: Task
    job: Any
    threads: int
    address: Address
    logs: Logs


def run_worker(rank: int, worker: Worker) -> None:
    """Entry point of every worker process. It leaves without teardown code that could fail or hang."""
    os.setsid()
    _die_with_driver()
    worker.logs.take_output(rank)
    torch.set_num_threads(worker.threads)
    channel = Channel(worker.address, rank)
    try:
        if torch.cuda._is_in_bad_fork():
            raise BenchError("CUDA was initialised before this worker was forked; its figures would be wrong")
        worker.task(worker.job, channel)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the driver must hear of it
        channel.fail(error)
        _leave(1)
    _leave(0)


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _die_with_driver() -> None:
    """Have the kernel kill this process when the driver ends, also while it is busy in C code.

    The parent-death signal would watch the forkserver; the driver's sentinel is a pipe that
    closes with it, and SIGIO on that pipe is turned into SIGKILL.
    """
    parent = multiprocessing.parent_process()
    if parent is None or not sys.platform.startswith("linux"):
        return
    sentinel = parent.sentinel
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sentinel], [], [], 0)[0]:
        _leave(1)


class Session:
    """One running launch: its workers and the driver's end of the control."""

    def __init__(self, control: Control, processes: Any, limit_seconds: float, logs: Logs) -> None:
        self._control, self._logs = control, logs
        self.processes: list[Any] = list(processes)
        self._exits: dict[int, Exit] = {}
        self.limit(limit_seconds)

    def limit(self, seconds: float) -> None:
        """From now on, replies may take so long altogether."""
        self._limit, self._deadline = seconds, time.monotonic() + seconds

    def command(self, message: Message) -> list[Message]:
        """Send a command and wait for every rank's reply; LaunchError when one fails or time is up."""
        self._control.command(message)
        return self.replies()

    def replies(self) -> list[Message]:
        """The next reply of every rank, in rank order."""
        pause = FIRST_POLL_SECONDS
        while True:
            # In this order: a worker may answer and leave between two looks.
            failing = self._failing()
            replies = self._control.take_replies()
            if replies is not None:
                return replies
            if failing:
                raise LaunchError(self._failed())
            if time.monotonic() > self._deadline:
                raise LaunchError(self._timed_out())
            self._sleep(pause)
            pause = min(pause * 1.5, LAST_POLL_SECONDS)

    def _sleep(self, seconds: float) -> None:
        running = [process.sentinel for process in self.processes if process.exitcode is None]
        if running:
            wait(running, timeout=seconds)
        else:
            time.sleep(seconds)

    def _failing(self) -> set[int]:
        """Ranks that posted an error or ended, without their answer. What follows an answer costs nothing."""
        now = time.time()
        for rank, process in enumerate(self.processes):
            if process.exitcode is not None and rank not in self._exits:
                self._exits[rank] = Exit(rank=rank, code=process.exitcode, seen_at=now)
        failed = self._exits.keys() | {failure.rank for failure in self._control.failures()}
        return {rank for rank in failed if not self._control.replied(rank)}

    def _failed(self) -> Outcome:
        # The others notice a lost peer within moments; what each says or does helps to find the first.
        until = time.monotonic() + GRACE_SECONDS / 4
        while time.monotonic() < until and any(process.exitcode is None for process in self.processes):
            time.sleep(0.02)
            self._failing()
        ranks = self._failing()
        failures = [failure for failure in self._control.failures() if failure.rank in ranks]
        ended = [self._exits[rank] for rank in ranks & self._exits.keys()]
        outcome = self._starved(ended) or first_cause(failures, ended, self._control.phase)
        rank, reason = outcome.rank or 0, outcome.reason
        killed = rank in self._exits and self._exits[rank].code == -signal.SIGKILL  # by another: it said nothing of it
        words = None if outcome.traceback or killed else self._logs.last_words(rank)
        if words is not None:
            reason = f"{reason}; its last words: {words}"
        said = [f"--- last output of rank {rank} ---", *lines] if (lines := self._logs.lines(rank)) else []
        return replace(outcome, reason=reason, traceback="\n".join(filter(None, [outcome.traceback, *said])) or None)

    def _starved(self, ended: Sequence[Exit]) -> Outcome | None:
        """A rank that C++ ended since it was refused memory: its peers, which lose it, may have said so before."""
        for of in ended:
            if of.code < 0 and NO_MEMORY in (self._logs.last_words(of.rank) or ""):
                reason = f"rank {of.rank} was ended by {signal.Signals(-of.code).name}"
                return Outcome(status="oom", reason=reason, rank=of.rank, phase=self._control.phase(of.rank))
        return None

    def _timed_out(self) -> Outcome:
        phases = [f"rank {rank}: {self._control.phase(rank)}" for rank in range(self._control.world_size)]
        reason = (
            f"no result within {self._limit:g} s ({'; '.join(phases)}); raise --launch-timeout if it was not a hang"
        )
        return Outcome(status="timeout", reason=reason, phase=self._control.phase(0))

    def end(self) -> bool:
        """Wait a moment for workers that are done, kill the others with all their children.

        True when every worker left by itself with status 0.
        """
        until = time.monotonic() + GRACE_SECONDS
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        return self.kill()

    def kill(self) -> bool:
        """Kill what is left of the workers and their children. True when none had to be and all left with 0."""
        clean = all(process.exitcode == 0 for process in self.processes)
        for process in self.processes:
            # Each worker leads a process group of its own, which its data loaders share.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                if process.is_alive():
                    process.kill()
        for process in self.processes:
            process.join()
        return clean


class Launcher:
    """Starts launches one after the other. Keep one for a whole run: the first start is the slow one."""

    def __init__(self, threads_per_worker: int) -> None:
        self.threads_per_worker = threads_per_worker
        self._store = serve()
        self._launches = 0
        self._folder = tempfile.TemporaryDirectory(prefix="dpbench-")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([name for name in PRELOAD if _exists(name)])

    @contextmanager
    def start(self, task: Task, job: Any, world_size: int, limit_seconds: float) -> Iterator[Session]:
        """Workers that run `task(job, channel)`; they are gone when the block is left, however it is left."""
        prefix = f"launch{self._launches}"
        self._launches += 1
        address = Address(port=self._store.port, prefix=prefix)
        logs = Logs(self._folder.name, prefix)
        worker = Worker(task=task, job=job, threads=self.threads_per_worker, address=address, logs=logs)
        session, others = None, set(multiprocessing.active_children())
        try:
            # Ctrl-C between the start of two workers would leave the first one to nobody.
            with _interrupts_deferred(), _importable_package():
                started = start_processes(  # type: ignore[no-untyped-call]
                    run_worker, (worker,), world_size, join=False, start_method="forkserver"
                )
                session = Session(Control(self._store, prefix, world_size), started.processes, limit_seconds, logs)
            yield session
        except BaseException:
            if session is not None:
                session.kill()
            # Where not all could be started, those that were have no session; other children are not ours to end.
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
            raise
        else:
            session.end()
        finally:
            logs.remove(world_size)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Hold Ctrl-C back until the block is over, then let it act. Only the main thread gets it anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _importable_package() -> Iterator[None]:
    """Let the forkserver find this package: up to Python 3.11 it does not hand on `sys.path`."""
    root, before = str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = root if before is None else f"{root}{os.pathsep}{before}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
