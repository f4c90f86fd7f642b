"""`python -m bench doctor` on boxes in trouble: it always answers, and says what is wrong with which GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, TypeAlias

import pytest

from tests.nvml_stub import GIB, ROOT, SCRIPT, StubGpu, stub_environment

STRANGER = 3_999_999_999
GPUS = (
    StubGpu(
        uuid="GPU-busy",
        name="hex:4eff41",  # N, a byte that is no UTF-8, A
        used_bytes=70 * GIB,
        answers={
            "nvmlDeviceGetComputeRunningProcesses_v3": f"{STRANGER}:? {STRANGER - 1}:{60 * GIB}",
            "nvmlDeviceGetUtilizationRates": "error UNKNOWN",
            "nvmlDeviceGetDisplayActive": "1",
        },
    ),
    StubGpu(uuid="GPU-lost", lost_after=3),
    StubGpu(uuid="GPU-whole", mig=(StubGpu(uuid="MIG-part"),)),
    StubGpu(uuid="GPU-locked", answers={"nvmlDeviceGetHandleByIndex_v2": "error NO_PERMISSION"}),
    StubGpu(uuid="GPU-absurd", answers={"nvmlDeviceGetMemoryInfo_v2": "-1 -1 -1 -1", "nvmlDeviceGetPowerUsage": "-1"}),
)


# Several boxes in one process, since importing torch takes long. CUDA sees a part of GPU 2, then GPU 0.
DOCTOR = """
import os, sys
from bench.__main__ import main
from bench.doctor import box, examine
from bench.schema import Device
devices = tuple(Device(index=index, name="H100", uuid=uuid) for index, uuid in enumerate(("part", "busy")))
examine.CHECKS[:] = [check for check in examine.CHECKS if check.title != "imports"]  # has no GPU in it
box.read_cuda = lambda *_: box.CudaFacts(asked=True, devices=devices)
for script in sys.argv[1:]:
    os.environ["NVML_STUB_SCRIPT"] = script
    assert main(["doctor", "--json", "--results", os.path.dirname(script)]) == 0
    print("\\0", end="")
"""
SYSTEMS = {"in trouble": {}, "mismatch": {"nvmlInitWithFlags": "error LIB_RM_VERSION_MISMATCH"}}

Findings: TypeAlias = "list[dict[str, Any]]"


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Findings]:
    """The findings by box: these GPUs, with a driver that lacks two symbols, and with one that does not answer."""
    missing = ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetRemappedRows"]
    scripts, environment = [], {}
    for system in SYSTEMS.values():
        folder = tmp_path_factory.mktemp("doctor")
        environment = stub_environment(folder, GPUS, system=system, missing=missing)
        scripts.append(str(folder / SCRIPT))
    command = [sys.executable, "-c", DOCTOR, *scripts]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert run.returncode == 0, run.stderr
    documents = run.stdout.split("\0")
    return {name: json.loads(text)["findings"] for name, text in zip(SYSTEMS, documents)}  # noqa: B905 - and a rest


@pytest.fixture
def in_trouble(boxes: dict[str, Findings]) -> Findings:
    return boxes["in trouble"]


def text_of(found: Findings) -> str:
    return "\n".join(f"{item['status']} {item['title']}: {item['fact']}" for item in found)


def test_no_check_fails_whatever_a_gpu_answers(in_trouble: Findings) -> None:
    assert "could not be checked" not in text_of(in_trouble)


def test_gpus_that_cannot_be_used_are_problems_and_hide_no_other(in_trouble: Findings) -> None:
    problems = text_of([item for item in in_trouble if item["status"] == "problem"])
    assert "GPU 3 cannot be opened: not permitted for this user" in problems
    assert "GPU 1" in problems and "lost" in problems
    everything = text_of(in_trouble)
    assert "N\ufffdA" in everything and "GPU-absurd" in everything and "GPU 2" in everything


def test_devices_are_paired_by_uuid(in_trouble: Findings) -> None:
    (devices,) = (item["fact"] for item in in_trouble if item["title"] == "devices" and "CUDA 0" in item["fact"])
    assert "CUDA 0 = GPU 2" in devices and "CUDA 1 = GPU 0" in devices and "GPU-absurd" in devices
    assert "None" not in devices  # the name of a GPU that is lost
    assert any("order differs" in item["fact"] for item in in_trouble)


def test_memory_and_its_users_are_shown_as_far_as_they_are_known(in_trouble: Findings) -> None:
    (memory,) = (item for item in in_trouble if item["title"] == "memory" and "GPU 0" in item["fact"])
    assert memory["status"] == "warning"
    assert "9.5 GiB of 80.0 GiB free" in memory["fact"]  # 80 less the driver's 0.5 and the 70 in use
    users = text_of([item for item in in_trouble if item["title"] == "other programs"])
    assert str(STRANGER) in users and "memory unknown" in users and "60.0 GiB" in users


def test_figure_that_cannot_be_is_not_shown(in_trouble: Findings) -> None:
    # 2**64 - 1 bytes are 17 179 869 184 GiB, 2**32 - 1 mW are 4 294 967 W.
    assert "17179869184" not in text_of(in_trouble) and "4294967" not in text_of(in_trouble)


def test_each_finding_that_matters_has_an_effect_and_a_remedy(in_trouble: Findings) -> None:
    serious = [item for item in in_trouble if item["status"] in ("problem", "warning")]
    assert serious and all(item["effect"] and item["remedy"] for item in serious)


def test_driver_that_does_not_answer_is_a_finding_with_the_reason(boxes: dict[str, Findings]) -> None:
    (driver,) = (item for item in boxes["mismatch"] if item["title"] == "NVIDIA driver")
    assert "version mismatch" in driver["fact"]
    assert "could not be checked" not in text_of(boxes["mismatch"])
