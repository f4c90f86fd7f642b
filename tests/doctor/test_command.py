"""`python -m bench doctor` as a person calls it, here and with a stand-in for NVIDIA's library."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.nvml_stub import StubGpu, environment_without_library, run_python, stub_environment

ROOT = Path(__file__).resolve().parents[2]


def doctor(environment: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "doctor", *options]
    return subprocess.run(command, env=dict(environment), cwd=ROOT, capture_output=True, text=True, timeout=120)


def findings_of(printed: str) -> dict[str, list[dict[str, Any]]]:
    """Findings by title from a JSON document; none may be a check that failed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(printed)["findings"]:
        assert not finding["fact"].startswith("could not be checked"), finding
        found.setdefault(finding["title"], []).append(finding)
    return found


def examined(environment: Mapping[str, str], *options: str) -> dict[str, list[dict[str, Any]]]:
    """Findings by title; the command must end well and print one JSON document."""
    run = doctor(environment, "--json", *options)
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    return findings_of(run.stdout)


def examined_with_cuda(environment: Mapping[str, str], *uuids: str) -> dict[str, list[dict[str, Any]]]:
    """The same with CUDA's view made up: these devices in this order. No worker is started."""
    code = f"""
from pathlib import Path
from bench.doctor import box, show
from bench.schema import Device
devices = tuple(Device(index=index, name="X", uuid=uuid) for index, uuid in enumerate({uuids!r}))
box.read_cuda = lambda torch, gpus: box.CudaFacts(asked=True, devices=devices)
show.run(Path("results"), as_json=True)
"""
    return findings_of(run_python(code, environment, timeout=120))


def test_without_a_gpu_it_names_this_machine_and_ends_well(tmp_path: Path) -> None:
    run = doctor(
        environment_without_library(tmp_path) | {"COLUMNS": "100", "NO_COLOR": "1"}, "--results", str(tmp_path)
    )
    assert (run.returncode, "Traceback" in run.stderr) == (0, False)
    text = " ".join(run.stdout.split())
    assert f"Python: {platform.python_implementation()} {platform.python_version()}" in text
    assert f"torch: {torch.__version__}" in text
    assert "NVML is not available" in text
    assert "runs measure CPU workers only" in text
    assert f"of {os.cpu_count()} cores may be used" in text


def test_json_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    found = examined(
        environment_without_library(tmp_path) | {"OMP_PROC_BIND": "true"}, "--results", str(tmp_path / "r")
    )
    assert found["results"][0]["fact"].endswith("not made yet")
    assert [item["fact"] for item in found["variables"] if item["status"] == "warning"] == ["OMP_PROC_BIND=true"]
    assert found["GPUs"][0]["status"] == "info"


def test_a_broken_torch_and_odd_bytes_in_a_variable_are_findings(tmp_path: Path) -> None:
    fake = tmp_path / "torch"
    fake.mkdir()
    (fake / "__init__.py").write_text("print('noise'); raise OSError('libcudart.so: cannot open shared object file')")
    environment = environment_without_library(tmp_path)
    environment |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "NCCL_ODD": "a\udcffb\x1b[2J", "COLUMNS": "200"}
    run = doctor(environment)
    assert (run.returncode, "Traceback" in run.stderr) == (0, False)
    assert "torch cannot be imported: OSError: libcudart.so: cannot open shared object file" in run.stdout
    assert "NCCL_ODD=a\\udcffb\\x1b[2J" in run.stdout
    assert "noise" not in run.stdout
    document = json.loads(doctor(environment, "--json").stdout)
    assert document["counts"]["problem"] >= 1


