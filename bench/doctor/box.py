"""What the checks look at, gathered once: files below a root, the environment, torch's build, NVML, CUDA's view.

Whatever cannot be had becomes a `problem` text in its place; gathering never raises.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.host import cpu_cores
from bench.nvml import Nvml, NvmlUnavailable, nvml_session, sysfs_address
from bench.schema import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The torch that is installed; `problem` says why it cannot be imported."""

    version: str | None = None
    cuda: str | None = None
    nccl: tuple[int, ...] | None = None
    architectures: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFacts:
    """CUDA's devices in its own order; `problem` says why there are none. Not asked where there is no GPU."""

    asked: bool = False
    devices: tuple[Device, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU by NVML. `index` is NVML's (and nvidia-smi's) number: for reading, never for finding it again."""

    index: int
    handle: Any = None
    uuid: str | None = None
    name: str | None = None
    bus_id: str | None = None
    mig_uuids: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The machine under examination. Tests make one up."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)
    results: Path = Path("results")
    torch: TorchBuild = field(default_factory=TorchBuild)
    nvml: Nvml | None = None
    nvml_problem: str | None = None
    gpus: tuple[Gpu, ...] = ()
    cuda: CudaFacts = field(default_factory=CudaFacts)

    def text(self, path: str) -> str | None:
        """A small file below the root, stripped; None where it cannot be read."""
        try:
            return self.root.joinpath(path).read_text(errors="replace").strip()
        except OSError:
            return None

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        """Those that NVML could open."""
        return tuple(gpu for gpu in self.gpus if gpu.problem is None)

    @property
    def pci_gpus(self) -> tuple[str, ...]:
        """PCI addresses of NVIDIA display and 3D controllers on the bus, whether or not a driver holds them."""
        folders = sorted(self.root.glob("sys/bus/pci/devices/*"))
        kinds = [(folder, self.text(f"{folder.relative_to(self.root)}/class") or "") for folder in folders]
        return tuple(
            folder.name
            for folder, kind in kinds
            if kind.startswith("0x03") and self.text(f"{folder.relative_to(self.root)}/vendor") == "0x10de"
        )


@contextmanager
def open_box(results: Path) -> Iterator[Box]:
    """This machine, with NVML open while the block runs."""
    torch, nvml, nvml_problem = read_torch(), None, None
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(nvml_session())
        except NvmlUnavailable as error:
            nvml_problem = str(error)
        try:
            gpus = read_gpus(nvml) if nvml is not None else ()
        except Exception as error:  # a binding and a driver that do not fit together
            nvml, nvml_problem, gpus = None, f"NVML failed: {type(error).__name__}: {error}", ()
        yield Box(
            environment=dict(os.environ),
            results=results,
            torch=torch,
            nvml=nvml,
            nvml_problem=nvml_problem,
            gpus=gpus,
            cuda=read_cuda(torch, gpus),
        )


def read_torch() -> TorchBuild:
    """The installed torch. Importing it creates no CUDA context."""
    try:
        import torch

        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None  # type: ignore[no-untyped-call]
        # Empty in some releases where there is no GPU; then nothing is judged by it.
        architectures = tuple(torch.cuda.get_arch_list())
        return TorchBuild(
            version=str(torch.__version__), cuda=torch.version.cuda, nccl=nccl, architectures=architectures
        )
    except Exception as error:  # a broken installation fails in many ways
        return TorchBuild(problem=f"{type(error).__name__}: {error}")


def read_cuda(torch: TorchBuild, gpus: tuple[Gpu, ...]) -> CudaFacts:
    """CUDA's devices, asked in a worker so that this process takes no memory on a GPU."""
    if torch.problem is not None or torch.cuda is None:
        return CudaFacts()
    try:
        from torch.cuda import device_count

        if not gpus and device_count() == 0:
            return CudaFacts()
        from bench.measuring.launcher import Launcher
        from bench.measuring.machine import NvmlView, cuda_view

        names = tuple(gpu.name or "unknown" for gpu in gpus)
        view = cuda_view(Launcher(threads_per_worker=cpu_cores()), NvmlView(gpu_names=names))
        return CudaFacts(asked=True, devices=view.devices, problem=view.problem)
    except Exception as error:
        return CudaFacts(asked=True, problem=f"{type(error).__name__}: {error}")


def read_gpus(nvml: Nvml) -> tuple[Gpu, ...]:
    """Every GPU that NVML counts, those that cannot be opened too."""
    found = []
    for index, answer in enumerate(nvml.handles()):
        handle = answer.value
        if handle is None:
            found.append(Gpu(index=index, problem=answer.reason))
            continue
        uuid = nvml.ask("nvmlDeviceGetUUID", handle)
        if uuid.lost:
            found.append(Gpu(index=index, problem=uuid.reason))
            continue
        pci = nvml.ask("nvmlDeviceGetPciInfo", handle).value
        found.append(
            Gpu(
                index=index,
                handle=handle,
                uuid=uuid.value,
                name=nvml.ask("nvmlDeviceGetName", handle).value,
                bus_id=None if pci is None else sysfs_address(pci.busId),
                mig_uuids=_mig_uuids(nvml, handle),
            )
        )
    return tuple(found)


def _mig_uuids(nvml: Nvml, handle: Any) -> tuple[str, ...]:
    uuids = [nvml.ask("nvmlDeviceGetUUID", part).value for part in nvml.parts(handle)]
    return tuple(uuid for uuid in uuids if uuid is not None)
