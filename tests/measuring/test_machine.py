"""Which devices are measured, with made-up answers of NVML and of CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from bench.errors import UsageError
from bench.host import cpu_cores
from bench.levers import Abilities
from bench.measuring.launcher import Launcher, LaunchError
from bench.measuring.links import Link, topology_of
from bench.measuring.machine import CudaView, Machine, NvmlDevice, NvmlView, cuda_view, find_machine
from bench.schema import Device, Outcome
from tests.nvml_stub import StubGpu, calls, run_python, stub_environment

GPU = NvmlView(gpu_names=("NVIDIA H200", "NVIDIA H200"), driver_version="470.82.01")
NO_GPU = NvmlView(problem="NVML is not available: library not found")
OLD_DRIVER = {"problem": "The NVIDIA driver on your system is too old (found version 11040)."}
H200 = {"index": 0, "name": "NVIDIA H200", "uuid": "GPU-0a", "memory_bytes": 150_000_000_000, "capability": "9.0"}
WORKING = {"devices": [H200], "bf16": True, "nccl": [2, 30, 7], "cannot_compile": "no compiler"}


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
    assert (machine.device_type, machine.nccl_version) == ("cuda", (2, 30, 7))
    assert machine.abilities == Abilities(bf16=True, cannot_compile="no compiler")
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


# What CUDA shows under CUDA_VISIBLE_DEVICES=3,2 on a machine of four: bare UUIDs, in that order.
THIRD, SECOND = "00000003-aaaa-bbbb-cccc-dddddddddddd", "00000002-aaaa-bbbb-cccc-dddddddddddd"
VISIBLE = CudaView(
    devices=tuple(Device(index=i, name="NVIDIA H200", uuid=uuid) for i, uuid in enumerate([THIRD, SECOND])),
    nccl_version=(2, 30, 7),
)
FOUR = NvmlView(
    gpu_names=("NVIDIA H200",) * 4,
    driver_version="580.65.06",
    devices=tuple(
        NvmlDevice(uuid=f"GPU-0000000{i}{THIRD[8:]}", memory_used_bytes=100 + i, memory_reserved_bytes=10 + i)
        for i in range(4)
    ),
)


def visible(cuda: CudaView, view: NvmlView) -> Machine:
    return find_machine("cuda", cast(Launcher, MadeUpLauncher(AssertionError("no worker"))), view, cuda)


@pytest.mark.parametrize("written", ["3,2", f"GPU-{THIRD},GPU-{SECOND}", "GPU-00000003,GPU-00000002", f"MIG-{THIRD}"])
def test_devices_are_cudas_whatever_the_variable_looks_like(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", written)
    machine = visible(VISIBLE, FOUR)
    # Ordinal 0 is the GPU that NVML counts as 3: its UUID, and its memory before anything has run.
    assert [(d.index, d.uuid, d.idle_memory_used_bytes, d.reserved_memory_bytes) for d in machine.devices] == [
        (0, f"GPU-{THIRD}", 103, 13), (1, f"GPU-{SECOND}", 102, 12)
    ]  # fmt: skip
    assert machine.notes == ()


def test_a_mig_device_has_the_prefix_that_nvml_knows() -> None:
    view = NvmlView(gpu_names=("NVIDIA H100",), devices=(NvmlDevice(uuid=f"MIG-{THIRD}", memory_used_bytes=5),))
    machine = visible(CudaView(devices=VISIBLE.devices[:1]), view)
    assert (machine.devices[0].uuid, machine.devices[0].idle_memory_used_bytes) == (f"MIG-{THIRD}", 5)


@pytest.mark.parametrize(("name", "prefix"), [("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG"), ("NVIDIA H100", "GPU")])
def test_without_nvml_everything_is_found_and_a_note_says_why_there_are_no_gauges(name: str, prefix: str) -> None:
    machine = visible(CudaView(devices=(Device(index=0, name=name, uuid=THIRD),)), NO_GPU)
    (device,) = machine.devices
    assert device.uuid == f"{prefix}-{THIRD}"
    assert (device.idle_memory_used_bytes, device.reserved_memory_bytes) == (None, None)
    (note,) = machine.notes
    assert note.startswith("no gauges of the GPUs") and "library not found" in note


def test_a_device_that_nvml_does_not_list_is_told() -> None:
    (note,) = visible(VISIBLE, NvmlView(gpu_names=("NVIDIA H200",), devices=FOUR.devices[:3])).notes
    assert "no gauges of GPU 0" in note


def test_memory_by_the_older_query_is_told() -> None:
    old = NvmlView(gpu_names=("NVIDIA H200",), devices=(NvmlDevice(uuid=THIRD, memory_used_bytes=7, v1=True),))
    machine = visible(CudaView(devices=VISIBLE.devices[:1]), old)
    assert machine.devices[0].idle_memory_used_bytes == 7 and machine.devices[0].reserved_memory_bytes is None
    assert "the driver's own memory is part of the memory in use" in machine.notes[0]


def test_cudas_view_in_a_worker_that_fails_is_a_problem() -> None:
    died = LaunchError(Outcome(status="error", reason="rank 0 was ended by SIGSEGV"))
    assert cuda_view(cast(Launcher, MadeUpLauncher(died)), GPU) == CudaView(problem="rank 0 was ended by SIGSEGV")
    assert cuda_view(cast(Launcher, MadeUpLauncher(WORKING)), GPU).devices == (Device(**H200),)


SHOW = "from bench.measuring.machine import nvml_view; print(repr(nvml_view()))"


def seen(environment: dict[str, str]) -> NvmlView:
    return cast(NvmlView, eval(run_python(SHOW, environment)))


def test_nvmls_view_of_odd_gpus_through_the_real_binding(tmp_path: Path) -> None:
    mig = StubGpu(uuid="MIG-m", used_bytes=5, reserved_bytes=1)
    gpus = [
        StubGpu(uuid="GPU-a", used_bytes=100, reserved_bytes=10, answers={"nvmlDeviceGetName": "hex:4eff"}),
        StubGpu(uuid="GPU-lost", lost_after=0),
        StubGpu(uuid="GPU-b", used_bytes=200, reserved_bytes=20, mig=(mig,)),
        StubGpu(uuid="GPU-c", used_bytes=7, reserved_bytes=3, answers={"nvmlDeviceGetMemoryInfo_v2": None}),
    ]
    view = seen(stub_environment(tmp_path, gpus))
    assert view.problem is None and view.driver_version == "580.65.06"
    assert view.gpu_names[0] == "N\ufffd" and len(view.gpu_names) == 4  # a byte that is no text hides nothing
    assert view.devices == (
        NvmlDevice(uuid="GPU-a", memory_used_bytes=100, memory_reserved_bytes=10),
        NvmlDevice(uuid="GPU-b", memory_used_bytes=200, memory_reserved_bytes=20),
        NvmlDevice(uuid="MIG-m", memory_used_bytes=5, memory_reserved_bytes=1),
        NvmlDevice(uuid="GPU-c", memory_used_bytes=10, v1=True),  # the first query counts what is reserved too
    )


def test_driver_and_library_that_do_not_fit_leave_one_line(tmp_path: Path) -> None:
    view = seen(stub_environment(tmp_path, system={"nvmlInitWithFlags": "error LIB_RM_VERSION_MISMATCH"}))
    assert view.gpu_names == () and view.devices == ()
    assert view.problem is not None and "mismatch" in view.problem


def test_links_go_with_the_devices_whatever_their_order_is(tmp_path: Path) -> None:
    """Two NVLinks join NVML's GPUs 0 and 1, a PCIe switch 0 and 2, and nothing nearer than the sockets 1 and 2."""
    ends = {f"nvmlDeviceGetNvLinkRemotePciInfo_v2/{link}": "00000000:11:00.0" for link in (0, 1)}
    active = {f"nvmlDeviceGetNvLinkState/{link}": "1" for link in (0, 1)}
    first = StubGpu(uuid="GPU-a", answers=ends | active | {"nvmlDeviceGetTopologyCommonAncestor/2": "10"})
    view = seen(stub_environment(tmp_path, [first, StubGpu(uuid="GPU-b"), StubGpu(uuid="GPU-c")]))
    assert view.links == (
        Link(uuids=("GPU-a", "GPU-b"), word="NV2"),
        Link(uuids=("GPU-a", "GPU-c"), word="PIX"),
        Link(uuids=("GPU-b", "GPU-c"), word="SYS"),
    )
    # CUDA's order is another one, and it tells bare UUIDs.
    devices = tuple(Device(index=index, name="H100", uuid=uuid) for index, uuid in enumerate("cab"))
    machine = visible(CudaView(devices=devices), view)
    assert machine.topology((0, 1, 2)) == "0-1 PIX, 0-2 SYS, 1-2 NV2"
    assert machine.topology((1, 2)) == "0-1 NV2"
    assert machine.topology((2,)) is None and machine.topology((1, 1)) is None