def test_what_nvml_says_reaches_the_findings(tmp_path: Path) -> None:
    first = StubGpu(
        uuid="GPU-aaaa",
        name="hex:4e5649444941ff",
        used_bytes=60 << 30,
        answers={
            "nvmlDeviceGetComputeRunningProcesses_v3": f"{os.getpid()}:1073741824",
            "nvmlDeviceGetCurrentClocksEventReasons": "64",
            "nvmlDeviceGetRemappedRows": "0 1 1 0",
            "nvmlDeviceGetEccMode": "error NOT_SUPPORTED",
        },
    )
    mig = StubGpu(uuid="GPU-bbbb", mig=(StubGpu(uuid="MIG-cccc"),))
    found = examined(stub_environment(tmp_path, [first, mig]))
    assert "not seen by CUDA: GPU 0, PCI 0000:10:00.0, NVIDIA\ufffd, GPU-aaaa" in found["devices"][0]["fact"]
    assert found["models"][0]["fact"] == "different GPUs: 1 x NVIDIA\ufffd, 1 x NVIDIA H100 80GB HBM3"
    assert found["memory"][0]["fact"].startswith("GPU 0: 19.5 GiB of 80.0 GiB free, 60.0 GiB used, 512 MiB kept")
    assert f"(pid {os.getpid()}, 1.0 GiB)" in found["other programs"][0]["fact"]
    assert found["clocks"][0]["fact"] == "GPU 0: clocks are held down now by: thermal slowdown (hardware)"
    assert found["remapped rows"][0]["status"] == "warning"
    assert "GPU 0: ECC unknown: not supported by this device" in [item["fact"] for item in found["ECC"]]
    assert "GPU 1: on, with 1 instance(s)" in [item["fact"] for item in found["MIG"]]
    assert "GPU0     X  SYS" in [line for item in found["topology"] for line in item["fact"].splitlines()]


def test_library_and_kernel_module_that_differ(tmp_path: Path) -> None:
    system = {"nvmlInitWithFlags": "error LIB_RM_VERSION_MISMATCH"}
    found = examined_with_cuda(stub_environment(tmp_path, [StubGpu(uuid="GPU-aaaa")], system=system))
    assert "NVML is not available" in found["NVIDIA driver"][0]["fact"]
    assert found["GPUs"][0]["status"] == "info"


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA: no driver is too old for it")
def test_a_driver_that_is_too_old_for_torch(tmp_path: Path) -> None:
    environment = stub_environment(
        tmp_path, [StubGpu(uuid="GPU-aaaa")], system={"nvmlSystemGetCudaDriverVersion": "10020"}
    )
    (found,) = examined_with_cuda(environment)["driver and CUDA"]
    assert (found["status"], found["fact"][:28]) == ("problem", "the driver offers CUDA 10.2,")


def test_cuda_devices_are_found_by_uuid_although_nvml_counts_otherwise(tmp_path: Path) -> None:
    gpus = [
        StubGpu(uuid="GPU-aaaa"),
        StubGpu(uuid="GPU-bbbb", mig=(StubGpu(uuid="MIG-cccc"),)),
        StubGpu(uuid="GPU-dddd"),
    ]
    found = examined_with_cuda(stub_environment(tmp_path, gpus), "dddd", "cccc")
    order, table = found["devices"]
    assert table["fact"].splitlines()[1:] == [
        "CUDA 0 = GPU 2, PCI 0000:12:00.0: X, dddd",
        "CUDA 1 = GPU 1, PCI 0000:11:00.0: X, cccc",
        "not seen by CUDA: GPU 0, PCI 0000:10:00.0, NVIDIA H100 80GB HBM3, GPU-aaaa",
    ]
    assert order["fact"] == "CUDA's order differs from NVML's: its devices are GPU 2, 1"


def test_a_lost_gpu_and_an_old_driver_hide_nothing_else(tmp_path: Path) -> None:
    gpus = [StubGpu(uuid="GPU-aaaa", lost_after=3), StubGpu(uuid="GPU-bbbb", used_bytes=1 << 20)]
    missing = ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"]
    found = examined_with_cuda(stub_environment(tmp_path, gpus, missing=missing), "bbbb")
    facts = [item["fact"] for item in found["memory"] if item["area"] == "gpus"]
    assert "GPU 0: memory: the GPU is lost" in facts
    assert any(fact.startswith("GPU 1: 79.5 GiB") and "what the driver keeps counts as used" in fact for fact in facts)
    assert "GPU 1: nothing holds the clocks down now" in [item["fact"] for item in found["clocks"]]


@pytest.mark.parametrize("command", ["list levers", "doctor --json"])
@pytest.mark.parametrize("output", [">&-", "> /dev/full"])
def test_output_that_goes_nowhere_is_one_line_of_error(tmp_path: Path, command: str, output: str) -> None:
    line = f"{sys.executable} -m bench {command} {output}"
    environment = environment_without_library(tmp_path)
    run = subprocess.run(["sh", "-c", line], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in run.stderr, run.stderr
    assert len(run.stderr.strip().splitlines()) <= 1
