"""The levers that a CPU does not have, in real launches on the card: they train the same, and are timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import levers
from bench.levers import Abilities
from bench.measuring.launch import time_case
from bench.measuring.launcher import Launcher
from bench.measuring.parity import parity_case, parity_of
from bench.measuring.place import backend_for
from bench.schema import PARITY_LIMIT, Case, NameValue
from bench.strategies import registry
from tests.measuring import lever_models
from tests.measuring.support import make_job
from tests.measuring.test_levers_on_cpu import SHORT

VALUES = [
    ("ddp", (0,), {"precision": "tf32"}, {}),
    ("ddp", (0,), {"precision": "fp16"}, {}),
    ("fsdp", (0,), {"precision": "fp16"}, {}),
    ("single", (0,), {"cudnn_benchmark": "on"}, {}),
    ("single", (0,), {"channels_last": "on", "precision": "bf16"}, {}),
    ("single", (0,), {"attention": "math"}, {}),
    ("single", (0,), {"attention": "efficient"}, {}),
    ("single", (0,), {"attention": "flash", "precision": "bf16"}, {}),
    ("single", (0,), {"compile": "model"}, {}),
    ("ddp", (0,), {"compile": "blocks", "checkpoint_every": "1"}, {}),
    ("fsdp", (0,), {"compile": "blocks"}, {}),
    ("ddp", (0,), {"optimizer_kernel": "fused"}, {}),
    ("fsdp", (0,), {"optimizer_kernel": "fused"}, {}),
    ("ddp", (0, 0), {"sync_batch_norm": "on"}, {}),
    ("dp", (0, 0), {"data_placement": "resident"}, {}),
    ("fsdp", (0,), {}, {"cpu_offload": "on"}),
]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    yield Launcher(threads_per_worker=1)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize(("strategy", "devices", "values", "options"), VALUES, ids=lambda value: str(value)[:60])
def test_a_lever_trains_the_same_and_is_timed(
    launcher: Launcher,
    compiled: Path,
    strategy: str,
    devices: tuple[int, ...],
    values: dict[str, str],
    options: dict[str, str],
) -> None:
    case = Case(
        workload="everything", strategy=strategy, device_type="cuda", devices=devices, global_batch_size=12,
        size="quick", settings=tuple(NameValue(name=name, value=value) for name, value in options.items()),
    )  # fmt: skip
    for name, value in values.items():
        case = levers.registry.get(name).apply(case, value)
    assert (registry.get(strategy).unsupported(case) or levers.unsupported(case, Abilities())) is None
    backend = backend_for(case, registry.get(strategy), tuple(torch.cuda.nccl.version()))
    job = replace(
        make_job(case, timeout_seconds=120.0),
        address=f"{lever_models.__name__}:Everything",
        compiled=str(compiled),
        backend=backend,
    )
    world_size = registry.get(strategy).world_size(case)
    checked = parity_of(launcher, replace(job, case=parity_case(case)), world_size)
    assert checked.outcome.status == "ok", checked.outcome
    assert checked.trace is not None and checked.trace.parity is not None
    assert checked.trace.parity.lossy or checked.trace.parity.error < PARITY_LIMIT / 5
    timed = time_case(launcher, job, world_size, SHORT)
    assert timed.outcome.status == "ok", timed.outcome
