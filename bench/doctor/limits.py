"""What the system allows a process: shared memory, open files, locked memory."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator

from bench.doctor.box import Box
from bench.doctor.findings import Note, check, gib, info, ok, warning

AREA = "limits"
# Docker gives 64 MiB unless told otherwise; a GiB is enough for NCCL's buffers between 8 GPUs and loader workers.
SHM_BYTES = 2**30
FEW_FILES, MANY_FILES = 1024, 4096


@check(AREA, "/dev/shm")
def shared_memory(box: Box) -> Iterator[Note]:
    folder = box.root / "dev/shm"
    if not folder.is_dir():
        effect = "NCCL between GPUs and data loaders with workers fail"
        yield warning("there is no /dev/shm", effect, "mount -t tmpfs tmpfs /dev/shm")
        return
    usage = shutil.disk_usage(folder)
    yield judge_shared_memory(usage.total, usage.free)


def judge_shared_memory(total: int, free: int) -> Note:
    fact = f"{gib(free)} of {gib(total)} free"
    if free < SHM_BYTES:
        effect = "NCCL ('No space left on device') and data loaders with workers ('Bus error') may fail"
        return warning(
            fact, effect, "docker run --ipc=host or --shm-size=8g; outside: mount -o remount,size=8G /dev/shm"
        )
    return ok(fact)


@check(AREA, "open files")
def open_files(box: Box) -> Iterator[Note]:
    yield judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def judge_open_files(soft: int, hard: int) -> Note:
    """The limits of RLIMIT_NOFILE; RLIM_INFINITY is no limit."""
    remedy = f"ulimit -n {'65536' if hard == resource.RLIM_INFINITY else min(hard, 65536)} before the run"
    fact = f"{_count(soft)} a process (may be raised to {_count(hard)})"
    effect = "'Too many open files' in data loaders with many workers, or with many GPUs"
    if soft == resource.RLIM_INFINITY or soft >= MANY_FILES:
        return ok(fact)
    return warning(fact, effect, remedy) if soft < FEW_FILES else info(fact, effect, remedy)


def _count(limit: int) -> str:
    return "no limit" if limit == resource.RLIM_INFINITY else str(limit)


@check(AREA, "locked memory")
def locked_memory(box: Box) -> Iterator[Note]:
    adapters = sorted(path.name for path in box.root.glob("sys/class/infiniband/*"))
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    yield judge_locked_memory(soft, adapters)


def judge_locked_memory(soft: int, adapters: list[str]) -> Note:
    """Pinned memory of CUDA does not count against this limit, memory registered with an RDMA adapter does."""
    fact = "no limit" if soft == resource.RLIM_INFINITY else f"at most {gib(soft)} a process"
    if adapters and soft != resource.RLIM_INFINITY:
        effect = "NCCL over InfiniBand between machines fails to register memory; within one machine nothing"
        return info(f"{fact}; RDMA adapters: {', '.join(adapters)}", effect, "ulimit -l unlimited")
    return ok(fact if adapters else f"{fact}; it matters for RDMA adapters only, and there is none")
