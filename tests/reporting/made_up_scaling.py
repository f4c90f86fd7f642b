"""A made-up sweep of scaling on 4 GPUs: ddp follows Amdahl's law with s = 0.1, fsdp turns back, dp gains nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.schema import Case, Device
from tests.recording.made_up import made_case, made_run, write_run

STRONG, PER_DEVICE = 252, 64
COUNTS = (1, 2, 3, 4)
SINGLE_RATE = 1000.0
# Relative time T(n) / T(1) at the global batch 252.
STRONG_TIMES = {
    "ddp": {1: 1.02, 2: 0.55, 3: 0.40, 4: 0.325},  # 0.1 + 0.9 / n
    "fsdp": {1: 1.10, 2: 0.52, 3: 0.50, 4: 0.56},
    "dp": {1: 1.0, 2: 1.01, 3: 1.03, 4: 1.08},
}
# Efficiency T(1) / T(n) at 64 samples a device.
WEAK = {
    "ddp": {1: 0.98, 2: 0.96, 3: 0.95, 4: 0.94},
    "fsdp": {1: 0.9, 2: 0.85, 3: 0.8},
    "dp": {1: 1.0, 2: 0.6, 3: 0.45, 4: 0.4},
}


def scaling_run(results: Path, *, launches: int = 6, noise: float = 0.004, device_type: str = "cuda") -> Path:
    """Three strategies at both kinds of scaling; 4 devices are out of memory with fsdp. On CPU dp is emulated."""
    cpu: dict[str, Any] = {"device_type": "cpu", "size": "quick", "precision": "fp32"} if device_type == "cpu" else {}
    spread = random.Random(0)

    def rates(rate: float) -> list[float]:
        return [rate * spread.lognormvariate(0, noise) for _ in range(launches)]

    plan: list[tuple[Case, list[float], list[float | None]]] = [
        (made_case("single", 1, STRONG, **cpu), rates(SINGLE_RATE), [20.0]),
        (made_case("single", 1, PER_DEVICE, **cpu), rates(0.9 * SINGLE_RATE), [10.0]),
    ]
    for name, times in STRONG_TIMES.items():
        plan += [(made_case(name, n, STRONG, **cpu), rates(SINGLE_RATE / time), []) for n, time in times.items()]
    for name, efficiencies in WEAK.items():
        plan += [
            (made_case(name, n, n * PER_DEVICE, **cpu), rates(0.9 * SINGLE_RATE * n * part), [])
            for n, part in efficiencies.items()
        ]
    failed = [
        (
            made_case("fsdp", 4, 4 * PER_DEVICE, **cpu),
            {"status": "oom", "reason": "rank 0: out of memory, 2 GiB asked for"},
        )
    ]
    run = made_run(run_id="20261130T020000Z-ab78", device_type=device_type)
    if cpu:
        run = replace(run, devices=tuple(Device(index=i, name="AMD EPYC 9654") for i in range(4)))
    return write_run(results, plan, run=run, failed=failed)
