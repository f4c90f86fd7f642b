"""Run as a process that finds the stub: what `find_machine` says of each situation given as JSON on standard input."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any, cast

from bench.errors import UsageError
from bench.measuring.launcher import Launcher
from bench.measuring.machine import CudaView, find_machine
from bench.schema import Device


def find(situation: dict[str, Any]) -> dict[str, Any]:
    os.environ["NVML_STUB_SCRIPT"], os.environ["NVML_STUB_LOG"] = situation["script"], situation["log"]
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if situation["visible"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = situation["visible"]
    devices = tuple(Device(**device) for device in situation["devices"])
    cuda = CudaView(devices=devices, problem=None if devices else "torch sees no GPU")
    try:
        # No launcher: CUDA's view is made up, so that no worker is started.
        return asdict(find_machine(situation["requested"], cast(Launcher, None), cuda=cuda))
    except UsageError as error:
        return {"refused": str(error)}


if __name__ == "__main__":
    json.dump({name: find(situation) for name, situation in json.load(sys.stdin).items()}, sys.stdout)
