"""The watcher's process: orders come as JSON lines on standard input, answers go out the same way.

watch: begin to read positions; begin, finish: the measured rounds; stop: end, and answer with all
that was read. It ends when standard input does, which is when the driver closes it or ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from typing import IO, Any

from bench.nvml import Nvml, nvml_session
from bench.watching.reader import Position, Reader, Target, readers_of

JOIN_SECONDS = 2.0


class SharedNvml:
    """One NVML session for all readers, opened by the first that needs it, never by the main thread:

    a driver in trouble may not come back from it, and the orders must go on.
    """

    def __init__(self) -> None:
        self._lock, self._open = threading.Lock(), ExitStack()
        self._nvml: Nvml | None = None

    def __call__(self) -> Nvml:
        """The session; NvmlUnavailable where there is none."""
        with self._lock:
            if self._nvml is None:
                self._nvml = self._open.enter_context(nvml_session())
            return self._nvml

    def close(self) -> None:
        self._open.close()


class Service:
    """Carries out the driver's orders."""

    def __init__(self) -> None:
        self._nvml = SharedNvml()
        self._targets: list[Target] = []
        self._readers: list[Reader] = []
        self._hung = False

    def obey(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Carry out one order; an answer for `stop` only."""
        if message["op"] == "watch":
            positions = [Position(**position) for position in message["positions"]]
            self._targets = [Target(position, message["own_pids"], self._nvml) for position in positions]
            self._readers = readers_of(self._targets)
            for reader in self._readers:
                reader.start()
            return None
        if message["op"] == "stop":
            return self._stop()
        for reader in self._readers:
            reader.order(message["op"])
        return None

    def _stop(self) -> dict[str, Any]:
        for reader in self._readers:
            reader.order("stop")
        until = time.monotonic() + JOIN_SECONDS
        for reader in self._readers:
            reader.join(max(0.0, until - time.monotonic()))
            if reader.is_alive():
                self._hung = True
                for target in reader.targets:
                    target.record.broken = "it has stopped answering; later figures of it are missing"
        records = [target.record for target in self._targets]
        self._targets, self._readers = [], []
        return {
            "positions": [{"unavailable": dict(r.unavailable), "readings": list(r.readings)} for r in records],
            "problems": [problem for number, record in enumerate(records) for problem in record.problems(number)],
            "hung": self._hung,
        }

    def close(self) -> None:
        """End what still reads; NVML is left as it is where a reader is stuck in it."""
        self._stop()
        if not self._hung:
            self._nvml.close()


def serve(orders: IO[str], answers: IO[str]) -> None:
    """Obey until the orders end."""
    service = Service()
    for line in orders:
        answer = service.obey(json.loads(line))
        if answer is not None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    service.close()


def main() -> None:
    """Serve standard input, and leave at once, whatever a reader may be stuck in."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin, sys.stdout)
    os._exit(0)


if __name__ == "__main__":
    main()
