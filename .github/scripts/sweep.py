"""End what an earlier benchmark job left behind on this machine: python3 sweep.py MARK

The job that measures has DPBENCH_JOB in its environment, and so has every process that it starts: pytest,
the fork server, its workers (each leads a process group of its own), the watcher. MARK names the repository
and the runner, and a runner works on one job at a time: whatever of this user still carries that mark while
no measuring step runs was left behind. Nothing else is touched, and a process whose environment cannot be
read is not this job's. Needs Linux (/proc) and the standard library.

Prints what it ends. Status 0 when nothing is left, 1 when something survives SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

VARIABLE = "DPBENCH_JOB"
PATIENCE_SECONDS, POLITE_SECONDS, LAST_SECONDS = 20.0, 3.0, 5.0


def marked(mark: str) -> dict[int, str]:
    """Processes of this user that carry the mark, but for zombies, with their command lines."""
    wanted = f"{VARIABLE}={mark}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid != os.getuid() or wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile, or is not ours to read
            continue
        found[int(folder.name)] = " ".join(command.split())[:200]  # a line that begins with :: would steer the job
    found.pop(os.getpid(), None)
    return found


def end(mark: str, number: int, seconds: float) -> dict[int, str]:
    """Signal what carries the mark and wait; returns what is left."""
    for pid, command in marked(mark).items():
        print(f"{signal.Signals(number).name} to {pid}: {command}", flush=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return wait(mark, seconds)


def wait(mark: str, seconds: float) -> dict[int, str]:
    """What still carries the mark after that time; returns at once where nothing does."""
    until = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def main(mark: str) -> int:
    """Wait, ask, kill: a run that was interrupted may still be closing its files."""
    if not mark:
        print("the mark is empty, so that it would be anybody's; give REPOSITORY/RUNNER")
        return 1
    if not wait(mark, PATIENCE_SECONDS) or not end(mark, signal.SIGTERM, POLITE_SECONDS):
        return 0
    # Twice: a process may have started another between the look and the signal.
    left = end(mark, signal.SIGKILL, LAST_SECONDS) and end(mark, signal.SIGKILL, LAST_SECONDS)
    for pid, command in left.items():
        print(f"{pid} survives SIGKILL, perhaps stuck in the GPU driver: {command}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
