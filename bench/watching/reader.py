"""Reads the positions of a launch, in threads of their own: their devices and their worker processes."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from bench.nvml import Answer, Nvml
from bench.watching.gauges import GPU_GAUGES, PROCESS_GAUGES, Gauge
from bench.watching.gpu import Gpu
from bench.watching.processes import WorkerProcess

# Gauges that are due within this time are read together, in one moment.
TOGETHER_SECONDS = 0.02
MOST_NAMED = 3
GPU_COLUMNS = tuple(dict.fromkeys(gauge.name for gauge in GPU_GAUGES))
PROCESS_COLUMNS = tuple(gauge.name for gauge in PROCESS_GAUGES)

Reading: TypeAlias = "tuple[float, bool, dict[str, Any], dict[str, str]]"
"""Time (s, time.perf_counter), measured, values by column, and reasons of those that failed this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What to read: a GPU by its UUID, a process by its id. A note says why one is not read here."""

    gpu: bool
    uuid: str | None
    gpu_note: str | None
    pid: int
    pid_note: str | None


@dataclass(slots=True, kw_only=True)
class Record:
    """All that was read of a position. `unavailable`: columns that are never read, and why."""

    readings: list[Reading] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    doubts: dict[str, str] = field(default_factory=dict)
    broken: str | None = None

    def problems(self, number: int) -> list[str]:
        """What failed and how often, in words: a line a reason, since a lost GPU fails every gauge."""
        said = [f"device {number}: {column}: {doubt}" for column, doubt in self.doubts.items()]
        columns: dict[str, list[str]] = {}
        for column, reason in self.failures:
            columns.setdefault(reason, []).append(column)
        for reason, failed in columns.items():
            times = sum(self.failures[column, reason] for column in failed)
            more = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
            listed = ", ".join(failed[:MOST_NAMED]) + more
            said.append(f"device {number}: {listed} failed {times} {'time' if times == 1 else 'times'}: {reason}")
        return said + ([f"device {number}: {self.broken}"] if self.broken else [])


class Column:
    """A column that is being read: what can fill it, best first, and when it is due."""

    def __init__(self) -> None:
        self.choices: list[tuple[Gauge[Any], Callable[[], Answer]]] = []
        self.due = 0.0

    def read(self, now: float) -> Answer:
        """The first choice's answer; a choice that is not supported is given up for the next."""
        while True:
            gauge, read = self.choices[0]
            answer = _checked(gauge, _safely(read))
            if not answer.unsupported or len(self.choices) == 1:
                self.due = now + gauge.period_seconds
                return answer
            self.choices.pop(0)


def _safely(read: Callable[[], Answer]) -> Answer:
    try:
        return read()
    except Exception as error:  # whatever it is, the other gauges go on
        return Answer(reason=f"{type(error).__name__}: {error}")


def _checked(gauge: Gauge[Any], answer: Answer) -> Answer:
    number = answer.value
    if isinstance(number, (int, float)) and not (math.isfinite(number) and 0 <= number <= gauge.most):
        return Answer(reason=f"{number:g} cannot be right")
    return answer


