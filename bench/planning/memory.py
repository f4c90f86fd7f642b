"""`--memory-limit SIZE`: less memory for each device than it has, to stand in for a smaller card."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from bench.balance import size_text
from bench.errors import UsageError
from bench.host import host_memory_bytes
from bench.measuring.machine import Machine
from bench.measuring.memory_limit import LEAST_BYTES
from bench.planning.options import RunOptions

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def choose_memory_limit(options: RunOptions, machine: Machine, devices: Sequence[int]) -> int | None:
    """Bytes for each device, None without `--memory-limit`. UsageError where that is no size, or none that can bind."""
    text = options.memory_limit
    if text is None:
        return None
    limit = _size(text)
    if limit < LEAST_BYTES:
        raise UsageError(
            f"--memory-limit {text} is less than the {size_text(LEAST_BYTES)} that a process needs to fail in good "
            "order; give at least that, and more for a model to fit"
        )
    if machine.device_type == "cpu":
        _check_host(text, limit, len(devices))
    else:
        _check_gpus(text, limit, machine, devices)
    return limit


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise UsageError(f"--memory-limit {text!r} is no size; write a number with a unit, e.g. 2GiB or 500MB")
    return int(float(found[1]) * unit)


def _check_host(text: str, limit: int, count: int) -> None:
    if not sys.platform.startswith("linux"):
        raise UsageError("--memory-limit on CPU workers needs Linux, whose kernel holds a process to it; leave it out")
    there = host_memory_bytes()
    if limit * count > there:
        raise UsageError(
            f"--memory-limit {text} for {count} CPU workers is {size_text(limit * count)}, but this machine has "
            f"{size_text(there)}, so that no worker would come to it; give at most {size_text(there // count)}"
        )


def _check_gpus(text: str, limit: int, machine: Machine, devices: Sequence[int]) -> None:
    for ordinal in dict.fromkeys(devices):
        there = machine.devices[ordinal].memory_bytes
        if there is not None and limit > there:
            raise UsageError(
                f"--memory-limit {text} is more than the {size_text(there)} of device {ordinal}; give less, or leave "
                "it out"
            )
