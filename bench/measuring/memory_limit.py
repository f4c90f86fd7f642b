"""Less memory than a device has, to stand in for a smaller one: set in a worker before it builds a model.

On CPU the kernel holds the process to it: RLIMIT_DATA (setrlimit(2)) counts memory that is private and may be written,
which is what malloc takes, and the stacks of threads. It is set to what the process has after its imports, and the
limit of each device that it drives on top; what goes beyond fails as it would on a full machine. So that the limit is
one of what a worker holds, and not of how its blocks happen to lie, freed blocks are given back under it.

On CUDA torch's caching allocator is held to it (`torch.cuda.set_per_process_memory_fraction`), on each device of the
process, at the limit less what is in use there once the process has its context. What is taken past the allocator
later, such as NCCL's buffers, is not counted. The CUDA part has not run on a GPU yet.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bench.balance import size_text
from bench.errors import UsageError
from bench.measuring.host_memory import give_freed_memory_back
from bench.measuring.place import own_devices
from bench.schema import Case, Outcome
from bench.strategies import registry

LEAST_BYTES = 32 * 2**20
"""On CPU a process with less than this above its imports was seen to hang or abort instead of failing."""
SAID = ("bad_alloc", "Cannot allocate memory", "can't start new thread", "Resource temporarily unavailable")
"""What libraries say, besides torch's own words, where the kernel refuses memory for data or for a thread's stack."""
BY_SIGNAL = ("ended by SIGSEGV", "ended by SIGABRT", "ended by SIGBUS")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """`size_bytes` for each device. idle_bytes: what was in use on each GPU of the machine before the run."""

    size_bytes: int
    idle_bytes: tuple[int, ...] = ()


def limit_memory(limit: MemoryLimit | None, case: Case, rank: int) -> None:
    """Hold this process to the limit on each device that it drives; None leaves all as it is.

    UsageError where the limit leaves nothing to train in.
    """
    if limit is None:
        return
    if case.device_type == "cpu":
        give_freed_memory_back()
        _limit_process(limit.size_bytes * devices_of_process(case))
        return
    for device in dict.fromkeys(own_devices(case, rank)):
        idle = limit.idle_bytes[device.index] if device.index < len(limit.idle_bytes) else 0
        _limit_device(device, limit.size_bytes // processes_on(case, device.index), idle)


def devices_of_process(case: Case) -> int:
    """How many of the case's devices one of its processes drives."""
    return case.num_devices if registry.get(case.strategy).one_process else 1


def processes_on(case: Case, ordinal: int) -> int:
    """Processes that share a device: more than one where it is listed more than once, and each has its own process."""
    return 1 if registry.get(case.strategy).one_process else case.devices.count(ordinal)


def _limit_process(extra_bytes: int, status: Path = Path("/proc/self/status")) -> None:
    wanted = data_bytes(status) + extra_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise UsageError(
            f"--memory-limit asks for {size_text(wanted)} of data in a process, but its own limit is {size_text(hard)} "
            "(ulimit -d); raise that, or give less"
        )
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def data_bytes(status: Path = Path("/proc/self/status")) -> int:
    """What RLIMIT_DATA counts of this process now (proc(5), VmData)."""
    for line in status.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmData":
            return int(value.split()[0]) * 1024
    raise UsageError(f"--memory-limit needs the line VmData of {status}, which this kernel lacks; leave it out")


def _limit_device(device: torch.device, limit_bytes: int, idle_bytes: int) -> None:
    free, total = torch.cuda.mem_get_info(device)  # creates the context
    context = max(0, total - free - idle_bytes)
    left = limit_bytes - context
    if left < LEAST_BYTES:
        raise UsageError(
            f"--memory-limit gives this process {size_text(limit_bytes)} on {device}, of which CUDA's context takes "
            f"{size_text(context)}; give at least {size_text(context + LEAST_BYTES)} for each process on a device, and "
            "more for a model to fit"
        )
    torch.cuda.set_per_process_memory_fraction(min(1.0, left / total), device)


def as_out_of_memory(outcome: Outcome, limit: MemoryLimit | None, *, probing: bool) -> Outcome:
    """The outcome of a launch under a limit: an error that the kernel's refusal of memory caused is `oom`.

    Libraries do not all pass that on in words: oneDNN and others were seen to end by a signal near the limit. In a
    search (`probing`), which got there by asking for more, a signal counts as that; elsewhere only words do.
    """
    if limit is None or outcome.status != "error":
        return outcome
    said = next((words for words in SAID if words in f"{outcome.reason}\n{outcome.traceback}"), None)
    signalled = probing and any(words in (outcome.reason or "") for words in BY_SIGNAL)
    if said is None and not signalled:
        return outcome
    why = f"{said!r} was said" if said else "libraries end so where they are refused memory"
    reason = f"{outcome.reason} (taken for out of memory under --memory-limit {size_text(limit.size_bytes)}: {why})"
    return replace(outcome, status="oom", reason=reason)
