"""What this machine can train on, as the runtime that trains sees it.

CUDA is asked in a worker process, so that the driver never creates a context on a GPU.
NVML only serves to notice a GPU that torch cannot use: that is refused, never a silent CPU run.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bench.errors import UnknownNameError, UsageError
from bench.host import cpu_cores, cpu_name
from bench.measuring.control import Channel
from bench.measuring.launcher import Launcher, LaunchError
from bench.schema import Device, DeviceType

DESCRIBE_SECONDS = 60.0
DEVICE_TYPES = ("auto", "cuda", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices of one type that exist here. On CPU a device is one core's worth of threads."""

    device_type: DeviceType
    devices: tuple[Device, ...]
    bf16: bool = True
    cuda_version: str | None = None
    nccl_version: tuple[int, ...] | None = None
    driver_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlView:
    """What NVIDIA's management library says; `problem` says why it says nothing."""

    gpu_names: tuple[str, ...] = ()
    driver_version: str | None = None
    problem: str | None = None


def nvml_view() -> NvmlView:
    """GPUs and driver by NVML, which needs neither CUDA nor torch."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        return NvmlView(problem=f"NVML is not available: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = tuple(_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        return NvmlView(gpu_names=names, driver_version=_text(pynvml.nvmlSystemGetDriverVersion()))
    except pynvml.NVMLError as error:
        return NvmlView(problem=f"NVML failed: {error}")
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


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
            uuid=f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else None,
            memory_bytes=properties.total_memory,
            capability=f"{properties.major}.{properties.minor}",
        )
    )


def _versions() -> dict[str, Any]:
    available = torch.distributed.is_nccl_available()
    nccl = list(torch.cuda.nccl.version()) if available else None  # type: ignore[no-untyped-call]
    return {"bf16": torch.cuda.is_bf16_supported(including_emulation=False), "nccl": nccl}


def find_machine(requested: str, launcher: Launcher, nvml: NvmlView | None = None) -> Machine:
    """The devices to measure on. `requested` is auto, cuda or cpu.

    Raises UsageError when CUDA was asked for, or a GPU is there, and torch cannot use it.
    """
    if requested not in DEVICE_TYPES:
        raise UnknownNameError("device type", requested, DEVICE_TYPES)
    if requested == "cpu":
        return cpu_machine()
    view = nvml_view() if nvml is None else nvml
    machine, problem = _cuda_machine(launcher, view)
    if machine is not None:
        return machine
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if requested == "auto" and (not view.gpu_names or hidden):
        return cpu_machine()
    raise UsageError(_unusable(view, problem))


def _cuda_machine(launcher: Launcher, view: NvmlView) -> tuple[Machine | None, str]:
    if not view.gpu_names and torch.cuda.device_count() == 0:
        return None, view.problem or "no NVIDIA GPU was found"
    try:
        with launcher.start(describe_cuda, None, 1, DESCRIBE_SECONDS) as session:
            (found,) = session.replies()
    except LaunchError as error:
        return None, str(error)
    devices: Any = found.get("devices")
    if not devices:
        return None, str(found.get("problem") or "torch sees no GPU")
    nccl: Any = found["nccl"]
    machine = Machine(
        device_type="cuda",
        devices=tuple(Device(**device) for device in devices),
        bf16=bool(found["bf16"]),
        cuda_version=torch.version.cuda,
        nccl_version=tuple(nccl) if nccl else None,
        driver_version=view.driver_version,
    )
    return machine, ""


def _unusable(view: NvmlView, problem: str) -> str:
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
    return Machine(device_type="cpu", devices=tuple(Device(index=index, name=name) for index in range(cpu_cores())))
