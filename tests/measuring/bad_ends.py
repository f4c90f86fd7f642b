"""Worker tasks that reply, or end badly: what a launcher has to cope with."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from bench.measuring.control import Channel
from bench.measuring.place import training_place
from bench.measuring.tasks import Job


def reply_pids(job: None, channel: Channel) -> None:
    channel.reply({"pid": os.getpid(), "threads": torch.get_num_threads()})


def raise_on_rank_1(job: None, channel: Channel) -> None:
    channel.phase("planted phase")
    if channel.rank == 1:
        raise ValueError("planted on rank 1")
    time.sleep(600)


def rank_0_aborts_after_rank_1_raised(job: None, channel: Channel) -> None:
    """What a C++ library does when its peer has left."""
    channel.phase("planted phase")
    if channel.rank == 1:
        raise ValueError("planted on rank 1")
    channel.store.wait(["error/1"])
    time.sleep(0.2)
    os.abort()


def rank_0_raises_after_rank_1_was_killed(job: None, channel: Channel) -> None:
    """Rank 0 notices that its peer is gone, and complains."""
    channel.phase("planted phase")
    channel.store.set(f"pid/{channel.rank}", str(os.getpid()))
    if channel.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    peer = int(channel.store.get("pid/1"))
    while _state(peer) != "Z":
        time.sleep(0.01)
    raise ConnectionError("Connection closed by peer")


def _state(pid: int) -> str:
    """The kernel's letter for what a process does; Z also for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def raise_in_a_collective(job: Job, channel: Channel) -> None:
    """Rank 1 raises while rank 0 waits for it in an all_reduce."""
    with training_place(job.case, job.backend, channel, job.timeout_seconds):
        channel.phase("planted collective")
        if channel.rank == 1:
            raise ValueError("planted on rank 1")
        dist.all_reduce(torch.zeros(1))


def kill_itself(job: None, channel: Channel) -> None:
    channel.phase("planted phase")
    if channel.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def exit_with_3(job: None, channel: Channel) -> None:
    channel.phase("planted phase")
    if channel.rank == 1:
        sys.exit(3)
    time.sleep(600)


def leave_with_4(job: None, channel: Channel) -> None:
    print("planted last words", flush=True)
    channel.phase("planted phase")
    os._exit(4)


def abort_with_words(job: None, channel: Channel) -> None:
    """As an uncaught exception of a C++ library ends a process."""
    print("terminate called after throwing an instance of 'planted'\n  what():  planted [16 vs 12]\n\n0x00 frames")
    sys.stdout.flush()
    channel.phase("planted phase")
    os.abort()


def leave_without_a_reply(job: None, channel: Channel) -> None:
    channel.phase("planted phase")


def run_out_of_memory(job: str, channel: Channel) -> None:
    """`job` says who complains how: the peer in the collective fails first."""
    channel.phase("planted phase")
    if channel.rank == 0:
        raise RuntimeError("Connection reset by peer")
    raise {
        "python": MemoryError("planted"),
        "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.1 GiB"),
        "host": RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
        ),
    }[job]


def hang(job: None, channel: Channel) -> None:
    channel.phase("planted hang" if channel.rank == 1 else "planted wait")
    sum(itertools.repeat(0))  # endless, inside C


def abort_after_the_finish(job: None, channel: Channel) -> None:
    channel.reply({})
    for command in channel.commands():
        channel.reply({"op": command["op"]})
    os.abort()


def rank_0_aborts_before_rank_1_answers(job: None, channel: Channel) -> None:
    """Rank 0's results have left it; its teardown aborts while its peer is still at work."""
    _leave_early(channel, os.abort)


def rank_0_raises_before_rank_1_answers(job: None, channel: Channel) -> None:
    """As above, with an exception in the teardown."""

    def fail() -> None:
        raise RuntimeError("planted in the teardown")

    _leave_early(channel, fail)


def _leave_early(channel: Channel, leave: Callable[[], None]) -> None:
    channel.store.set(f"pid/{channel.rank}", str(os.getpid()))
    channel.reply({})
    for _ in channel.commands():
        if channel.rank == 1:
            peer = int(channel.store.get("pid/0"))
            while _state(peer) != "Z":
                time.sleep(0.01)
            time.sleep(0.1)  # for the driver to look, too
        channel.reply({"rank": channel.rank})
    if channel.rank == 0:
        leave()


def rank_1_fails_after_rank_0_had_answered(job: str, channel: Channel) -> None:
    """`job` says how rank 0 ends once its results have left it: well, or in an abort."""
    channel.store.set(f"pid/{channel.rank}", str(os.getpid()))
    channel.phase(f"phase of {channel.rank}")
    if channel.rank == 1:
        peer = int(channel.store.get("pid/0"))
        while _state(peer) != "Z":
            time.sleep(0.01)
        os._exit(4)
    channel.reply({})
    if job == "abort":
        os.abort()


def leave_a_child(job: None, channel: Channel) -> None:
    child = subprocess.Popen(["sleep", "600"])
    channel.reply({"pid": child.pid})


def in_a_group(job: Job, channel: Channel) -> None:
    """Replies from inside a process group, and waits there for the finish."""
    with training_place(job.case, job.backend, channel, job.timeout_seconds):
        dist.barrier()
        channel.reply({"pid": os.getpid()})
        for _ in channel.commands():
            channel.reply({})


def preflight_that_hangs(job: Any, channel: Channel) -> None:
    channel.reply({})
    channel.phase("planted all_reduce")
    time.sleep(600)


def preflight_that_fails(job: Any, channel: Channel) -> None:
    channel.reply({})
    raise RuntimeError("planted peer copy")
