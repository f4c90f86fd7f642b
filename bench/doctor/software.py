"""Versions, and what does not fit together: packages, torch, the driver, NCCL."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from bench.doctor.box import Box, Gpu
from bench.doctor.findings import Note, check, info, ok, problem, warning

AREA = "software"
# The lower bounds of pyproject.toml; a test holds the two equal.
REQUIRED = {
    "torch": "2.9", "torchvision": "0.24", "transformers": "4.57", "pytest": "8.2", "pytest-benchmark": "5.1",
    "numpy": "1.26", "pandas": "2.2", "pyarrow": "17", "matplotlib": "3.8", "nvidia-ml-py": "12.560", "psutil": "5.9",
    "jinja2": "3.1", "rich": "13.7",
}  # fmt: skip
NCCL_MULTI_RANK = (2, 30)
BUILT_AGAINST_OTHERS = ("torchvision", "transformers", "pandas", "pyarrow", "matplotlib")
RUNS_ON_CPU = "runs measure CPU workers only"


def release(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: `2.14.1+cu130` is (2, 14, 1)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


@check(AREA, "Python")
def python(box: Box) -> Iterator[Note]:
    yield ok(f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})")


@check(AREA, "packages")
def packages(box: Box) -> Iterator[Note]:
    found = {name: _version(name) for name in REQUIRED}
    for name, least in REQUIRED.items():
        here, remedy = found[name], f"pip install '{name}>={least}'"
        if here is None:
            yield problem(f"{name} is not installed", "what needs it cannot run", remedy)
        elif release(here) < release(least):
            yield warning(f"{name} {here} is older than {least}", "untested; it may fail or differ", remedy)
    yield ok(", ".join(f"{name} {here}" for name, here in found.items() if here is not None))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@check(AREA, "torch")
def torch_build(box: Box) -> Iterator[Note]:
    build = box.torch
    if build.problem is not None:
        remedy = "install a torch that fits (see README); if it is installed, install it anew"
        yield problem(f"torch cannot be imported: {build.problem}", "nothing can be measured", remedy)
        return
    text = f"{build.version}, " + (f"built for CUDA {build.cuda}" if build.cuda else "a build without CUDA")
    if build.cuda is None and (box.gpus or box.pci_gpus):
        remedy = "install a torch built for a CUDA that the driver supports (see README, 'Older drivers')"
        yield problem(f"{text}, and there is a GPU", "a run refuses to start, or measures the CPU", remedy)
    else:
        yield ok(text)


@check(AREA, "imports")
def imports(box: Box) -> Iterator[Note]:
    """Packages that are built against others, and fail when those change under them."""
    there = [name for name in BUILT_AGAINST_OTHERS if _version(name) is not None]
    broken = []
    for name in there:
        try:
            import_module(name)
        except Exception as error:
            broken.append(name)
            remedy = "install it anew, together with what it is built against (torchvision with torch)"
            fact = f"importing {name} fails: {type(error).__name__}: {error}"
            yield problem(fact, "launches that need it fail", remedy)
    if not broken and there:
        yield ok(f"{', '.join(there)} can be imported")


@check(AREA, "NVIDIA driver")
def driver(box: Box) -> Iterator[Note]:
    if box.nvml is not None:
        answer = box.nvml.ask("nvmlSystemGetDriverVersion")
        yield ok(str(answer.value)) if answer.value else info(f"version unknown: {answer.reason}")
        return
    why, loaded = box.nvml_problem or "NVML is not available", box.text("proc/driver/nvidia/version")
    if "nvidia-ml-py" in why:
        yield problem(why, "no gauges, and GPUs are not noticed", "pip install nvidia-ml-py")
    elif loaded is not None:
        remedy = "reboot, or reload the kernel modules (after an update library and module differ); see dmesg"
        yield problem(f"{why}; loaded: {loaded.splitlines()[0]}", "torch can use no GPU", remedy)
    elif box.pci_gpus:
        remedy = "install the driver; in a container start it with the GPUs (docker run --gpus all)"
        fact = f"{why}, but {len(box.pci_gpus)} NVIDIA GPU(s) are on the PCI bus ({', '.join(box.pci_gpus)})"
        yield problem(fact, "torch can use no GPU", remedy)
    else:
        yield info(f"{why}; no NVIDIA GPU is on the PCI bus", RUNS_ON_CPU)


@check(AREA, "driver and CUDA")
def driver_fits(box: Box) -> Iterator[Note]:
    if box.nvml is None or box.torch.cuda is None:
        return
    answer = box.nvml.ask("nvmlSystemGetCudaDriverVersion")
    if not answer.value:
        yield info(f"the CUDA version of the driver is unknown: {answer.reason}")
        return
    # 12040 is 12.4.
    offered, built = (answer.value // 1000, answer.value % 1000 // 10), release(box.torch.cuda)
    fact = f"the driver offers CUDA {dotted(offered)}, torch is built for {box.torch.cuda}"
    if built[:1] > offered[:1]:
        remedy = "update the driver, or install a torch built for an older CUDA (see README, 'Older drivers')"
        yield problem(fact, "torch cannot use the GPU; a run refuses to start", remedy)
    elif built > offered:
        yield info(fact, "this works within one major version, but code that is compiled at run time (PTX) may not")
    else:
        yield ok(fact)


@check(AREA, "CUDA in torch")
def cuda_works(box: Box) -> Iterator[Note]:
    visible = box.environment.get("CUDA_VISIBLE_DEVICES")
    if box.cuda.problem is not None and visible in ("", "-1"):
        yield info(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU", RUNS_ON_CPU, "unset it to measure on GPUs")
    elif box.cuda.problem is not None:
        chosen = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r} chooses among them)"
        remedy = (
            "install a torch built for what this driver supports (see README, 'Older drivers'), or update the driver; "
            "where both fit, see dmesg and reboot; to measure on CPU: --device-type cpu"
        )
        fact = f"torch cannot use the GPU{chosen}: {box.cuda.problem}"
        yield problem(fact, "a run refuses to start", remedy)
    elif box.cuda.asked:
        yield ok(f"torch sees {len(box.cuda.devices)} device(s)")


@check(AREA, "GPU code in torch")
def architectures(box: Box) -> Iterator[Note]:
    """cuobjdump's rule: sm_XY runs on capability X.Z with Z >= Y; compute_XY is compiled for anything later."""
    if box.nvml is None or not box.torch.architectures:
        return
    for gpu in box.usable_gpus:
        capability = box.nvml.ask("nvmlDeviceGetCudaComputeCapability", gpu.handle).value
        if capability is None or any(_runs_on(name, capability) for name in box.torch.architectures):
            continue
        yield _without_code(box, gpu, capability)


