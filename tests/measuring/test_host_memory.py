"""A CPU worker keeps the memory that it frees; what the environment asks of malloc is left alone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measuring.host_memory import OWN_CHOICES, allocator_text, keep_freed_memory

ROOT = Path(__file__).parents[2]
# Page faults of taking, filling and freeing 64 MiB eight times, after two times that do not count.
FAULTS = """
import resource
from bench.measuring.host_memory import keep_freed_memory
kept = keep_freed_memory()
def take():
    return len(bytes(bytearray(64 * 2**20)))
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
take(), take()
before = faults()
for _ in range(8):
    take()
print(kept, faults() - before)
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's malloc")


def faults(**variables: str) -> tuple[str, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OWN_CHOICES)}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], cwd=ROOT, env=environment | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kept, count = done.stdout.split()
    return kept, int(count)


@glibc
def test_what_is_freed_is_not_mapped_again() -> None:
    kept, few = faults()
    left_alone, many = faults(MALLOC_PERTURB_="0")
    assert (kept, left_alone) == ("True", "False")
    # 64 MiB are 16,384 pages of 4 KiB, or fewer where pages are larger.
    assert few < many / 20, (few, many)


@glibc
@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_what_the_environment_asks_for_stays(name: str) -> None:
    assert not keep_freed_memory({name: "1"})
    assert allocator_text("cpu", {name: "1"}).endswith(", set by environment variables")


@glibc
def test_the_run_says_how_memory_is_taken() -> None:
    version = platform.libc_ver()[1]
    assert allocator_text("cpu", {}) == f"glibc {version}, freed memory kept"
    assert allocator_text("cuda", {}) == f"glibc {version}"


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory({})
    assert allocator_text("cpu", {}) == "the system's"
