"""Made-up machines for the doctor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pynvml

from bench.doctor.box import Box, Gpu
from bench.doctor.examine import findings
from bench.doctor.findings import CHECKS, Finding
from bench.nvml import Answer, Nvml

NOT_SUPPORTED = Answer(reason="not supported by this device")


class MadeUpNvml(Nvml):
    """Answers from a table: by (function, arguments...) or by function alone; all else is not supported."""

    def __init__(self, answers: dict[Any, Any]) -> None:
        super().__init__(pynvml)
        self.answers = answers

    def ask(self, function: str, *arguments: Any) -> Answer:
        found = self.answers.get((function, *arguments), self.answers.get(function, NOT_SUPPORTED))
        return found if isinstance(found, Answer) else Answer(value=found)


def gpu(index: int = 0, **other: Any) -> Gpu:
    """GPU `index` with handle `h0`, `h1`..., UUID GPU-0, GPU-1... and its own PCI address."""
    usual = {"handle": f"h{index}", "uuid": f"GPU-{index}", "name": "NVIDIA X", "bus_id": f"0000:0{index + 1}:00.0"}
    return Gpu(index=index, **(usual | other))


def machine(answers: dict[Any, Any] | None = None, gpus: int | Iterable[Gpu] = 1, **other: Any) -> Box:
    """A machine whose GPUs answer as the table says."""
    those = tuple(gpu(index) for index in range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    return Box(nvml=MadeUpNvml({"nvmlDeviceGetCount": len(those)} | (answers or {})), gpus=those, **other)


def said(box: Box, area: str, title: str) -> list[Finding]:
    """What one check says of a machine."""
    checks = [check for check in CHECKS if (check.area, check.title) == (area, title)]
    assert len(checks) == 1
    return findings(box, checks)


def files(root: Path, texts: Mapping[str, str | bytes]) -> Path:
    """A made-up file tree."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root
