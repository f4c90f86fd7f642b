"""Watchers whose process finds the stub library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from bench.schema import Device
from bench.watching.watcher import Watcher
from tests.nvml_stub import StubGpu, stub_environment
from tests.troubles.support import devices_of

StartWatcher: TypeAlias = Callable[..., Watcher]


@pytest.fixture
def start_watcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StartWatcher]:
    """`start_watcher(gpus, devices, ...)`: a watcher of CUDA's `devices` where NVML has `gpus`; closed after the test.

    Without `devices` CUDA sees the GPUs in NVML's order. Further arguments as for `stub_environment`.
    """
    with ExitStack() as stack:

        def start(gpus: Sequence[StubGpu], devices: Sequence[Device] | None = None, **stub: Any) -> Watcher:
            for name, value in stub_environment(tmp_path, gpus, **stub).items():
                monkeypatch.setenv(name, value)
            return stack.enter_context(closing(Watcher(devices_of(gpus) if devices is None else devices)))

        yield start
