"""The environment of a run: all that a stranger needs to judge the numbers or repeat them."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import socket
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import bench
from bench.host import cpu_cores, cpu_name, host_memory_bytes
from bench.schema import Device, NameValue, Run

PACKAGES = (
    "torch", "torchvision", "triton", "transformers", "tokenizers", "numpy", "pandas", "pyarrow", "matplotlib",
    "jinja2", "rich", "psutil", "pytest", "pytest-benchmark", "nvidia-ml-py", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
)  # fmt: skip
VARIABLES = (
    "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "OMP_", "MKL_", "GLOO_", "KMP_", "CUBLAS",
    "NVIDIA_TF32_OVERRIDE", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD",
)  # fmt: skip


def describe_run(
    *,
    run_id: str,
    preset: str,
    device_type: str,
    seed: int,
    command_line: str,
    devices: tuple[Device, ...],
    topology: str | None = None,
    host_allocator: str | None = None,
    started_at: datetime | None = None,
    cuda_version: str | None = None,
    driver_version: str | None = None,
    nccl_version: str | None = None,
) -> Run:
    """The row of table `run`: what the caller knows, and what this machine tells. `started_at` defaults to now."""
    cpu, cores, memory = cpu_name(), cpu_cores(), host_memory_bytes()
    commit, dirty = git_state(Path(bench.__file__).parent)
    return Run(
        run_id=run_id,
        started_at=started_at or datetime.now(timezone.utc),
        dpbench_version=bench.__version__,
        preset=preset,
        device_type=device_type,
        seed=seed,
        command_line=command_line,
        devices=devices,
        topology=topology,
        cpu_name=cpu,
        cpu_cores=cores,
        host_memory_bytes=memory,
        host_allocator=host_allocator,
        hostname=socket.gethostname(),
        os_name=f"{_distribution()}, {platform.system()} {platform.release()} {platform.machine()}",
        python_version=f"{platform.python_implementation()} {platform.python_version()}",
        cuda_version=cuda_version,
        driver_version=driver_version,
        nccl_version=nccl_version,
        git_commit=commit,
        git_dirty=dirty,
        packages=package_versions(PACKAGES),
        environment_variables=training_variables(os.environ),
        fingerprint=fingerprint(device_type, devices, cpu, cores, memory, topology),
    )


def new_run_id(now: datetime) -> str:
    """A run id that sorts by time, e.g. `20261129T233022Z-ab12`; the tail keeps two of one second apart."""
    return f"{now.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def fingerprint(
    device_type: str,
    devices: Sequence[Device],
    cpu: str,
    cores: int,
    memory_bytes: int,
    topology: str | None = None,
) -> str:
    """16 hexadecimal digits; equal for machines whose figures may be compared.

    Device type, device names and count, how they are linked (where that is known), processor,
    cores and memory in whole GiB count; versions, driver and commit do not.
    """
    facts = [device_type, *sorted(device.name for device in devices), cpu, str(cores), str(whole_gib(memory_bytes))]
    # Nothing in its place where it is unknown: runs on CPU and on one GPU keep the fingerprint they always had.
    facts += [topology] if topology is not None else []
    return hashlib.sha256("\n".join(facts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def whole_gib(size_bytes: int) -> int:
    """A size as the fingerprint counts it: two containers of one size differ in pages."""
    return round(size_bytes / 2**30)


def package_versions(names: Sequence[str]) -> tuple[NameValue, ...]:
    """Versions of those packages that are installed."""
    found = []
    for name in names:
        try:
            found.append(NameValue(name=name, value=version(name)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def training_variables(environment: Mapping[str, str]) -> tuple[NameValue, ...]:
    """The variables that change how torch, CUDA, NCCL, gloo, OpenMP or malloc work, sorted. No other is ever stored."""
    names = sorted(name for name in environment if name.startswith(VARIABLES))
    return tuple(NameValue(name=name, value=environment[name]) for name in names)


def git_state(package: Path) -> tuple[str | None, bool | None]:
    """Commit of the checkout that tracks `package`, and whether it has uncommitted changes; Nones outside one."""
    # A package installed below some other repository (a virtual environment in it) is not tracked there.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    commit = _git(package, "rev-parse", "--verify", "HEAD")
    changes = _git(package, "status", "--porcelain")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    # Variables such as GIT_DIR, set inside a hook, would point to another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, errors="replace", timeout=10, env=environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown distribution")
    except OSError:
        return "unknown distribution"
