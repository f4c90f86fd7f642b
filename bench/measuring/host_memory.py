"""What a CPU worker frees stays with it, as freed GPU memory stays with CUDA's caching allocator.

glibc's malloc gives a large block back to the kernel when it is freed, and the next step takes it again: every page is
mapped and cleared anew (mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD). How often that happens depends on where
blocks happen to lie, and differs from one worker to the next: docs/evidence/kept_memory.md has what it costs.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping

# malloc.h. An older glibc takes no mapping threshold above half a heap of its (HEAP_MAX_SIZE / 2).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
EVER, HALF_A_HEAP = 2**31 - 1, 32 * 2**20
OWN_CHOICES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Have malloc keep what this process frees; whether it does.

    What the environment asks of malloc is left as it is, and so is another C library's.
    """
    if not _ours(environment):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    trims = bool(mallopt(M_TRIM_THRESHOLD, EVER))
    return trims and any(mallopt(M_MMAP_THRESHOLD, size) for size in (EVER, HALF_A_HEAP))


def allocator_text(device_type: str, environment: Mapping[str, str] = os.environ) -> str:
    """How workers take memory of the host, e.g. `glibc 2.36, freed memory kept`."""
    library = " ".join(filter(None, platform.libc_ver())) or "the system's"
    if any(name.startswith(OWN_CHOICES) for name in environment):
        return f"{library}, set by environment variables"
    return f"{library}, freed memory kept" if device_type == "cpu" and _ours(environment) else library


def _ours(environment: Mapping[str, str]) -> bool:
    return platform.libc_ver()[0] == "glibc" and not any(name.startswith(OWN_CHOICES) for name in environment)
