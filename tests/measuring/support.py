"""Cases, jobs, and waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from bench.measuring.place import backend_for
from bench.measuring.tasks import Job
from bench.schema import Case, NameValue
from bench.strategies import registry
from bench.workloads import DataSource

NOISE = DataSource(kind="synthetic", text="seeded normal noise, 1x28x28", num_samples=1000)


def await_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def make_case(strategy: str, *, batch: int = 4, settings: dict[str, str] | None = None, **rest: Any) -> Case:
    """MNIST at its quick size on two CPU workers (one for `single`)."""
    defaults: dict[str, Any] = {"workload": "mnist_cnn", "device_type": "cpu", "size": "quick", "data": "synthetic"}
    devices = (0,) if strategy == "single" else (0, 1)
    listed = tuple(NameValue(name=name, value=value) for name, value in (settings or {}).items())
    return Case(strategy=strategy, global_batch_size=batch, settings=listed, **(defaults | {"devices": devices} | rest))


def make_job(case: Case, *, timeout_seconds: float = 60.0, one_process: bool | None = None) -> Job:
    """`one_process` stands in for a strategy that only the workers know."""
    if one_process is None:
        backend = backend_for(case, registry.get(case.strategy), None)
    else:
        backend = None if one_process else "gloo"
    return Job(case=case, source=NOISE, seed=0, backend=backend, timeout_seconds=timeout_seconds)
