"""NVIDIA's management library (NVML), asked so that one failing query spoils no other.

Devices are found by UUID, never by index: CUDA's order and NVML's differ, and
`CUDA_VISIBLE_DEVICES` hides some. A session must be opened after a fork, in the process that uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from bench.errors import BenchError

# CUDA tells the bare UUID; NVML's text says what kind of device it belongs to.
UUID_PREFIXES = ("GPU-", "MIG-")
LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
UNSUPPORTED = ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_FUNCTION_NOT_FOUND")
PLAIN_WORDS = {
    "NVML_ERROR_NOT_SUPPORTED": "not supported by this device",
    "NVML_ERROR_NO_PERMISSION": "not permitted for this user",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "not known to this driver",
    "NVML_ERROR_GPU_IS_LOST": "the GPU is lost",
}
MOST_BYTES = 2**50
"""More memory than any GPU has: a driver's mark for what it does not know."""


class NvmlUnavailable(BenchError):
    """NVML cannot be used here at all; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a query gave. `reason` says why `value` is None, or what to doubt about it.

    lost: the device itself is gone; absent: there is none of that identity; unsupported: asking
    again would give the same; expected: nothing has failed, there is just nothing to tell.
    """

    value: Any = None
    reason: str | None = None
    lost: bool = False
    absent: bool = False
    unsupported: bool = False
    expected: bool = False


class Nvml:
    """An open session. `ask` never raises."""

    def __init__(self, module: ModuleType) -> None:
        self.constants: Any = module
        """pynvml itself, for its constants and structures."""

    def ask(self, function: str, *arguments: Any) -> Answer:
        """The answer of one of pynvml's functions, e.g. `ask("nvmlDeviceGetPowerUsage", handle)`."""
        call = getattr(self.constants, function, None)
        if call is None:
            return Answer(reason="not known to this version of nvidia-ml-py", unsupported=True)
        try:
            return Answer(value=call(*arguments))
        except UnicodeDecodeError:
            return self._undecoded(call, arguments)
        except self.constants.NVMLError as error:
            return self.refusal(error.value)
        except Exception as error:  # a binding and a driver that do not fit together
            mismatch = type(error).__name__ == "NVMLLibraryMismatchError"
            return Answer(reason=f"{type(error).__name__}: {error}", unsupported=mismatch)

    def handle(self, uuid: str) -> Answer:
        """The device's handle by its UUID, with or without the prefix `GPU-` or `MIG-`."""
        prefixes = ("",) if uuid.startswith(UUID_PREFIXES) else ("", *UUID_PREFIXES)
        answers = [self.ask("nvmlDeviceGetHandleByUUID", prefix + uuid) for prefix in prefixes]
        # One form is the right one; the others are only not found.
        telling = [answer for answer in answers if answer.value is not None or not answer.absent]
        if telling:
            return telling[0]
        return replace(answers[-1], reason=f"NVML knows no device {uuid}: {answers[-1].reason}")

    def refusal(self, code: int) -> Answer:
        """NVML's error code in plain words, of a query or of one value among several."""
        name = next((n for n in (*PLAIN_WORDS, *LOST) if getattr(self.constants, n, object()) == code), None)
        reason = PLAIN_WORDS.get(name or "") or self._text(code)
        absent = code == getattr(self.constants, "NVML_ERROR_NOT_FOUND", None)
        return Answer(reason=reason, lost=name in LOST, absent=absent, unsupported=name in UNSUPPORTED)

    def handles(self) -> list[Answer]:
        """Every device in NVML's own order, those that cannot be opened too."""
        count = self.ask("nvmlDeviceGetCount").value or 0
        return [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]

    def parts(self, handle: Any) -> list[Any]:
        """Handles of the MIG devices on a GPU; empty where it is not divided."""
        places = range(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle).value or 0)
        found = [self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place).value for place in places]
        return [part for part in found if part is not None]

    def memory(self, handle: Any) -> tuple[Answer, bool]:
        """Total, free and used bytes, and whether the driver's own part is kept apart as `reserved`.

        It is in the second version of the query, and counts as used in the first, which older drivers have.
        """
        version = getattr(self.constants, "nvmlMemory_v2", None)
        answer = self.ask("nvmlDeviceGetMemoryInfo", handle, version) if version is not None else Answer()
        apart = answer.value is not None
        return (answer, True) if apart else (self.ask("nvmlDeviceGetMemoryInfo", handle), False)

    def _undecoded(self, call: Any, arguments: tuple[Any, ...]) -> Answer:
        """The same query without the binding's strict decoding: names may hold odd bytes."""
        try:
            raw = call.__wrapped__(*arguments)
        except Exception as error:
            return Answer(reason=f"{type(error).__name__}: {error}")
        return Answer(value=raw.decode(errors="replace") if isinstance(raw, bytes) else raw)

    def _text(self, code: int) -> str:
        try:
            return str(self.constants.NVMLError(code))
        except Exception:  # the text comes from the library too
            return f"NVML error {code}"


def bare_uuid(uuid: str) -> str:
    """A UUID as CUDA tells it: without the kind of device that NVML writes before it, in small letters."""
    prefix = next((prefix for prefix in UUID_PREFIXES if uuid.startswith(prefix)), "")
    return uuid.removeprefix(prefix).lower()


def sysfs_address(bus_id: str | bytes) -> str:
    """NVML's `00000000:3B:00.0` as the kernel writes it: `0000:3b:00.0`."""
    text = bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


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
