"""A limit on memory: what the kernel does with it on CPU, and what is asked of a GPU (with stand-ins)."""

from __future__ import annotations

import resource
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.errors import UsageError
from bench.measuring import memory_limit
from bench.measuring.launcher import Launcher
from bench.measuring.memory_limit import (
    MemoryLimit,
    as_out_of_memory,
    data_bytes,
    devices_of_process,
    limit_memory,
    processes_on,
)
from bench.measuring.probe import STEPS, probe_case
from bench.measuring.tasks import Job
from bench.schema import Outcome
from tests.measuring.support import make_case, make_job

GIB, MIB = 2**30, 2**20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA holds on Linux")
LIMIT = MemoryLimit(size_bytes=64 * MIB)


def limited(job: Job, mebibytes: int) -> Job:
    return replace(job, memory_limit=MemoryLimit(size_bytes=mebibytes * MIB))


# --- CPU ------------------------------------------------------------------------------------------------


@linux
def test_a_probe_fits_or_runs_out_of_memory(launcher: Launcher) -> None:
    case = make_case("ddp", batch=64)
    result = probe_case(launcher, limited(make_job(case), 300), 2)
    assert result.outcome.status == "ok", result.outcome
    assert result.trace is not None and result.trace.steps_per_round == STEPS == 3
    assert len(result.trace.round_seconds) == 1 and len(result.trace.devices) == 2
    large = probe_case(launcher, limited(make_job(make_case("ddp", batch=1024)), 100), 2)
    assert large.outcome.status == "oom" and "can't allocate memory" in (large.outcome.reason or "")


@linux
def test_the_limit_is_on_top_of_what_the_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(memory_limit, "give_freed_memory_back", lambda: True)
    monkeypatch.setattr(memory_limit, "data_bytes", lambda status: 1000)
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: set_to.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda what: (-1, resource.RLIM_INFINITY))
    limit_memory(None, make_case("ddp"), 0)
    limit_memory(LIMIT, make_case("ddp"), 0)
    limit_memory(LIMIT, make_case("dp"), 0)  # one process, two devices
    assert [soft for soft, _ in set_to] == [64 * MIB + 1000, 128 * MIB + 1000]
    monkeypatch.setattr(resource, "getrlimit", lambda what: (MIB, MIB))
    with pytest.raises(UsageError, match="its own limit is 1 MiB"):
        limit_memory(LIMIT, make_case("ddp"), 0)


@linux
def test_data_grow_with_what_is_taken() -> None:
    before = data_bytes()
    held = bytearray(64 * MIB)
    assert data_bytes() - before >= 60 * MIB and len(held)


# --- GPUs -----------------------------------------------------------------------------------------------


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Devices of 80 GiB, of which 2 GiB are in use once there is a context; the fraction set for each."""
    found: dict[int, float] = {}

    def own(case: Any, rank: int) -> tuple[torch.device, ...]:
        ordinals = case.devices if case.strategy in ("dp", "single") else (case.devices[rank],)
        return tuple(torch.device("cuda", ordinal) for ordinal in ordinals)

    monkeypatch.setattr(memory_limit, "own_devices", own)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (78 * GIB, 80 * GIB))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part, device: found.update({device.index: part})
    )
    return found


def cuda(strategy: str, *devices: int) -> Any:
    return make_case(strategy, device_type="cuda", devices=devices)


def test_each_device_of_a_process_is_limited_less_its_context(fractions: dict[int, float]) -> None:
    # 2 GiB in use, of which 1.5 GiB were before the run: half a GiB is the context.
    limit = MemoryLimit(size_bytes=24 * GIB, idle_bytes=(3 * GIB // 2, 0, 3 * GIB // 2))
    limit_memory(limit, cuda("dp", 0, 2), 0)
    assert fractions == {0: 23.5 / 80, 2: 23.5 / 80}
    fractions.clear()
    limit_memory(limit, cuda("ddp", 0, 1), 1)
    assert fractions == {1: 22 / 80}


def test_processes_on_one_device_share_its_limit(fractions: dict[int, float]) -> None:
    limit_memory(MemoryLimit(size_bytes=24 * GIB), cuda("ddp", 0, 0), 1)
    assert fractions == {0: 10 / 80}
    assert processes_on(cuda("dp", 0, 0), 0) == 1 and devices_of_process(cuda("ddp", 0, 0)) == 1


def test_a_limit_that_the_context_fills_is_refused(fractions: dict[int, float]) -> None:
    with pytest.raises(UsageError, match="CUDA's context takes 2 GiB; give at least 2.03 GiB"):
        limit_memory(MemoryLimit(size_bytes=2 * GIB), cuda("ddp", 0, 1), 0)
    assert not fractions


# --- what counts as out of memory -----------------------------------------------------------------------


def error(reason: str, traceback: str | None = None) -> Outcome:
    return Outcome(status="error", reason=reason, traceback=traceback)


@pytest.mark.parametrize(
    ("outcome", "probing", "status"),
    [
        (error("rank 0 was ended by SIGSEGV"), True, "oom"),
        (error("rank 0 was ended by SIGSEGV"), False, "error"),
        (error("RuntimeError: can't start new thread"), False, "oom"),
        (error("rank 1 left with exit status 1", "libgomp: Resource temporarily unavailable"), False, "oom"),
        (error("ValueError: wrong shape"), True, "error"),
        (Outcome(status="timeout", reason="Cannot allocate memory"), True, "timeout"),
    ],
)
def test_errors_that_a_limit_caused(outcome: Outcome, probing: bool, status: str) -> None:
    found = as_out_of_memory(outcome, LIMIT, probing=probing)
    assert found.status == status and (found.reason or "").startswith(outcome.reason or "")
    assert as_out_of_memory(outcome, None, probing=probing) == outcome
