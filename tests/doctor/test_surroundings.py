"""Limits, network, disk and environment variables."""

from __future__ import annotations

import resource
import shutil
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.doctor import disk, limits, network
from bench.doctor.box import Box

from .made_up import said

GIB, MIB = 2**30, 2**20
UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(("free", "status"), [(8 * GIB, "ok"), (GIB, "ok"), (64 * MIB, "warning")])
def test_shared_memory(free: int, status: str) -> None:
    found = limits.judge_shared_memory(max(free, GIB), free)
    assert found.status == status
    assert found.status == "ok" or (found.remedy is not None and "--shm-size" in found.remedy)


def test_no_shared_memory_at_all(tmp_path: Path) -> None:
    (found,) = said(Box(root=tmp_path), "limits", "/dev/shm")
    assert (found.status, found.fact) == ("warning", "there is no /dev/shm")


@pytest.mark.parametrize(
    ("soft", "hard", "status", "remedy"),
    [
        (256, 4096, "warning", "ulimit -n 4096 before the run"),
        (1024, UNLIMITED, "info", "ulimit -n 65536 before the run"),
        (1024, 2**20, "info", "ulimit -n 65536 before the run"),
        (4096, 4096, "ok", None),
        (UNLIMITED, UNLIMITED, "ok", None),
    ],
)
def test_open_files(soft: int, hard: int, status: str, remedy: str | None) -> None:
    found = limits.judge_open_files(soft, hard)
    assert (found.status, found.remedy) == (status, remedy)


@pytest.mark.parametrize(
    ("soft", "adapters", "status"),
    [(8 * MIB, [], "ok"), (8 * MIB, ["mlx5_0"], "info"), (UNLIMITED, ["mlx5_0"], "ok")],
)
def test_locked_memory_matters_with_rdma_adapters_only(soft: int, adapters: list[str], status: str) -> None:
    assert limits.judge_locked_memory(soft, adapters).status == status


def test_a_host_name_that_does_not_resolve_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, port: None) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostname", lambda: "box7")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    (found,) = said(Box(), "network", "host name")
    assert found.status == "info" and found.fact.startswith("box7 does not resolve: ")
    assert "Name or service not known" in found.fact
    assert found.remedy == "add '127.0.1.1 box7' to /etc/hosts"


def test_a_host_name_that_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "box7")
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: [(2, 1, 6, "", ("10.0.0.7", 0))] * 2)
    (found,) = said(Box(), "network", "host name")
    assert (found.status, found.fact) == ("ok", "box7 is 10.0.0.7")


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(network, "RESOLVE_SECONDS", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: answer.wait(30) and [])
    try:
        assert network.resolve("box7") == ([], "no answer within 0.05 s")
    finally:
        answer.set()


def test_loopback_works_here_and_is_a_problem_where_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [found.status for found in said(Box(), "network", "loopback")] == ["ok"]

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refuse)
    (found,) = said(Box(), "network", "loopback")
    assert found.status == "problem" and "Cannot assign requested address" in found.fact


@pytest.mark.parametrize(
    ("gloo", "nccl", "facts"),
    [
        (None, None, []),
        ("lo", "eth", []),
        ("eth0,lo", "=eth0,ib0", []),
        ("eth1", None, ["GLOO_SOCKET_IFNAME names eth1, which does not exist"]),
        (None, "ib", ["NCCL_SOCKET_IFNAME=ib fits no interface"]),
        (None, "=eth", ["NCCL_SOCKET_IFNAME==eth fits no interface"]),
        (None, "^docker", []),
    ],
)
def test_interfaces_that_variables_ask_for(gloo: str | None, nccl: str | None, facts: list[str]) -> None:
    found = list(network.chosen(gloo, nccl, ["lo", "eth0"]))
    assert [note.fact for note in found] == facts
    assert {note.status for note in found} <= {"problem"}


def test_no_loopback_interface_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0")])
    warned, listed = said(Box(), "network", "interfaces")
    assert (warned.status, warned.fact) == ("warning", "no interface is called lo")
    assert (listed.status, listed.fact) == ("ok", "eth0")


@pytest.mark.parametrize(("free", "status"), [(50 * GIB, "ok"), (500 * MIB, "warning"), (10 * MIB, "problem")])
def test_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert disk.judge_folder(tmp_path, "lost").status == status


def test_a_folder_that_is_not_made_yet_and_one_that_cannot_be(tmp_path: Path) -> None:
    assert disk.judge_folder(tmp_path / "a/b", "lost").fact.endswith("not made yet")
    (tmp_path / "file").write_text("")
    found = disk.judge_folder(tmp_path / "file/results", "lost")
    assert found.status == "problem" and f"{tmp_path / 'file'} is not a folder one may write to" in found.fact


@pytest.mark.parametrize(
    ("environment", "statuses", "fact"),
    [
        ({"PATH": "/bin"}, ["ok"], "none is set that changes training"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, ["warning"], "CUDA_LAUNCH_BLOCKING=1"),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, ["info"], "CUDA_LAUNCH_BLOCKING=0"),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, ["warning"], "NVIDIA_TF32_OVERRIDE=0"),
        ({"OMP_NUM_THREADS": "4"}, ["info"], "OMP_NUM_THREADS=4"),
        ({"GOMP_CPU_AFFINITY": "0-3"}, ["warning"], "GOMP_CPU_AFFINITY=0-3"),
        ({"NCCL_NTHREADS": "64", "CUDA_HOME": "/c"}, ["info"], "CUDA_HOME=/c, NCCL_NTHREADS=64"),
    ],
)
def test_variables_that_change_training(environment: dict[str, str], statuses: list[str], fact: str) -> None:
    found = said(Box(environment=environment), "environment", "variables")
    assert [finding.status for finding in found] == statuses
    assert found[0].fact == fact
