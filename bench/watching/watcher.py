"""The driver's end of the watcher: start it, say which launch to watch, take what it has read.

It never raises for what the watcher does: a launch is measured with or without it, and what
went wrong comes back as a problem.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.schema import Device, Moment, NameValue

ROOT = Path(__file__).resolve().parents[2]
ANSWER_SECONDS = 5.0
CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What was read of one launch, by time, and what could not be read."""

    moments: tuple[Moment, ...] = ()
    problems: tuple[str, ...] = ()


class Watcher:
    """Watches launches, one after the other. Keep one for a whole run and close it.

    The process is started by the first `watch`, again after it has died, and ends with the
    driver, however that ends: its standard input closes then.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = {device.index: device for device in devices}
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._started: float | None = None
        self._problems: list[str] = []

    @property
    def pid(self) -> int | None:
        """The watcher's process; None before the first launch and after `close`."""
        return self._process.pid if self._process is not None else None

    def watch(self, ordinals: Sequence[int], pids: Sequence[int], *, started: float) -> None:
        """Begin to read the devices at these ordinals, position by position.

        `pids` has the worker process of each position. `started` is the launch's beginning by
        `time.perf_counter`, which is one clock for all processes of a Linux machine.
        """
        self._problems, self._started = [], started
        if self._process is None or self._process.poll() is not None:
            self.close()
            try:
                self._start()
            except OSError as error:
                self._problems.append(f"the watcher could not be started: {error}; this launch is not watched")
                return
        self._tell({"op": "watch", "positions": self._positions(ordinals, pids), "own_pids": list(pids)})

    def begin(self) -> None:
        """Read everything now; from here on moments are `measured`. Does not wait."""
        self._tell({"op": "begin"})

    def finish(self) -> None:
        """Read everything once more, as the last `measured` moment. Does not wait."""
        self._tell({"op": "finish"})

    def stop(self) -> Watched:
        """End the watching of this launch and return what was read since `watch`."""
        started, self._started = self._started, None
        if started is None:
            return Watched()
        self._tell({"op": "stop"})
        answer = self._answer() if self._process is not None and not self._problems else None
        if answer is None:
            return Watched(problems=tuple(self._problems))
        if answer["hung"]:
            self.close()
        moments = [
            _moment(position, started, found["unavailable"], reading)
            for position, found in enumerate(answer["positions"])
            for reading in found["readings"]
        ]
        moments.sort(key=lambda moment: moment.elapsed_seconds)
        return Watched(moments=tuple(moments), problems=(*self._problems, *answer["problems"]))

    def close(self) -> None:
        """End the watcher's process. A later `watch` starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            with suppress(OSError):
                process.stdin.close()
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                with suppress(subprocess.TimeoutExpired):  # stuck in the kernel, which not even this ends
                    process.wait(CLOSE_SECONDS)
            process.stdout.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.watching"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Python looks in the current folder first, which may hold a `bench` of somebody else's.
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
            # Ctrl-C and a closing terminal reach the driver alone, which then ends the launch and the watcher.
            start_new_session=True,
        )

    def _positions(self, ordinals: Sequence[int], pids: Sequence[int]) -> list[dict[str, Any]]:
        """What to read at each position; a device or a process that comes again is read once, at its first."""
        positions = []
        for number, (ordinal, pid) in enumerate(zip(ordinals, pids, strict=True)):
            device, first, home = self._devices[ordinal], ordinals.index(ordinal), pids.index(pid)
            gpu_note = None
            if first < number:
                gpu_note = f"the same device as position {first}, read there"
            elif device.uuid is None:
                gpu_note = "CUDA gives no UUID of this device, so that NVML cannot tell which one it is"
            positions.append(
                {
                    "gpu": device.capability is not None or device.uuid is not None,
                    "uuid": device.uuid,
                    "gpu_note": gpu_note,
                    "pid": pid,
                    "pid_note": f"one process drives several devices, read at position {home}"
                    if home < number
                    else None,
                }
            )
        return positions

    def _tell(self, message: Mapping[str, Any]) -> None:
        if self._process is None or self._problems:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._died()

    def _answer(self) -> Any:
        """The next line of the watcher, decoded; None, and a problem, when it gives none in time."""
        try:
            return self._read_line()
        except BaseException:  # Ctrl-C: a late answer must not be taken for that of a later launch
            self.close()
            raise

    def _read_line(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        stdout, until, text = self._process.stdout.fileno(), time.monotonic() + ANSWER_SECONDS, b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                if not selector.select(max(0.0, until - time.monotonic())):
                    self._problems.append(
                        f"the watcher gave no answer within {ANSWER_SECONDS:g} s and was ended; "
                        "what it had read of this launch is lost"
                    )
                    self._process.kill()
                    self.close()
                    return None
                piece = os.read(stdout, 1 << 16)
                if not piece:
                    self._died()
                    return None
                text += piece
        return json.loads(text)

    def _died(self) -> None:
        """Note how the process ended, and what it said last."""
        process, said = self._process, ""
        assert process is not None
        with suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_SECONDS)
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").split("\n")
            said = next((f" ({line.strip()})" for line in reversed(lines) if line.strip()), "")
        self._problems.append(
            f"the watcher ended with status {process.returncode}{said}; what it had read of this launch is lost"
        )
        self.close()


def _moment(position: int, started: float, unavailable: Mapping[str, str], reading: Any) -> Moment:
    at, measured, values, failed = reading
    reasons = {**unavailable, **failed}
    return Moment(
        device_index=position,
        elapsed_seconds=at - started,
        measured=measured,
        unavailable=tuple(NameValue(name=name, value=reasons[name]) for name in sorted(reasons)),
        **values,
    )
