"""What this machine can train on, as the runtime that trains sees it.

CUDA is asked in a worker process, so that the driver never creates a context on a GPU. It alone
says which devices there are and in which order, whatever CUDA_VISIBLE_DEVICES looks like. NVML adds
what it knows of the same devices, found by UUID, and serves to notice a GPU that torch cannot
use: that is refused, never a silent CPU run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from bench.errors import UnknownNameError, UsageError
from bench.host import cpu_cores, cpu_name
from bench.levers import Abilities
from bench.measuring.compiling import cannot_compile
from bench.measuring.control import Channel
from bench.measuring.launcher import Launcher, LaunchError
from bench.measuring.links import Link, links_of, topology_of
from bench.nvml import MOST_BYTES, UUID_PREFIXES, Nvml, NvmlUnavailable, bare_uuid, nvml_session
from bench.schema import Device, DeviceType

DESCRIBE_SECONDS = 60.0
DEVICE_TYPES = ("auto", "cuda", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices of one type that exist here. On CPU a device is one core's worth of threads.

    `notes`: what a reader of the run must know about the devices' figures.
    """

    device_type: DeviceType
    devices: tuple[Device, ...]
    abilities: Abilities = field(default_factory=Abilities)
    cuda_version: str | None = None
    nccl_version: tuple[int, ...] | None = None
    driver_version: str | None = None
    links: tuple[Link, ...] = ()
    notes: tuple[str, ...] = ()

    def topology(self, ordinals: Iterable[int]) -> str | None:
        """How these devices are linked, by their places; None where there is nothing to link, or it is not known."""
        return topology_of(self.links, [self.devices[ordinal].uuid for ordinal in dict.fromkeys(ordinals)])


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaView:
    """What CUDA says in a fresh process; `problem` says why it offers no device.

    The devices are those of CUDA_VISIBLE_DEVICES, in its order, with bare UUIDs.
    """

    devices: tuple[Device, ...] = ()
    bf16: bool = True
    cannot_compile: str | None = None
    nccl_version: tuple[int, ...] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlDevice:
    """A GPU or a MIG device by its full UUID, with its memory now (bytes). v1: `used` includes what is reserved."""

    uuid: str
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    v1: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlView:
    """What NVIDIA's management library says; `problem` says why it says nothing."""

    gpu_names: tuple[str, ...] = ()
    driver_version: str | None = None
    devices: tuple[NvmlDevice, ...] = ()
    links: tuple[Link, ...] = ()
    problem: str | None = None

    def device(self, uuid: str | None) -> NvmlDevice | None:
        """The device of this UUID, which may lack its prefix."""
        return next(
            (device for device in self.devices if uuid is not None and bare_uuid(device.uuid) == bare_uuid(uuid)), None
        )


def nvml_view() -> NvmlView:
    """GPUs and driver by NVML, which needs neither CUDA nor torch. One GPU that fails hides no other."""
    try:
        with nvml_session() as nvml:
            handles, counted = nvml.handles(), nvml.ask("nvmlDeviceGetCount")
            names = [nvml.ask("nvmlDeviceGetName", found.value).value for found in handles]
            opened = [found.value for found in handles if found.value is not None]
            return NvmlView(
                gpu_names=tuple(name or "a GPU that NVML cannot open" for name in names),
                driver_version=nvml.ask("nvmlSystemGetDriverVersion").value,
                devices=tuple(_nvml_devices(nvml, opened)),
                links=links_of(nvml, opened),
                problem=f"NVML counts no GPUs: {counted.reason}" if counted.value is None else None,
            )
    except NvmlUnavailable as error:
        return NvmlView(problem=str(error))


def _nvml_devices(nvml: Nvml, handles: list[Any]) -> Iterator[NvmlDevice]:
    """Each GPU, and the MIG devices on it."""
    for handle in handles:
        for device in (handle, *nvml.parts(handle)):
            uuid = nvml.ask("nvmlDeviceGetUUID", device).value
            if uuid is not None:
                yield _with_memory(nvml, device, uuid)


def _with_memory(nvml: Nvml, handle: Any, uuid: str) -> NvmlDevice:
    answer, apart = nvml.memory(handle)
    if answer.value is None:
        return NvmlDevice(uuid=uuid)
    used = _possible(answer.value.used)
    reserved = _possible(answer.value.reserved) if apart else None
    return NvmlDevice(
        uuid=uuid, memory_used_bytes=used, memory_reserved_bytes=reserved, v1=not apart and used is not None
    )


def _possible(size: int) -> int | None:
    return size if size <= MOST_BYTES else None


def describe_cuda(job: None, channel: Channel) -> None:
    """Worker task: what CUDA offers, or why it does not work."""
    channel.phase("describe")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        channel.reply({"devices": [_device(index) for index in range(torch.cuda.device_count())]} | _versions())
    except (RuntimeError, AssertionError) as error:
        channel.reply({"problem": str(error).splitlines()[0]})


