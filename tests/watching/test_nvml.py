"""The NVML session: prefixes of UUIDs, plain reasons, and queries that never raise."""

from __future__ import annotations

import pynvml
import pytest

from tests.watching.made_up import LOST, NOT_SUPPORTED, UNKNOWN, MadeUp, error


@pytest.mark.parametrize(
    ("asked", "known"), [("1-2", "GPU-1-2"), ("1-2", "MIG-1-2"), ("GPU-1-2", "GPU-1-2"), ("MIG-1-2", "MIG-1-2")]
)
def test_a_device_is_found_by_its_uuid_with_or_without_the_prefix(asked: str, known: str) -> None:
    def find(uuid: str) -> str:
        if uuid != known:
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return f"handle of {uuid}"

    made_up = MadeUp({"nvmlDeviceGetHandleByUUID": find})
    assert made_up.nvml.handle(asked).value == f"handle of {known}"
    assert made_up.nvml.handle("GPU-9").reason == "NVML knows no device GPU-9: Not Found"


@pytest.mark.parametrize(
    ("code", "words", "unsupported", "lost"),
    [
        (NOT_SUPPORTED, "not supported by this device", True, False),
        (pynvml.NVML_ERROR_NO_PERMISSION, "not permitted for this user", True, False),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "not known to this driver", True, False),
        (LOST, "the GPU is lost", False, True),
        (pynvml.NVML_ERROR_RESET_REQUIRED, "GPU requires restart", False, True),
        (UNKNOWN, "Unknown Error", False, False),
        (12345, "NVML Error with code 12345", False, False),
    ],
)
def test_refusals_in_plain_words(code: int, words: str, unsupported: bool, lost: bool) -> None:
    answer = MadeUp({"nvmlDeviceGetPowerUsage": error(code)}).nvml.ask("nvmlDeviceGetPowerUsage", "handle")
    assert (answer.value, answer.reason) == (None, words)
    assert (answer.unsupported, answer.lost) == (unsupported, lost)


def test_a_function_that_the_binding_lacks_is_a_reason() -> None:
    answer = MadeUp().nvml.ask("nvmlDeviceGetSomethingNew")
    assert answer.value is None and answer.unsupported and "nvidia-ml-py" in str(answer.reason)
