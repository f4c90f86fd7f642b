"""Processor, memory, load, container."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.doctor import host
from bench.doctor.box import Box

from .made_up import files, said

GIB = 2**30


@pytest.mark.parametrize(
    ("allowed", "total", "gpus", "status"),
    [(16, 16, 8, "ok"), (8, 16, 4, "info"), (8, 16, 0, "info"), (15, 64, 8, "warning"), (1, 1, 0, "ok")],
)
def test_cores_against_the_host_and_the_gpus(allowed: int, total: int, gpus: int, status: str) -> None:
    (found,) = host.judge_cores(allowed, total, gpus)
    assert found.status == status
    assert found.fact.startswith(f"{allowed} of {total} cores may be used")


def test_too_few_cores_name_the_number_that_is_needed() -> None:
    (found,) = host.judge_cores(3, 64, 8)
    assert found.remedy is not None and "16 cores" in found.remedy


@pytest.mark.parametrize(
    ("average", "total", "status"), [(0.9, 2, "ok"), (1.1, 2, "warning"), (12.8, 64, "ok"), (12.9, 64, "warning")]
)
def test_load(average: float, total: int, status: str) -> None:
    assert host.judge_load(average, total).status == status


def test_load_that_is_not_readable(tmp_path: Path) -> None:
    assert [found.status for found in said(Box(root=tmp_path), "host", "load")] == ["info"]


@pytest.mark.parametrize(
    ("name", "driver", "status"),
    [
        ("performance", "acpi-cpufreq", "ok"),
        ("powersave", "acpi-cpufreq", "warning"),
        ("powersave", "intel_pstate", "info"),
        ("schedutil", "acpi-cpufreq", "info"),
        (None, None, "info"),
    ],
)
def test_the_governor(tmp_path: Path, name: str | None, driver: str | None, status: str) -> None:
    if name is not None and driver is not None:
        folder = "sys/devices/system/cpu/cpu0/cpufreq"
        files(tmp_path, {f"{folder}/scaling_governor": f"{name}\n", f"{folder}/scaling_driver": f"{driver}\n"})
    (found,) = said(Box(root=tmp_path), "host", "CPU clock")
    assert found.status == status


@pytest.mark.parametrize(
    ("available", "limit", "status"), [(20, 32, "ok"), (3.9, 32, "warning"), (20, 2, "warning"), (20, 16, "ok")]
)
def test_memory(available: float, limit: float, status: str) -> None:
    found = host.judge_memory(32 * GIB, int(available * GIB), int(limit * GIB))
    assert found.status == status
    assert ("this container may use" in found.fact) == (limit < 32)


def test_meminfo_is_read_in_bytes(tmp_path: Path) -> None:
    text = "MemTotal:       24684096 kB\nMemAvailable:   2000000 kB\nHugePages_Total:       0\n"
    box = Box(root=files(tmp_path, {"proc/meminfo": text}))
    assert host.meminfo(box)["MemTotal"] == 24684096 * 1024
    (found,) = said(box, "host", "memory")
    assert found.status == "warning" and found.fact.startswith("1.9 GiB of 23.5 GiB available")


@pytest.mark.parametrize(
    ("total", "free", "status", "fact"),
    [
        (0, 0, "ok", "no swap"),
        (8 * GIB, 8 * GIB, "ok", "0 MiB of 8.0 GiB swap in use"),
        (8 * GIB, 5 * GIB, "info", "3.0 GiB of 8.0 GiB swap in use"),
    ],
)
def test_swap(tmp_path: Path, total: int, free: int, status: str, fact: str) -> None:
    text = f"SwapTotal: {total // 1024} kB\nSwapFree: {free // 1024} kB\n"
    (found,) = said(Box(root=files(tmp_path, {"proc/meminfo": text})), "host", "swap")
    assert (found.status, found.fact) == (status, fact)


@pytest.mark.parametrize(
    ("tree", "environment", "mark"),
    [
        ({".dockerenv": ""}, {}, "/.dockerenv"),
        ({"run/.containerenv": ""}, {}, "/run/.containerenv"),
        ({"proc/1/cgroup": "0::/kubepods/pod1\n"}, {}, "kubepods in /proc/1/cgroup"),
        ({}, {"container": "podman"}, "the variable container"),
    ],
)
def test_a_container_is_noticed(tmp_path: Path, tree: dict[str, str], environment: dict[str, str], mark: str) -> None:
    (found,) = said(Box(root=files(tmp_path, tree), environment=environment), "host", "container")
    assert (found.status, found.fact) == ("info", f"running in a container ({mark})")


def test_wsl_is_a_warning_and_a_plain_machine_is_neither(tmp_path: Path) -> None:
    (plain,) = said(Box(root=tmp_path), "host", "container")
    assert (plain.status, plain.fact) == ("ok", "no container noticed")
    release = {"proc/sys/kernel/osrelease": "5.15.0-microsoft-standard-WSL2\n"}
    wsl, _ = said(Box(root=files(tmp_path, release)), "host", "container")
    assert (wsl.status, wsl.fact) == ("warning", "WSL (5.15.0-microsoft-standard-WSL2)")


@pytest.mark.parametrize(("flags", "status"), [("fpu hypervisor", "info"), ("fpu sse", "ok")])
def test_a_virtual_machine_is_noticed(tmp_path: Path, flags: str, status: str) -> None:
    box = Box(root=files(tmp_path, {"proc/cpuinfo": f"processor: 0\nflags : {flags}\n"}))
    assert [found.status for found in said(box, "host", "virtual machine")] == [status]
