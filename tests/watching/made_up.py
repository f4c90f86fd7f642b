"""A made-up NVML: the real binding's names and errors, with answers that a test scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml

from bench.nvml import Nvml
from bench.watching.gpu import Gpu

NOT_SUPPORTED, UNKNOWN, LOST = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST
HANDLE = "handle"


class MadeUp:
    """NVML whose functions answer as scripted: a value, a function of the arguments, or an NVMLError.

    What is not scripted is not supported. `calls` counts by name.
    """

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        self.answers, self.calls = dict(answers or {}), Counter[str]()
        module = ModuleType("pynvml")
        module.__dict__.update(vars(pynvml))
        for name in vars(pynvml):
            if name.startswith(("nvmlDevice", "nvmlGpm")):
                setattr(module, name, self._function(name))
        self.nvml = Nvml(module)

    def _function(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            answer = self.answers.get(name, pynvml.NVMLError(NOT_SUPPORTED))
            if isinstance(answer, BaseException):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def gpu_of(made_up: MadeUp, clock: Clock | None = None, own_pids: tuple[int, ...] = ()) -> Gpu:
    return Gpu(made_up.nvml, HANDLE, own_pids, clock or Clock())


def error(code: int) -> Exception:
    return pynvml.NVMLError(code)  # type: ignore[no-any-return]


def entry(pid: int, memory: int | None) -> SimpleNamespace:
    """One entry of NVML's list of processes."""
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)
