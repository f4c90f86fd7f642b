"""Versions and what does not fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.doctor import software
from bench.doctor.box import Box, CudaFacts, TorchBuild
from bench.schema import Device

from .made_up import files, gpu, machine, said

ROOT = Path(__file__).resolve().parents[2]
BUILD = TorchBuild(version="2.14.1+cu130", cuda="13.0", nccl=(2, 30, 7), architectures=("sm_80", "sm_90"))
GPU_ON_THE_BUS = {
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:02:00.0/class": "0x020000\n",
    "sys/bus/pci/devices/0000:02:00.0/vendor": "0x10de\n",
}


def status_and_fact(box: Box, title: str) -> tuple[str, str]:
    (only,) = said(box, "software", title)
    return only.status, only.fact


def test_the_lower_bounds_are_those_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    dependencies = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert dependencies is not None
    assert dict(re.findall(r'"([\w-]+)>=([\d.]+)"', dependencies[1])) == software.REQUIRED


def test_a_version_is_read_up_to_its_first_letter() -> None:
    assert software.release("2.14.1+cu130") == (2, 14, 1)
    assert software.release("13.615rc1") == (13, 615)
    assert software.release("unknown") == ()


def test_missing_and_old_packages_are_named_with_the_command_that_mends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    here = dict(software.REQUIRED) | {"pandas": "2.1.4", "rich": None, "torch": "2.14.1+cu130"}
    monkeypatch.setattr(software, "_version", here.get)
    missing, old, all_found = said(Box(), "software", "packages")
    assert (missing.status, missing.fact, missing.remedy) == (
        "problem", "rich is not installed", "pip install 'rich>=13.7'",
    )  # fmt: skip
    assert (old.status, old.fact) == ("warning", "pandas 2.1.4 is older than 2.2")
    assert all_found.status == "ok" and "torch 2.14.1+cu130" in all_found.fact and "rich" not in all_found.fact


def test_a_package_that_cannot_be_imported_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(software, "import_module", broken)
    assert status_and_fact(Box(), "imports") == (
        "problem", "importing torchvision fails: RuntimeError: operator torchvision::nms does not exist",
    )  # fmt: skip


def test_torch_that_is_missing_is_a_finding_and_nothing_is_said_about_its_parts() -> None:
    box = machine({"nvmlSystemGetCudaDriverVersion": 13000}, torch=TorchBuild(problem="ModuleNotFoundError: torch"))
    status, fact = status_and_fact(box, "torch")
    assert status == "problem" and "cannot be imported: ModuleNotFoundError: torch" in fact
    for title in ("driver and CUDA", "GPU code in torch", "NCCL", "CUDA in torch"):
        assert said(box, "software", title) == []


def test_torch_without_cuda_is_a_problem_only_where_there_is_a_gpu(tmp_path: Path) -> None:
    build = TorchBuild(version="2.14.1+cpu")
    assert status_and_fact(Box(root=tmp_path, torch=build), "torch") == ("ok", "2.14.1+cpu, a build without CUDA")
    assert status_and_fact(machine(torch=build), "torch")[0] == "problem"
    on_the_bus = Box(root=files(tmp_path, GPU_ON_THE_BUS), torch=build)
    assert status_and_fact(on_the_bus, "torch")[0] == "problem"


@pytest.mark.parametrize(
    ("why", "tree", "status", "words"),
    [
        ("NVML Shared Library Not Found", {}, "info", "no NVIDIA GPU is on the PCI bus"),
        ("NVML Shared Library Not Found", GPU_ON_THE_BUS, "problem", "1 NVIDIA GPU(s) are on the PCI bus (0000:01"),
        ("Driver/library version mismatch", {"proc/driver/nvidia/version": "NVRM 580.1\nGCC"}, "problem", "NVRM 580.1"),
        ("No module; install nvidia-ml-py", {}, "problem", "install nvidia-ml-py"),
    ],
)  # fmt: skip
def test_why_there_is_no_nvml(tmp_path: Path, why: str, tree: dict[str, Any], status: str, words: str) -> None:
    found = status_and_fact(Box(root=files(tmp_path, tree), nvml_problem=why), "NVIDIA driver")
    assert found[0] == status and why in found[1] and words in found[1]


def test_the_driver_s_version() -> None:
    assert status_and_fact(machine({"nvmlSystemGetDriverVersion": "580.65.06"}), "NVIDIA driver") == ("ok", "580.65.06")
    assert status_and_fact(machine(), "NVIDIA driver")[0] == "info"


@pytest.mark.parametrize(
    ("driver", "built", "status"),
    [(13000, "13.0", "ok"), (13010, "12.6", "ok"), (12040, "12.8", "info"), (12080, "13.0", "problem")],
)
def test_the_driver_s_cuda_against_torch_s(driver: int, built: str, status: str) -> None:
    box = machine({"nvmlSystemGetCudaDriverVersion": driver}, torch=TorchBuild(version="2.14", cuda=built))
    found, fact = status_and_fact(box, "driver and CUDA")
    assert found == status
    assert fact == f"the driver offers CUDA {driver // 1000}.{driver % 1000 // 10}, torch is built for {built}"


def test_an_unknown_cuda_version_of_the_driver_is_said() -> None:
    assert status_and_fact(machine(torch=BUILD), "driver and CUDA")[0] == "info"


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ("sm_80", "sm_90"), True),
        ((8, 9), ("sm_80", "sm_90"), True),
        ((7, 0), ("sm_75", "sm_80"), False),
        ((8, 0), ("sm_86",), False),
        ((10, 3), ("sm_100",), True),
        ((12, 0), ("sm_90", "compute_90"), True),
        ((12, 0), ("sm_90",), False),
    ],
)
def test_whether_torch_holds_code_for_a_gpu(
    capability: tuple[int, int], architectures: tuple[str, ...], runs: bool
) -> None:
    build = TorchBuild(version="2.14", cuda="13.0", architectures=architectures)
    found = said(
        machine({"nvmlDeviceGetCudaComputeCapability": capability}, torch=build), "software", "GPU code in torch"
    )
    assert [finding.status for finding in found] == ([] if runs else ["problem"])


def test_a_gpu_that_torch_cannot_use_is_a_problem_unless_it_is_hidden_on_purpose() -> None:
    cuda = CudaFacts(asked=True, problem="no CUDA GPUs are available")
    assert status_and_fact(machine(cuda=cuda), "CUDA in torch") == (
        "problem", "torch cannot use the GPU: no CUDA GPUs are available",
    )  # fmt: skip
    hidden = machine(cuda=cuda, environment={"CUDA_VISIBLE_DEVICES": "-1"})
    assert status_and_fact(hidden, "CUDA in torch") == ("info", "CUDA_VISIBLE_DEVICES='-1' hides every GPU")
    chosen = machine(cuda=cuda, environment={"CUDA_VISIBLE_DEVICES": "7"})
    assert "(CUDA_VISIBLE_DEVICES='7' chooses among them)" in status_and_fact(chosen, "CUDA in torch")[1]
    works = machine(cuda=CudaFacts(asked=True, devices=(Device(index=0, name="X"),)))
    assert status_and_fact(works, "CUDA in torch") == ("ok", "torch sees 1 device(s)")


@pytest.mark.parametrize(
    ("nccl", "gpus", "status"),
    [((2, 30, 7), 0, "ok"), ((2, 27, 3), 1, "info"), (None, 0, "info"), (None, 1, "problem")],
)
def test_nccl(nccl: tuple[int, ...] | None, gpus: int, status: str) -> None:
    box = machine(gpus=[gpu(index) for index in range(gpus)], torch=TorchBuild(version="2.14", cuda="13.0", nccl=nccl))
    assert status_and_fact(box, "NCCL")[0] == status
