"""Checks that need a GPU. Without one they are skipped; `tests/gpu/check.sh` runs them all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.gpu.gpu_runs import GpuRuns

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything in this folder where torch sees no GPU. This asks the driver, and makes no context."""
    if torch.cuda.device_count() > 0:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU that torch can use; none is here"))


@pytest.fixture(scope="session")
def gpu_runs(tmp_path_factory: pytest.TempPathFactory) -> GpuRuns:
    """Runs through the command line, each made once; kept in DPBENCH_GPU_RESULTS where that is set."""
    kept = os.environ.get("DPBENCH_GPU_RESULTS")
    return GpuRuns(Path(kept) if kept else tmp_path_factory.mktemp("gpu"), tmp_path_factory.mktemp("reports"))
