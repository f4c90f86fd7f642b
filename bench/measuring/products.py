"""How fast this run's devices multiply matrices: what no training on them should beat.

Square matrices in each precision in use, in workers like those that train (as many CPU threads), first on the
first device alone, then on all of them at once: cores share caches and clocks, GPUs share power. The best of
several rounds counts, at the size that suits the device best.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bench import levers
from bench.errors import BenchError
from bench.measuring.control import Channel, Message, out_of_memory
from bench.measuring.launcher import Launcher, LaunchError
from bench.measuring.step import synchronize
from bench.schema import MatrixProduct

LIMIT_SECONDS = 60.0
SIZES = {"cpu": (512, 1024), "cuda": (2048, 4096, 8192)}
BUDGET_SECONDS = {"cpu": 0.06, "cuda": 0.1}
"""For the rounds of one size; a product that alone takes longer is the last that is tried."""
ROUND_SECONDS = 0.005
"""Least time of a round, long against a clock and a synchronisation."""
MIN_ROUNDS = 3
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductJob:
    """Devices to try, each once, in order, in each precision."""

    device_type: str
    devices: tuple[int, ...]
    precisions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """What was measured, and what went wrong, None where nothing did."""

    found: tuple[MatrixProduct, ...] = ()
    problem: str | None = None

    def flops_per_second(self, devices: Sequence[int], precision: str) -> tuple[float, ...]:
        """One rate per device, with one device at work or with all, as the case has it; empty where one is missing."""
        distinct = tuple(dict.fromkeys(devices))
        known = {
            item.device_index: item.flops_per_second
            for item in sorted(self.found, key=lambda item: item.devices_at_once, reverse=len(distinct) == 1)
            if item.precision == precision
        }
        # A device that is listed twice has its arithmetic once.
        shares = {device: devices.count(device) for device in distinct}
        if not known.keys() >= shares.keys():
            return ()
        return tuple(known[device] / shares[device] for device in devices)


def multiply(job: ProductJob, channel: Channel) -> None:
    """Worker task: time products whenever the driver says so, until it says `finish`."""
    channel.phase("matrix product")
    device = torch.device("cpu")
    if job.device_type == "cuda":
        device = torch.device("cuda", job.devices[channel.rank])
        torch.cuda.set_device(device)
    channel.reply({})
    for command in channel.commands():
        if command["op"] == "multiply" and (command["all"] or channel.rank == 0):
            channel.reply(best_product(device, str(command["precision"])))
        else:
            channel.reply({})


def best_product(device: torch.device, precision: str) -> Message:
    """`size` and `flops_per_second` of the fastest product of two square matrices on this device."""
    levers.set_float32_precision(precision)
    best: dict[str, float] = {}
    budget = BUDGET_SECONDS[device.type]
    for size in SIZES[device.type]:
        try:
            seconds = product_seconds(device, precision, size, budget)
        except Exception as error:
            if best and out_of_memory(error):
                break  # a smaller one fits
            raise
        rate = 2 * size**3 / seconds
        if rate > best.get("flops_per_second", 0.0):
            best = {"size": size, "flops_per_second": rate}
        if seconds > budget:
            break
    return best


def product_seconds(device: torch.device, precision: str, size: int, budget_seconds: float) -> float:
    """Seconds of one product in the best round; rounds are taken until the budget is spent, three at least."""
    left, right = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
    result = torch.empty_like(left)

    def timed(products: int) -> float:
        synchronize([device])
        started = time.perf_counter()
        for _ in range(products):
            torch.mm(left, right, out=result)
        synchronize([device])
        return (time.perf_counter() - started) / products

    timed(1)  # the first carries one-off costs
    once = timed(1)
    products, best, until = max(1, math.ceil(ROUND_SECONDS / once)), once, time.perf_counter() + budget_seconds
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < until:
        best, rounds = min(best, timed(products)), rounds + 1
    return best


def measure_products(launcher: Launcher, job: ProductJob) -> Products:
    """Run it; what fails costs the run its comparison with the product, and nothing else."""
    found: list[MatrixProduct] = []
    alone = (False, True) if len(job.devices) > 1 else (True,)
    try:
        with launcher.start(multiply, job, len(job.devices), LIMIT_SECONDS) as session:
            session.replies()
            for precision in job.precisions:
                for everyone in alone:
                    replies = session.command({"op": "multiply", "precision": precision, "all": everyone})
                    found += _products(replies, job, precision)
            session.command({"op": "finish"})
    except (LaunchError, BenchError) as error:
        return Products(found=tuple(found), problem=f"the matrix product could not be measured: {error}")
    return Products(found=tuple(found))


def _products(replies: Sequence[Message], job: ProductJob, precision: str) -> list[MatrixProduct]:
    working = [(device, reply) for device, reply in zip(job.devices, replies, strict=True) if reply]
    return [
        MatrixProduct(
            device_index=device,
            precision=precision,
            devices_at_once=len(working),
            size=int(reply["size"]),  # type: ignore[arg-type]
            flops_per_second=float(reply["flops_per_second"]),  # type: ignore[arg-type]
        )
        for device, reply in working
    ]
