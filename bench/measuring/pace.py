"""How fast is the machine just now? A fixed piece of training work, timed before and after the measured rounds.

A convolution forward and backward, on all of a launch's devices at once, always the same: what changes its time
is the machine (other work on it, clocks, heat) and not the code that is measured. Runs of different days are
compared with it as a covariate (`bench.analysis.intervals.ratio_at_equal_pace`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn

from bench.measuring.control import Message
from bench.measuring.step import synchronize
from bench.series import percentile_10

BATCH = {"cpu": 8, "cuda": 256}
REPEATS = 42
"""Some 0.2 s in all on a core of a server CPU, less on a GPU; the first two carry one-off costs and do not count."""
ONE_OFF = 2


def pace_of(devices: Sequence[torch.device]) -> Message:
    """`seconds` of one repeat on this process's devices, each once; empty where it fails, which costs nothing else.

    The 10th percentile of its repeats, as `step_p10_seconds` is of rounds. Means of fewer repeats spread more from
    launch to launch than what they are to tell (docs/evidence/false_alarms.md).
    """
    distinct = list(dict.fromkeys(devices))
    try:
        layers = [nn.Conv2d(32, 64, 3, device="meta").to_empty(device=device) for device in distinct]
        images = [torch.full((BATCH[device.type], 32, 26, 26), 0.5, device=device) for device in distinct]
        for layer in layers:
            # Numbers that are not drawn: the random numbers of the training stay what they are.
            nn.init.constant_(layer.weight, 0.01)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        seconds = [_repeat(layers, images, distinct) for _ in range(REPEATS)][ONE_OFF:]
    except Exception:  # such as no memory left beside the model
        return {}
    return {"seconds": percentile_10(seconds)}


def _repeat(layers: Sequence[nn.Module], images: Sequence[torch.Tensor], devices: Sequence[torch.device]) -> float:
    synchronize(devices)
    started = time.perf_counter()
    for layer, image in zip(layers, images, strict=True):
        layer(image).sum().backward()
    synchronize(devices)
    return time.perf_counter() - started


def slowest(replies: Sequence[Message]) -> float | None:
    """Seconds of the slowest rank, None where one has none."""
    found = [reply.get("seconds") for reply in replies]
    return None if None in found else max(float(seconds) for seconds in found)  # type: ignore[arg-type]