class Target:
    """One position that is being read: its columns, and the record of what they gave."""

    def __init__(
        self,
        position: Position,
        own_pids: Sequence[int],
        nvml: Callable[[], Nvml],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.record, self.position = Record(), position
        self._own_pids, self._nvml, self._now = tuple(own_pids), nvml, now
        self._columns: dict[str, Column] = {}
        self._gpu: Gpu | None = None
        self._worker: WorkerProcess | None = None

    @property
    def due(self) -> float:
        """When the next column is to be read; never where there is none."""
        return min((column.due for column in self._columns.values()), default=math.inf)

    def open(self) -> None:
        """Find out what there is to read."""
        self._offer(PROCESS_GAUGES, PROCESS_COLUMNS, self._process())
        if self.position.gpu:
            self._offer(GPU_GAUGES, GPU_COLUMNS, self._find_gpu())

    def close(self) -> None:
        """Free what is held for the readings."""
        for source in (self._worker, self._gpu):
            if source is not None:
                source.close()

    def read(self, *, everything: bool, measured: bool) -> None:
        """One moment: every column, or those that are due."""
        record, now = self.record, self._now()
        values: dict[str, Any] = {}
        failed: dict[str, str] = {}
        for name, column in list(self._columns.items()):
            if not everything and column.due > now + TOGETHER_SECONDS:
                continue
            answer = column.read(now)
            if answer.value is not None:
                values[name] = answer.value
                if answer.reason is not None:
                    record.doubts[name] = answer.reason
            elif answer.unsupported:
                record.unavailable[name] = str(answer.reason)
                del self._columns[name]
            elif answer.reason is not None:
                failed[name] = answer.reason
                if not answer.expected:
                    record.failures[name, answer.reason] += 1
        if values or failed or everything:
            record.readings.append((now, measured, values, failed))

    def _process(self) -> WorkerProcess | str:
        """The worker's process, or why it is not read here."""
        if self.position.pid_note is not None:
            return self.position.pid_note
        self._worker = WorkerProcess(self.position.pid, self._now)
        return self._worker

    def _find_gpu(self) -> Gpu | str:
        """The GPU, or why its gauges cannot be read."""
        note, uuid = self.position.gpu_note, self.position.uuid
        if note is not None or uuid is None:
            return note or "its UUID is not known"
        try:
            nvml = self._nvml()
        except Exception as error:
            return self._broken(str(error))
        found = nvml.handle(uuid)
        if found.value is None:
            return self._broken(str(found.reason))
        self._gpu = Gpu(nvml, found.value, self._own_pids, self._now)
        return self._gpu

    def _broken(self, why: str) -> str:
        self.record.broken = f"the GPU was not watched: {why}"
        return why

    def _offer(self, gauges: Iterable[Gauge[Any]], columns: Iterable[str], source: object) -> None:
        """Take the gauges of a source; in place of a source stands the text that says why there is none."""
        if isinstance(source, str):
            self.record.unavailable |= dict.fromkeys(columns, source)
            return
        for gauge in gauges:
            self._columns.setdefault(gauge.name, Column()).choices.append((gauge, partial(gauge.read, source)))


class Reader(threading.Thread):
    """Reads its targets, together, until it is told to stop. `order` takes begin, finish and stop."""

    def __init__(self, targets: Sequence[Target], now: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(daemon=True)
        self.targets = targets
        self._now, self._measured = now, False
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()

    def order(self, word: str) -> None:
        """begin: read everything, from here on measured; finish: once more, and no longer; stop."""
        self._orders.put(word)

    def run(self) -> None:
        """The thread's work."""
        try:
            for target in self.targets:
                target.open()
            self._read(everything=True)
            while (word := self._next_order()) != "stop":
                self._measured = self._measured or word == "begin"
                self._read(everything=word is not None)
                self._measured = self._measured and word != "finish"
        except Exception as error:
            for target in self.targets:
                target.record.broken = f"reading ended: {type(error).__name__}: {error}"
        finally:
            for target in self.targets:
                target.close()

    def _read(self, *, everything: bool) -> None:
        for target in self.targets:
            target.read(everything=everything, measured=self._measured)

    def _next_order(self) -> str | None:
        """The next order; None when a column is due first."""
        due = min(target.due for target in self.targets)
        try:
            return self._orders.get(timeout=None if math.isinf(due) else max(0.0, due - self._now()))
        except queue.Empty:
            return None


def readers_of(targets: Sequence[Target]) -> list[Reader]:
    """A reader for each GPU, so that one that never answers holds no other up.

    Processes alone share one: on a CPU every time that the watcher wakes costs a worker its core.
    """
    alone = [[target] for target in targets if target.position.gpu]
    together = [target for target in targets if not target.position.gpu]
    return [Reader(group) for group in [*alone, together] if group]