def _device(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return asdict(
        Device(
            index=index,
            name=properties.name,
            uuid=str(properties.uuid) if hasattr(properties, "uuid") else None,
            memory_bytes=properties.total_memory,
            capability=f"{properties.major}.{properties.minor}",
        )
    )


def _versions() -> dict[str, Any]:
    available = torch.distributed.is_nccl_available()
    nccl = list(torch.cuda.nccl.version()) if available else None  # type: ignore[no-untyped-call]
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return {"bf16": bf16, "nccl": nccl, "cannot_compile": cannot_compile("cuda")}


def cuda_view(launcher: Launcher, nvml: NvmlView | None = None) -> CudaView:
    """What CUDA says, asked in a worker; whatever goes wrong there becomes the view's problem.

    Where neither NVML nor torch sees a GPU, no worker is started.
    """
    nvml = nvml_view() if nvml is None else nvml
    if not nvml.gpu_names and torch.cuda.device_count() == 0:
        return CudaView(problem=nvml.problem or "no NVIDIA GPU was found")
    try:
        with launcher.start(describe_cuda, None, 1, DESCRIBE_SECONDS) as session:
            (found,) = session.replies()
    except LaunchError as error:
        return CudaView(problem=str(error))
    devices: Any = found.get("devices")
    if not devices:
        return CudaView(problem=str(found.get("problem") or "torch sees no GPU"))
    nccl: Any = found["nccl"]
    return CudaView(
        devices=tuple(Device(**device) for device in devices),
        bf16=bool(found["bf16"]),
        cannot_compile=found["cannot_compile"],  # type: ignore[arg-type]
        nccl_version=tuple(nccl) if nccl else None,
    )


def find_machine(
    requested: str, launcher: Launcher, nvml: NvmlView | None = None, cuda: CudaView | None = None
) -> Machine:
    """The devices to measure on. `requested` is auto, cuda or cpu; `nvml` and `cuda` stand in for the real views.

    Raises UsageError when CUDA was asked for, or a GPU is there, and torch cannot use it.
    """
    if requested not in DEVICE_TYPES:
        raise UnknownNameError("device type", requested, DEVICE_TYPES)
    if requested == "cpu":
        return cpu_machine()
    view = nvml_view() if nvml is None else nvml
    found = cuda_view(launcher, view) if cuda is None else cuda
    if found.devices:
        return _cuda_machine(found, view)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if requested == "auto" and (not view.gpu_names or hidden):
        return cpu_machine()
    raise UsageError(_unusable(view, found.problem))


def _cuda_machine(cuda: CudaView, view: NvmlView) -> Machine:
    """CUDA's devices, with what NVML knows of each."""
    known = [view.device(device.uuid) for device in cuda.devices]
    return Machine(
        device_type="cuda",
        devices=tuple(_described(device, found) for device, found in zip(cuda.devices, known, strict=True)),
        abilities=Abilities(bf16=cuda.bf16, cannot_compile=cuda.cannot_compile),
        cuda_version=torch.version.cuda,
        nccl_version=cuda.nccl_version,
        driver_version=view.driver_version,
        links=view.links,
        notes=_notes(cuda, view, known),
    )


def _described(device: Device, found: NvmlDevice | None) -> Device:
    """The device under the UUID that NVML knows, with its memory before anything has run."""
    if found is not None:
        return replace(
            device,
            uuid=found.uuid,
            idle_memory_used_bytes=found.memory_used_bytes,
            reserved_memory_bytes=found.memory_reserved_bytes,
        )
    if device.uuid is None or device.uuid.startswith(UUID_PREFIXES):
        return device
    return replace(device, uuid=f"{'MIG' if ' MIG ' in device.name else 'GPU'}-{device.uuid}")


def _notes(cuda: CudaView, view: NvmlView, known: list[NvmlDevice | None]) -> tuple[str, ...]:
    """Why there are no gauges, or what to doubt about them."""
    if view.problem is not None:
        return (f"no gauges of the GPUs (utilization, power, memory and so on): {view.problem}",)
    lost = [device.index for device, found in zip(cuda.devices, known, strict=True) if found is None]
    notes = [f"no gauges of GPU {index}: NVML does not list the device that CUDA names" for index in lost]
    if any(found is not None and found.v1 for found in known):
        notes.append("the driver's own memory is part of the memory in use: this driver has only the older query")
    return tuple(notes)


def _unusable(view: NvmlView, problem: str | None) -> str:
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
    seen = f"{len(view.gpu_names)} x {view.gpu_names[0]}" if view.gpu_names else "no GPU"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        seen += f" (CUDA_VISIBLE_DEVICES={visible!r} chooses among them)"
    return (
        f"torch {torch.__version__} ({build}) cannot use the GPU: {problem}. NVML sees {seen}, driver "
        f"{view.driver_version or 'unknown'}. Install a torch built for what this driver supports (see README, "
        "'Older drivers'), update the driver, or ask for --device-type cpu"
    )


def cpu_machine() -> Machine:
    """Cores as devices."""
    name = cpu_name()
    return Machine(
        device_type="cpu",
        devices=tuple(Device(index=index, name=name) for index in range(cpu_cores())),
        abilities=Abilities(cannot_compile=cannot_compile("cpu")),
    )
