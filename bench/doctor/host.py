"""The host: processor, memory, who else works on it, and what it runs in."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bench.doctor.box import Box
from bench.doctor.findings import Note, check, gib, info, ok, warning
from bench.host import cpu_cores, cpu_name, host_memory_bytes

AREA = "host"
# Two workers per GPU's process at least: one that feeds it and one for the backward pass.
CORES_PER_GPU = 2
BUSY_SHARE = 0.2
# A default run on CPU takes about 3 GB (README).
LOW_MEMORY_BYTES = 4 * 2**30
CONTAINER_FILES = (".dockerenv", "run/.containerenv")
CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")
CONTAINER_WORDS = ("docker", "kubepods", "containerd", "libpod", "lxc")


@check(AREA, "cores")
def cores(box: Box) -> Iterator[Note]:
    yield from judge_cores(cpu_cores(), os.cpu_count() or 1, len(box.usable_gpus))


def judge_cores(allowed: int, total: int, gpus: int) -> Iterator[Note]:
    """`allowed`: cores this process may use, of `total` in the host."""
    fact = f"{allowed} of {total} cores may be used, {cpu_name()}"
    if gpus and allowed < CORES_PER_GPU * gpus:
        fact += f"; {gpus} GPU(s)"
        effect = "the processes that feed the GPUs wait for one another, and GPUs idle"
        yield warning(fact, effect, f"give this process {CORES_PER_GPU * gpus} cores (docker --cpus, cpuset, taskset)")
    elif allowed < total:
        effect = "what others do on the remaining cores still moves the figures; runs compare only with equal limits"
        yield info(fact, effect, "none needed; docker --cpus, --cpuset-cpus, taskset or the batch system set it")
    else:
        yield ok(fact)


@check(AREA, "load")
def load(box: Box) -> Iterator[Note]:
    text = box.text("proc/loadavg")
    if text is None:
        yield info("the load is not readable here")
        return
    yield judge_load(float(text.split()[0]), os.cpu_count() or 1)


def judge_load(average: float, total: int) -> Note:
    """`average`: runnable processes over the last minute, of the whole host."""
    fact = f"{average:g} processes ran on average over the last minute, on {total} cores"
    if average > max(1.0, BUSY_SHARE * total):
        return warning(fact, "other work slows steps and scatters them", "wait, or end it (top shows it)")
    return ok(fact)


@check(AREA, "CPU clock")
def governor(box: Box) -> Iterator[Note]:
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    name, driver = box.text(f"{folder}/scaling_governor"), box.text(f"{folder}/scaling_driver") or "unknown"
    if name is None:
        yield info("the frequency governor is not readable here (usual in virtual machines)")
        return
    fact = f"governor {name}, driver {driver}"
    # In these drivers' active mode `powersave` still goes to full speed under load.
    adaptive = driver in ("intel_pstate", "amd-pstate-epp")
    if name == "performance":
        yield ok(fact)
    elif name in ("powersave", "conservative") and not adaptive:
        effect = "cores stay slow: launching kernels and the CPU's share of a step take longer"
        yield warning(fact, effect, "sudo cpupower frequency-set -g performance")
    else:
        yield info(fact, "the first rounds run at lower clocks", "sudo cpupower frequency-set -g performance")


@check(AREA, "memory")
def memory(box: Box) -> Iterator[Note]:
    figures = meminfo(box)
    if "MemAvailable" not in figures:
        yield info("free memory is not readable here")
        return
    yield judge_memory(figures["MemTotal"], figures["MemAvailable"], host_memory_bytes())


def meminfo(box: Box) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    pairs = [line.split(":") for line in (box.text("proc/meminfo") or "").splitlines() if ":" in line]
    return {name: int(value.split()[0]) * 1024 for name, value in pairs if value.split()}


def judge_memory(total: int, available: int, limit: int) -> Note:
    """`limit`: what the container allows, or `total`."""
    limited = f", this container may use {gib(limit)}" if limit < total else ""
    fact = f"{gib(available)} of {gib(total)} available{limited}"
    if min(available, limit) < LOW_MEMORY_BYTES:
        effect = f"a default run on CPU takes about 3 GB; below {gib(LOW_MEMORY_BYTES)} a worker may be killed"
        return warning(fact, effect, "end other programs, or choose fewer devices and smaller batches")
    return ok(fact)


@check(AREA, "swap")
def swap(box: Box) -> Iterator[Note]:
    figures = meminfo(box)
    if "SwapTotal" not in figures:
        return
    total, used = figures["SwapTotal"], figures["SwapTotal"] - figures.get("SwapFree", 0)
    if not total:
        yield ok("no swap")
    elif used > total / 10:
        effect = "if pages of a run are among them, single steps take very long"
        yield info(
            f"{gib(used)} of {gib(total)} swap in use", effect, "free memory, then sudo swapoff -a && sudo swapon -a"
        )
    else:
        yield ok(f"{gib(used)} of {gib(total)} swap in use")


@check(AREA, "container")
def container(box: Box) -> Iterator[Note]:
    groups, release = box.text("proc/1/cgroup") or "", box.text("proc/sys/kernel/osrelease") or ""
    if "microsoft" in release.lower():
        effect = "NVML tells no utilization per process, peer copies do not work, and times scatter more than on Linux"
        yield warning(f"WSL ({release})", effect, "measure on Linux itself")
    marks = [f"/{name}" for name in CONTAINER_FILES if box.root.joinpath(name).exists()]
    marks += [f"{word} in /proc/1/cgroup" for word in CONTAINER_WORDS if word in groups]
    marks += [f"the variable {name}" for name in CONTAINER_VARIABLES if name in box.environment]
    if marks:
        effect = "its limits hold (cores, memory, /dev/shm), and processes outside it have no name here"
        yield info(
            f"running in a container ({', '.join(marks)})", effect, "docker run --gpus all --ipc=host --pid=host"
        )
    else:
        yield ok("no container noticed")


@check(AREA, "virtual machine")
def virtual(box: Box) -> Iterator[Note]:
    cpuinfo = box.text("proc/cpuinfo") or ""
    flags = next((line.split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    if "hypervisor" in flags:
        effect = "neighbours may take processor time, and the topology is what the hypervisor shows"
        yield info("this is a virtual machine", effect, "compare figures within one run; take more launches")
    else:
        yield ok("no virtual machine noticed")
