"""Whose processes: the worker's own figures, and the others that NVML lists on a GPU."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

from bench.nvml import Answer
from bench.watching.gpu import PENDING, Gpu

# The kernel counts CPU time in ticks of 10 ms: over less than this a share is mostly rounding.
LEAST_CPU_SECONDS = 0.05
ENDED = Answer(reason="the process has ended", expected=True)
LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
OLDER = "_v2"


class ProcFiles:
    """A process by the kernel's own files, kept open. ProcessLookupError when it has ended.

    psutil opens and parses more of them at every reading: three times the time, which on a full
    machine the watcher takes from the workers.
    """

    def __init__(self, pid: int) -> None:
        self._files = [os.open(f"/proc/{pid}/{name}", os.O_RDONLY) for name in ("stat", "statm")]

    def cpu_seconds(self) -> float:
        """CPU time so far, of all its threads, in user and kernel code."""
        # After the name, which may hold anything, fields 3 (state), 14 and 15 (times) of proc(5).
        fields = os.pread(self._files[0], 4096, 0).rpartition(b")")[2].split()
        if fields[0] == b"Z":
            raise ProcessLookupError
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Resident memory; that of a process that has ended is 0 and none."""
        pages = int(os.pread(self._files[1], 256, 0).split()[1])
        if pages == 0:
            raise ProcessLookupError
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


class PsutilFigures:
    """The same on a system without these files."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def rss_bytes(self) -> int:
        return self._process.memory_info().rss

    def close(self) -> None:
        pass


class WorkerProcess:
    """One worker process, as the operating system sees it."""

    def __init__(self, pid: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._pid, self._now = pid, now
        self._figures: ProcFiles | PsutilFigures | None = None
        self._before: tuple[float, float] | None = None

    def cpu_percent(self) -> Answer:
        """CPU time over wall time since the last reading (%); 100 is one core."""
        return self._read(self._cpu_percent)

    def rss_bytes(self) -> Answer:
        """Resident memory (bytes)."""
        return self._read(lambda figures: Answer(value=figures.rss_bytes()))

    def close(self) -> None:
        """Let go of the process."""
        if self._figures is not None:
            self._figures.close()

    def _read(self, read: Callable[[ProcFiles | PsutilFigures], Answer]) -> Answer:
        try:
            if self._figures is None:
                self._figures = ProcFiles(self._pid) if sys.platform == "linux" else PsutilFigures(self._pid)
            return read(self._figures)
        except (ProcessLookupError, FileNotFoundError, psutil.NoSuchProcess):
            return ENDED
        except (PermissionError, psutil.AccessDenied):
            return Answer(reason="not permitted for this user", unsupported=True)

    def _cpu_percent(self, figures: ProcFiles | PsutilFigures) -> Answer:
        used, now, before = figures.cpu_seconds(), self._now(), self._before
        if before is not None and now - before[0] < LEAST_CPU_SECONDS:
            return PENDING
        self._before = (now, used)
        return PENDING if before is None else Answer(value=100 * (used - before[1]) / (now - before[0]))


def other_processes(gpu: Gpu) -> Answer:
    """How many processes hold the device besides this launch's workers."""
    answer = listed_others(gpu)
    return answer if answer.value is None else Answer(value=len(answer.value))


def other_processes_memory(gpu: Gpu) -> Answer:
    """Memory of those processes together (bytes), as far as it is known; the doubt says of how many it is not."""
    answer = listed_others(gpu)
    if answer.value is None:
        return answer
    known = [memory for memory in answer.value.values() if memory is not None]
    silent = len(answer.value) - len(known)
    why = f"NVML does not tell the memory of {silent} of {len(answer.value)} other processes"
    if silent and not known:
        return _unavailable(why)
    return Answer(value=sum(known), reason=why if silent else None)


def listed_others(gpu: Gpu) -> Answer:
    """Memory by process id (None where NVML does not tell it) of all but this launch's workers.

    In a container NVML lists nothing, entries without content, or ids of another namespace. Only a
    list with one of our own processes in it is known to be complete and in our own numbers.
    """
    found: dict[int, int | None] = {}
    refused: list[Answer] = []
    for function in LISTS:
        answer = gpu.ask(function)
        if answer.unsupported:  # a driver before the third version of this query
            answer = _better(gpu.ask(function + OLDER), answer)
        if answer.value is None:
            refused.append(answer)
            continue
        if any(entry is None or entry.pid is None for entry in answer.value):
            return _unavailable("NVML lists processes without telling which")
        found |= {entry.pid: _memory(entry) for entry in answer.value}
    if len(refused) == len(LISTS):
        return refused[0]
    if not gpu.own_pids & found.keys():
        return _unavailable("NVML does not list this launch's own processes, so that its list cannot be trusted")
    return Answer(value={pid: memory for pid, memory in found.items() if pid not in gpu.own_pids})


def _better(older: Answer, newer: Answer) -> Answer:
    return newer if older.value is None else older


def _memory(entry: Any) -> int | None:
    return entry.usedGpuMemory if isinstance(entry.usedGpuMemory, int) else None


def _unavailable(why: str) -> Answer:
    return Answer(reason=f"attribution unavailable: {why}", expected=True)