def _runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", architecture)
    if found is None:
        return False
    built = (int(found[2]), int(found[3]))
    return built <= capability if found[1] == "compute" else built[0] == capability[0] and built <= capability


def _without_code(box: Box, gpu: Gpu, capability: tuple[int, int]) -> Note:
    fact = (
        f"GPU {gpu.index} ({gpu.name}) has capability {dotted(capability)}; this torch holds code for "
        f"{', '.join(box.torch.architectures)}"
    )
    remedy = "install a torch that still (or already) supports this card, from PyTorch's index for another CUDA"
    return problem(fact, "every kernel fails with 'no kernel image is available'", remedy)


@check(AREA, "NCCL")
def nccl(box: Box) -> Iterator[Note]:
    if box.torch.problem is not None:
        return
    found = box.torch.nccl
    if found is None:
        status = problem if box.gpus else info
        yield status("this torch has no NCCL", "ddp and fsdp cannot run on GPUs", "install a torch for Linux with CUDA")
    elif found >= NCCL_MULTI_RANK:
        yield ok(f"{dotted(found)}; from 2.30 on several ranks may share a GPU (--devices 0,0)")
    else:
        yield info(
            f"{dotted(found)}, older than 2.30",
            "a GPU listed twice (--devices 0,0) makes ddp and fsdp use gloo; other runs are not touched",
            "install a torch that brings NCCL 2.30 or later (2.14 does) if you want to try that",
        )
