"""What the machine gives this process: cores, memory, processor. Container limits count."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def cpu_cores(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Cores this process may use: its affinity, or the cgroup's CPU quota (rounded down) if that is less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _groups("cpu", root, own) if (quota := _quota(folder)) is not None]
    return max(1, int(min([allowed, *quotas])))


def host_memory_bytes(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Memory of the host, or the cgroup's limit if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = []
    for folder in _groups("memory", root, own):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(folder / name)
            if words and words[0].isdigit():
                limits.append(int(words[0]))
    return min([total, *limits])


def cpu_name() -> str:
    """Processor model, or the architecture where the kernel names none."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model") and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _groups(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Folders of this process's cgroup and of all above it, version 2 and version 1."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        group = base / path.lstrip("/")
        yield group
        # A limit further up holds too; inside a container the path may not exist below the mount.
        yield from [parent for parent in group.parents if parent == base or base in parent.parents]


def _quota(folder: Path) -> float | None:
    words = _words(folder / "cpu.max")
    if not words:
        words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