def test_one_gpu_is_not_asked_about_links(tmp_path: Path) -> None:
    assert seen(stub_environment(tmp_path, [StubGpu(uuid="GPU-a")])).links == ()
    assert not [call for call in calls(tmp_path) if "Link" in call[2] or "Topology" in call[2]]


def test_links_that_nvml_does_not_tell_are_unknown(tmp_path: Path) -> None:
    mute: dict[str, str | None] = {"nvmlDeviceGetTopologyCommonAncestor": None}
    gpus = [StubGpu(uuid=f"GPU-{name}", answers=mute if name == "a" else {}) for name in "abc"]
    view = seen(stub_environment(tmp_path, gpus))
    assert view.links == (Link(uuids=("GPU-b", "GPU-c"), word="SYS"),)
    assert topology_of(view.links, ("GPU-b", "GPU-c")) == "0-1 SYS"
    assert topology_of(view.links, ("GPU-a", "GPU-b", "GPU-c")) is None
    assert topology_of(view.links, (None, "GPU-b")) is None


def test_links_that_are_all_alike_are_told_once() -> None:
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    links = [Link(uuids=(f"GPU-{one}", f"GPU-{other}"), word="NV18") for one, other in pairs]
    assert topology_of(links, ("GPU-a", "GPU-b", "GPU-c")) == "all NV18"


def test_machine_without_gpus_has_no_links() -> None:
    assert find("cpu", WORKING, GPU).topology((0, 1)) is None
