"""Devices in CUDA's and NVML's order, their memory, and who uses it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from bench.doctor import gpus
from bench.doctor.box import Box, CudaFacts
from bench.nvml import Answer, bare_uuid, sysfs_address
from bench.schema import Device

from .made_up import gpu, machine, said

GIB = 2**30
V2 = ("nvmlDeviceGetMemoryInfo", "h0", pynvml.nvmlMemory_v2)
NO_PROCESSES: dict[Any, Any] = {"nvmlDeviceGetComputeRunningProcesses": [], "nvmlDeviceGetGraphicsRunningProcesses": []}


def held(total: float, free: float, used: float, reserved: float = 0.5) -> SimpleNamespace:
    return SimpleNamespace(total=total * GIB, free=free * GIB, used=used * GIB, reserved=reserved * GIB)


def process(pid: int | None, memory: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def cuda(*uuids: str) -> CudaFacts:
    devices = [Device(index=index, name="X", uuid=uuid, memory_bytes=80 * GIB) for index, uuid in enumerate(uuids)]
    return CudaFacts(asked=True, devices=tuple(devices))


def test_numbers_are_shortened_to_ranges() -> None:
    assert gpus.ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert gpus.ranges([3]) == "3"


def test_addresses_and_uuids_are_written_as_the_other_side_writes_them() -> None:
    assert sysfs_address("00000000:3B:00.0") == sysfs_address(b"00000000:3B:00.0") == "0000:3b:00.0"
    assert bare_uuid("GPU-AB-1") == bare_uuid("ab-1") == bare_uuid("MIG-ab-1") == "ab-1"


def test_without_nvml_and_without_gpus() -> None:
    (none,) = said(Box(), "gpus", "GPUs")
    assert none.status == "info" and "NVML is not available" in none.fact
    (empty,) = said(machine(gpus=0), "gpus", "GPUs")
    assert (empty.status, empty.fact) == ("info", "NVML works but finds no GPU")
    (refused,) = said(machine({"nvmlDeviceGetCount": Answer(reason="broken")}, gpus=0), "gpus", "GPUs")
    assert (refused.status, refused.fact) == ("problem", "NVML cannot count the GPUs: broken")


def test_a_gpu_that_cannot_be_opened_is_a_problem_and_hides_no_other() -> None:
    box = machine(NO_PROCESSES | {V2: held(80, 79, 1)}, gpus=[gpu(0), gpu(1, handle=None, problem="the GPU is lost")])
    (lost,) = said(box, "gpus", "GPUs")
    assert (lost.status, lost.fact) == ("problem", "GPU 1 cannot be opened: the GPU is lost")
    (other,) = said(box, "gpus", "memory")
    assert other.fact.startswith("GPU 0: 79.0 GiB of 80.0 GiB free")


def test_devices_are_matched_by_uuid_in_cudas_order() -> None:
    order, table = said(machine(gpus=2, cuda=cuda("1", "0")), "gpus", "devices")
    assert table.fact.splitlines()[1:] == [
        "CUDA 0 = GPU 1, PCI 0000:02:00.0: X, 80.0 GiB, 1",
        "CUDA 1 = GPU 0, PCI 0000:01:00.0: X, 80.0 GiB, 0",
    ]
    assert (order.status, order.fact) == ("info", "CUDA's order differs from NVML's: its devices are GPU 1, 0")
    assert [finding.status for finding in said(machine(gpus=2, cuda=cuda("0", "1")), "gpus", "devices")] == ["ok"]


def test_what_cuda_does_not_see_is_listed_with_the_variable_that_hides_it() -> None:
    box = machine(gpus=3, cuda=cuda("1"), environment={"CUDA_VISIBLE_DEVICES": "1"})
    hidden, table = said(box, "gpus", "devices")
    assert "not seen by CUDA: GPU 2, PCI 0000:03:00.0, NVIDIA X, GPU-2" in table.fact
    assert (hidden.status, hidden.fact) == ("info", "CUDA_VISIBLE_DEVICES='1' hides GPU 0, 2")
    (unexplained, _) = said(machine(gpus=2, cuda=cuda("1")), "gpus", "devices")
    assert (unexplained.status, unexplained.fact) == ("warning", "torch does not see GPU 0")


def test_a_mig_device_belongs_to_its_gpu_and_an_unknown_one_is_said_to_be() -> None:
    box = machine(gpus=[gpu(0, mig_uuids=("MIG-a", "MIG-b"))], cuda=cuda("a", "zz"))
    (table,) = said(box, "gpus", "devices")
    assert table.fact.splitlines()[1:] == [
        "CUDA 0 = GPU 0, PCI 0000:01:00.0: X, 80.0 GiB, a",
        "CUDA 1 = unknown to NVML: X, 80.0 GiB, zz",
    ]


def test_different_models_are_a_warning() -> None:
    (mixed,) = said(machine(gpus=[gpu(0), gpu(1), gpu(2, name="Y")]), "gpus", "models")
    assert (mixed.status, mixed.fact) == ("warning", "different GPUs: 2 x NVIDIA X, 1 x Y")
    (equal,) = said(machine(gpus=2), "gpus", "models")
    assert (equal.status, equal.fact) == ("ok", "2 x NVIDIA X")


@pytest.mark.parametrize(
    ("answers", "status", "fact"),
    [
        ({V2: held(80, 79, 0.5)}, "ok", "79.0 GiB of 80.0 GiB free, 512 MiB used, 512 MiB kept by the driver"),
        ({V2: held(80, 39, 40.5)}, "warning", "39.0 GiB of 80.0 GiB free, 40.5 GiB used, 512 MiB kept by the driver"),
        (
            {V2: held(80, 77, 2.5)},
            "info",
            "77.0 GiB of 80.0 GiB free, 2.5 GiB used, 512 MiB kept by the driver; attribution unavailable: "
            "NVML names no process",
        ),
        (
            {("nvmlDeviceGetMemoryInfo", "h0"): held(80, 79, 1), V2: Answer(reason="old driver")}
            | {"nvmlDeviceGetComputeRunningProcesses": [process(1, None)]},
            "ok",
            "79.0 GiB of 80.0 GiB free, 1.0 GiB used, what the driver keeps counts as used",
        ),
        ({}, "info", "memory unknown: not supported by this device"),
        (
            {"nvmlDeviceGetMemoryInfo": Answer(reason="the GPU is lost", lost=True)},
            "problem",
            "memory: the GPU is lost",
        ),
    ],
)
def test_memory(answers: dict[Any, Any], status: str, fact: str) -> None:
    (found,) = said(machine(NO_PROCESSES | answers), "gpus", "memory")
    assert (found.status, found.fact) == (status, f"GPU 0: {fact}")


def test_gpus_of_which_the_same_is_to_be_said_share_a_finding() -> None:
    answers = NO_PROCESSES | {"nvmlDeviceGetMemoryInfo": held(80, 79.5, 0.25), V2: held(80, 30, 50)}
    full, rest = said(machine(answers, gpus=3), "gpus", "memory")
    assert full.fact.startswith("GPU 0: 30.0 GiB") and rest.fact.startswith("GPU 1-2: 79.5 GiB")


def test_a_display_server_and_other_programs_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {7: "Xorg", 8: "python3", 9: None}
    monkeypatch.setattr(gpus, "process_name", names.get)
    answers = {
        "nvmlDeviceGetComputeRunningProcesses": [process(8, 3 * GIB), None, process(9, None), process(None, None)],
        "nvmlDeviceGetGraphicsRunningProcesses": [process(7, 40 * 2**20), process(8, 3 * GIB)],
    }
    screen, computing = said(machine(answers), "gpus", "other programs")
    assert (screen.status, screen.fact) == ("warning", "GPU 0 draws a screen: Xorg (pid 7, 40 MiB)")
    assert computing.status == "warning"
    assert computing.fact == (
        "GPU 0 is used by python3 (pid 8, 3.0 GiB), a process that is not visible here (another pid namespace) "
        "(pid 9, memory unknown)"
    )


def test_nobody_on_the_gpu_is_no_finding_and_a_refused_list_is_said() -> None:
    assert said(machine(NO_PROCESSES), "gpus", "other programs") == []
    (refused,) = said(machine(), "gpus", "other programs")
    assert (refused.status, refused.fact) == ("info", "GPU 0: processes unknown: not supported by this device")


@pytest.mark.parametrize("name", ["Xorg", "X", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "gdm-x-session"])
def test_display_servers_are_known_by_name(name: str) -> None:
    assert gpus.is_display(name)


@pytest.mark.parametrize("name", ["python3", "xgboost", "swayed", None])
def test_others_are_not_display_servers(name: str | None) -> None:
    assert not gpus.is_display(name)


def test_a_process_that_is_gone_has_no_name() -> None:
    assert gpus.process_name(2**22 + 1) is None
