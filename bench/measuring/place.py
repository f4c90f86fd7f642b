"""Where a rank trains: its devices, and the process group where there is one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from bench.measuring.control import Channel
from bench.schema import Case
from bench.strategies import Strategy, registry

NCCL_MULTI_RANK_VERSION = (2, 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """devices: those this process drives; mesh: over all ranks, None without a process group."""

    devices: tuple[torch.device, ...]
    mesh: DeviceMesh | None


def backend_for(case: Case, strategy: Strategy, nccl_version: tuple[int, ...] | None) -> str | None:
    """nccl or gloo, None for one process. NCCL takes a device listed twice from 2.30 on."""
    if strategy.one_process:
        return None
    if case.device_type == "cpu":
        return "gloo"
    if case.oversubscribed and (nccl_version is None or nccl_version < NCCL_MULTI_RANK_VERSION):
        return "gloo"
    return "nccl"


def own_devices(case: Case, rank: int) -> tuple[torch.device, ...]:
    """The devices that this process drives. CUDA is initialised, and the first is its current device."""
    ordinals = case.devices if registry.get(case.strategy).one_process else (case.devices[rank],)
    if case.device_type != "cuda":
        return (torch.device("cpu"),) * len(ordinals)
    devices = tuple(torch.device("cuda", ordinal) for ordinal in ordinals)
    # Before a device mesh is made, which would else choose a device by rank.
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.set_device(devices[0])
    return devices


@contextmanager
def training_place(case: Case, backend: str | None, channel: Channel, timeout_seconds: float) -> Iterator[Place]:
    """The rank's devices, and the process group while the block runs.

    The group is destroyed only when the block ends well: after an exception a collective
    could wait for peers that never come.
    """
    strategy, devices = registry.get(case.strategy), own_devices(case, channel.rank)
    if backend is None:
        yield Place(devices=devices, mesh=None)
        return
    join_group(backend, channel, strategy.world_size(case), timeout_seconds, oversubscribed=case.oversubscribed)
    yield Place(devices=devices, mesh=init_device_mesh(case.device_type, (strategy.world_size(case),)))
    channel.phase("teardown")
    dist.destroy_process_group()


def join_group(
    backend: str, channel: Channel, world_size: int, timeout_seconds: float, *, oversubscribed: bool = False
) -> None:
    """Initialise torch's default process group over the launch's own store."""
    if oversubscribed and backend == "nccl":
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    if backend == "gloo" and "GLOO_SOCKET_IFNAME" not in os.environ:
        # Otherwise gloo looks the host's name up, which many containers cannot resolve.
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        if loopback is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback
    dist.init_process_group(
        backend,
        store=channel.new_store("group"),
        rank=channel.rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_seconds),
    )


@contextmanager
def without_group() -> Iterator[None]:
    """As if there was no process group: a model that communicates would wait for ranks that do something else."""
    group = dist.GroupMember.WORLD
    dist.GroupMember.WORLD = None
    try:
        yield
    finally:
        dist.GroupMember.WORLD = group
