"""A bounded look, before a sweep, at whether the devices can talk with each other.

A machine whose GPUs cannot copy to one another hangs or computes nonsense; that is better
known after 20 s than after the first case's time limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from bench.errors import BenchError
from bench.measuring.control import Channel
from bench.measuring.launcher import Launcher, LaunchError
from bench.measuring.place import join_group

LIMIT_SECONDS = 20.0
STARTUP_SECONDS = 40.0
ELEMENTS = 1 << 20
CAUSES = (
    "usual causes: ACS or the IOMMU breaks peer-to-peer copies (try NCCL_P2P_DISABLE=1, or iommu=pt on the kernel's "
    "command line), /dev/shm is too small in a container (--shm-size or --ipc=host), the GPUs have no P2P path, "
    "or a firewall closes the loopback interface"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightJob:
    """Devices to try, in order; `backend` None tries peer copies in one process instead of a group."""

    device_type: str
    devices: tuple[int, ...]
    backend: str | None


def try_devices(job: PreflightJob, channel: Channel) -> None:
    """Worker task: an all-reduce over the group, or a copy from the first device to each other and back."""
    channel.phase("join")
    if job.backend is None:
        channel.reply({})
        _copy_between(job, channel)
    else:
        _all_reduce(job, job.backend, channel)
    channel.reply({})


def _all_reduce(job: PreflightJob, backend: str, channel: Channel) -> None:
    device = torch.device("cpu")
    if job.device_type == "cuda":
        device = torch.device("cuda", job.devices[channel.rank])
        torch.cuda.set_device(device)
    world_size = len(job.devices)
    oversubscribed = len(set(job.devices)) < world_size
    join_group(backend, channel, world_size, LIMIT_SECONDS, oversubscribed=oversubscribed)
    channel.reply({})
    channel.phase("all_reduce")
    values = torch.full((ELEMENTS,), float(channel.rank + 1), device=device)
    dist.all_reduce(values)
    expected = world_size * (world_size + 1) / 2
    if not bool((values == expected).all()):
        raise BenchError(f"an all_reduce of {world_size} ranks gave {float(values[0]):g} instead of {expected:g}")


def _copy_between(job: PreflightJob, channel: Channel) -> None:
    first = torch.device("cuda", job.devices[0])
    values = torch.arange(ELEMENTS, device=first)
    for ordinal in job.devices[1:]:
        channel.phase(f"copy {job.devices[0]} to {ordinal}")
        back = values.to(torch.device("cuda", ordinal)).to(first)
        if not torch.equal(values, back):
            raise BenchError(f"a copy from device {job.devices[0]} to {ordinal} and back changed the data")


def preflight(launcher: Launcher, job: PreflightJob) -> str | None:
    """What is wrong between the devices, with the usual causes; None when all is well.

    It takes at most LIMIT_SECONDS once the workers are up.
    """
    world_size = 1 if job.backend is None else len(job.devices)
    what = "copies between devices" if job.backend is None else f"an all_reduce over {job.backend}"
    try:
        with launcher.start(try_devices, job, world_size, STARTUP_SECONDS) as session:
            session.replies()
            session.limit(LIMIT_SECONDS)
            session.replies()
    except LaunchError as error:
        return f"{what} failed before the sweep: {error}; {CAUSES}"
    return None
