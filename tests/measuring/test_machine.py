"""Which devices are measured, with made-up answers of NVML and of CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch

from bench.errors import UsageError
from bench.host import cpu_cores
from bench.measuring.launcher import Launcher, LaunchError
from bench.measuring.machine import NvmlView, find_machine
from bench.schema import Outcome

GPU = NvmlView(gpu_names=("NVIDIA H200", "NVIDIA H200"), driver_version="470.82.01")
NO_GPU = NvmlView(problem="NVML is not available: library not found")
OLD_DRIVER = {"problem": "The NVIDIA driver on your system is too old (found version 11040)."}
H200 = {"index": 0, "name": "NVIDIA H200", "uuid": "GPU-0a", "memory_bytes": 150_000_000_000, "capability": "9.0"}
WORKING = {"devices": [H200], "bf16": True, "nccl": [2, 30, 7]}


class MadeUpLauncher:
    """A worker that answers as scripted when it is asked about CUDA."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer, self.asked = answer, 0

    @contextmanager
    def start(self, *_: Any) -> Iterator[MadeUpLauncher]:
        yield self

    def replies(self) -> list[dict[str, Any]]:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer]


@pytest.fixture(autouse=True)
def all_devices_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def find(requested: str, answer: dict[str, Any] | Exception, view: NvmlView) -> Any:
    return find_machine(requested, cast(Launcher, MadeUpLauncher(answer)), view)


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_gpu_that_torch_cannot_use_is_refused_with_both_versions_and_the_remedy(requested: str) -> None:
    with pytest.raises(UsageError) as raised:
        find(requested, OLD_DRIVER, GPU)
    text = str(raised.value)
    assert torch.__version__ in text and "470.82.01" in text  # both versions
    assert "too old (found version 11040)" in text  # what torch says
    assert "2 x NVIDIA H200" in text
    assert "--device-type cpu" in text and "driver" in text


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_worker_that_dies_when_asked_about_cuda_is_a_refusal_too(requested: str) -> None:
    died = LaunchError(Outcome(status="error", reason="rank 0 was ended by SIGSEGV"))
    with pytest.raises(UsageError, match="SIGSEGV"):
        find(requested, died, GPU)


def test_cpu_that_was_asked_for_is_used_beside_any_gpu() -> None:
    launcher = MadeUpLauncher(OLD_DRIVER)
    machine = find_machine("cpu", cast(Launcher, launcher), GPU)
    assert machine.device_type == "cpu" and launcher.asked == 0
    assert [device.index for device in machine.devices] == list(range(cpu_cores()))


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_leave_the_cpu(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert find("auto", {"devices": [], "bf16": False, "nccl": None}, GPU).device_type == "cpu"
    with pytest.raises(UsageError):
        find("cuda", {"devices": [], "bf16": False, "nccl": None}, GPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA devices")
def test_machine_without_any_gpu_is_a_cpu_machine_unless_cuda_was_asked_for() -> None:
    assert find("auto", OLD_DRIVER, NO_GPU).device_type == "cpu"
    with pytest.raises(UsageError) as raised:
        find("cuda", OLD_DRIVER, NO_GPU)
    assert torch.__version__ in str(raised.value) and "--device-type cpu" in str(raised.value)


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_gpus_that_work_are_described_by_the_runtime_that_trains(requested: str) -> None:
    machine = find(requested, WORKING, GPU)
    assert (machine.device_type, machine.bf16, machine.nccl_version) == ("cuda", True, (2, 30, 7))
    # NVML sees two, the runtime one (CUDA_VISIBLE_DEVICES): the runtime counts.
    assert [(device.name, device.uuid, device.index) for device in machine.devices] == [("NVIDIA H200", "GPU-0a", 0)]
    assert machine.driver_version == "470.82.01"


@pytest.mark.parametrize("view", [GPU, NO_GPU])
def test_unknown_device_type_lists_those_that_exist(view: NvmlView) -> None:
    with pytest.raises(UsageError) as raised:
        find("tpu", WORKING, view)
    assert all(word in str(raised.value) for word in ("tpu", "auto", "cuda", "cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA devices")
def test_a_real_worker_says_why_cuda_does_not_work(launcher: Launcher) -> None:
    with pytest.raises(UsageError, match=r"470\.82\.01"):
        find_machine("auto", launcher, GPU)
    assert not torch.cuda.is_initialized()
