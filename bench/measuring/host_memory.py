"""What a CPU worker frees stays with it, as freed GPU memory stays with CUDA's caching allocator.

glibc's malloc gives a large block back to the kernel when it is freed, and the next step takes it again: every page is
mapped and cleared anew (mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD). How often that happens depends on where
blocks happen to lie: docs/evidence/kept_memory.md has what it costs.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping

# malloc.h: no trimming of the heap's end at any size, and no block that is mapped by itself.
TRIM_NEVER, MAP_NONE = (-1, -1), (-4, 0)
# What malloc begins with; set by hand, it does not grow with what is freed (mallopt(3), M_MMAP_THRESHOLD).
TRIM_USUAL, MAP_USUAL, MAP_FROM = (-1, 128 * 1024), (-4, 65536), (-3, 128 * 1024)
OWN_CHOICES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Prefixes of what may set malloc; an empty value sets nothing."""


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Have malloc keep what this process frees; whether it does.

    Where the environment sets malloc, or brings a library that may, all is left as it is, and so is another C
    library's. Threads that take memory for themselves still give large blocks back: their heaps end at 64 MiB.
    """
    if not _ours(environment):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(*TRIM_NEVER) and mallopt(*MAP_NONE))


def give_freed_memory_back(environment: Mapping[str, str] = os.environ) -> bool:
    """The other way round: every large block is mapped by itself and given back when it is freed; whether it is.

    Under a limit a process that keeps what it frees would come to it by how its blocks happen to lie, somewhere below
    what it holds. The same exceptions as for `keep_freed_memory`.
    """
    if not _ours(environment):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(*setting) for setting in (TRIM_USUAL, MAP_USUAL, MAP_FROM)])


def allocator_text(device_type: str, environment: Mapping[str, str] = os.environ, *, limited: bool = False) -> str:
    """How workers take memory of the host, e.g. `glibc 2.36, freed memory kept`. limited: under `--memory-limit`."""
    library = " ".join(filter(None, platform.libc_ver())) or "the system's"
    if (names := _own_choices(environment)) and "LD_PRELOAD" in names:
        return "as LD_PRELOAD may set it"
    if names:
        return f"{library}, as {names[0]} sets it"
    if device_type != "cpu" or not _ours(environment):
        return library
    return f"{library}, large blocks given back" if limited else f"{library}, freed memory kept"


def _ours(environment: Mapping[str, str]) -> bool:
    return platform.libc_ver()[0] == "glibc" and not _own_choices(environment)


def _own_choices(environment: Mapping[str, str]) -> list[str]:
    """Variables that set malloc, or may replace it; other tunables of glibc are none of that."""
    found = sorted(name for name, value in environment.items() if value and name.startswith(OWN_CHOICES))
    return [name for name in found if name != "GLIBC_TUNABLES" or "glibc.malloc." in environment[name]]
