"""A CPU worker keeps the memory that it frees; what the environment asks of malloc is left alone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from bench.measuring import tasks
from bench.measuring.control import Channel
from bench.measuring.host_memory import OWN_CHOICES, allocator_text, keep_freed_memory
from bench.measuring.machine import cpu_machine
from bench.running.machinery import describe_machine
from tests.measuring.support import make_case, make_job

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
# Address space (MiB) before, with, and after a block of 3 GiB that nobody writes to.
LARGE = """
import ctypes, resource
from bench.measuring.host_memory import keep_freed_memory
assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def mebibytes():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() // 2**20
before = mebibytes()
block = libc.malloc(3 * 2**30)
held = mebibytes()
libc.free(block)
print(before, held, mebibytes())
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's malloc")


def printed(code: str, **variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OWN_CHOICES)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def faults(**variables: str) -> tuple[str, int]:
    kept, count = printed(FAULTS, **variables)
    return kept, int(count)


@glibc
def test_what_is_freed_is_not_mapped_again() -> None:
    kept, few = faults()
    left_alone, many = faults(MALLOC_PERTURB_="0")
    assert (kept, left_alone) == ("True", "False")
    # 64 MiB are 16,384 pages of 4 KiB, or fewer where pages are larger.
    assert few < many / 20, (few, many)


@glibc
def test_large_blocks_stay_too() -> None:
    before, held, after = map(int, printed(LARGE))
    assert held >= before + 3 * 1024 and after >= held


@glibc
def test_under_a_limit_large_blocks_are_given_back_at_once() -> None:
    """Also once keeping was asked for, and however many blocks were freed before."""
    again = LARGE.replace("import keep_freed_memory", "import give_freed_memory_back, keep_freed_memory").replace(
        "assert keep_freed_memory()", "assert keep_freed_memory() and give_freed_memory_back()"
    )
    before, held, after = map(int, printed(again))
    assert held >= before + 3 * 1024 and after < before + 64


class Stop(Exception):
    pass


@pytest.mark.parametrize(("device_type", "keeps", "called"), [("cpu", True, 1), ("cpu", False, 0), ("cuda", True, 0)])
def test_a_cpu_launch_keeps_memory_before_it_builds(
    monkeypatch: pytest.MonkeyPatch, device_type: str, keeps: bool, called: int
) -> None:
    calls: list[None] = []

    def stop(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(tasks, "keep_freed_memory", lambda: calls.append(None))
    monkeypatch.setattr(tasks, "training_place", stop)
    job = replace(make_job(make_case("single", device_type=device_type)), keeps_memory=keeps)
    with pytest.raises(Stop):
        tasks.measure(job, cast(Channel, Silent()))
    assert len(calls) == called


class Silent:
    rank = 0

    def phase(self, name: str) -> None:
        """Nobody listens."""


def test_the_row_of_a_run_says_how_memory_is_taken() -> None:
    run = describe_machine(cpu_machine(), (0,), run_id="first", preset="quick", seed=0)
    assert run.host_allocator == allocator_text("cpu")


@glibc
@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_ARENA_MAX", "1"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1"), ("LD_PRELOAD", "x")]
)
def test_what_the_environment_asks_for_stays(name: str, value: str) -> None:
    assert not keep_freed_memory({name: value})
    assert name in allocator_text("cpu", {name: value}) and "kept" not in allocator_text("cpu", {name: value})


@glibc
def test_tunables_that_are_not_mallocs_change_nothing() -> None:
    tls = {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=16384"}
    assert allocator_text("cpu", tls) == allocator_text("cpu", {"LD_PRELOAD": ""}) == allocator_text("cpu", {})


@glibc
def test_the_run_says_how_memory_is_taken() -> None:
    version = platform.libc_ver()[1]
    assert allocator_text("cpu", {}) == f"glibc {version}, freed memory kept"
    assert allocator_text("cuda", {}) == allocator_text("cuda", {}, limited=True) == f"glibc {version}"
    assert allocator_text("cpu", {}, limited=True) == f"glibc {version}, large blocks given back"


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory({})
    assert allocator_text("cpu", {}) == "the system's"
