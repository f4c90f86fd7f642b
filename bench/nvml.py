"""NVIDIA's management library (NVML), asked so that one failing query spoils no other.

Devices are found by UUID, never by index: CUDA's order and NVML's differ, and
`CUDA_VISIBLE_DEVICES` hides some. A session must be opened after a fork, in the process that uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from bench.errors import BenchError

# CUDA tells the bare UUID; NVML's text says what kind of device it belongs to.
UUID_PREFIXES = ("", "GPU-", "MIG-")
LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
PLAIN_WORDS = {
    "NVML_ERROR_NOT_SUPPORTED": "not supported by this device",
    "NVML_ERROR_NO_PERMISSION": "not permitted for this user",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "not known to this driver",
    "NVML_ERROR_GPU_IS_LOST": "the GPU is lost",
}


class NvmlUnavailable(BenchError):
    """NVML cannot be used here at all; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a query gave. `reason` says why `value` is None; `lost`: the device itself is gone."""

    value: Any = None
    reason: str | None = None
    lost: bool = False


class Nvml:
    """An open session. `ask` never raises."""

    def __init__(self, module: ModuleType) -> None:
        self.constants: Any = module
        """pynvml itself, for its constants and structures."""

    def ask(self, function: str, *arguments: Any) -> Answer:
        """The answer of one of pynvml's functions, e.g. `ask("nvmlDeviceGetPowerUsage", handle)`."""
        call = getattr(self.constants, function, None)
        if call is None:
            return Answer(reason="not known to this version of nvidia-ml-py")
        try:
            return Answer(value=call(*arguments))
        except UnicodeDecodeError:
            return self._undecoded(call, arguments)
        except self.constants.NVMLError as error:
            return self._refused(error)
        except Exception as error:  # a binding and a driver that do not fit together
            return Answer(reason=f"{type(error).__name__}: {error}")

    def handle(self, uuid: str) -> Answer:
        """The device's handle by its UUID, with or without the prefix `GPU-` or `MIG-`."""
        answer = Answer(reason=f"NVML knows no device {uuid}")
        for prefix in UUID_PREFIXES:
            answer = self.ask("nvmlDeviceGetHandleByUUID", prefix + uuid)
            if answer.value is not None or answer.lost:
                break
        return answer

    def handles(self) -> list[Answer]:
        """Every device in NVML's own order, those that cannot be opened too."""
        count = self.ask("nvmlDeviceGetCount").value or 0
        return [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]

    def _undecoded(self, call: Any, arguments: tuple[Any, ...]) -> Answer:
        """The same query without the binding's strict decoding: names may hold odd bytes."""
        try:
            raw = call.__wrapped__(*arguments)
        except Exception as error:
            return Answer(reason=f"{type(error).__name__}: {error}")
        return Answer(value=raw.decode(errors="replace") if isinstance(raw, bytes) else raw)

    def _refused(self, error: Any) -> Answer:
        code = getattr(error, "value", None)
        name = next((n for n in (*PLAIN_WORDS, *LOST) if getattr(self.constants, n, object()) == code), None)
        return Answer(reason=PLAIN_WORDS.get(name or "", str(error)), lost=name in LOST)


@contextmanager
def nvml_session() -> Iterator[Nvml]:
    """NVML while the block runs; NvmlUnavailable where there is none, it does not fit the driver, or it fails."""
    try:
        import pynvml
    except Exception as error:
        raise NvmlUnavailable(f"NVML is not available: {error}; install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except Exception as error:
        raise NvmlUnavailable(f"NVML is not available: {error}") from error
    try:
        yield Nvml(pynvml)
    finally:
        with suppress(Exception):
            pynvml.nvmlShutdown()
