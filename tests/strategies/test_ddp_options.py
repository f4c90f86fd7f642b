"""Options of ddp that exclude each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from bench.schema import Case, NameValue
from bench.strategies import Context, ddp, registry


def static_graph(accumulation_steps: int) -> Case:
    return Case(
        workload="mnist_cnn",
        strategy="ddp",
        device_type="cpu",
        devices=(0, 1),
        global_batch_size=8,
        size="quick",
        accumulation_steps=accumulation_steps,
        settings=(NameValue(name="static_graph", value="on"),),
    )


def test_static_graph_cannot_skip_synchronisation() -> None:
    assert registry.get("ddp").unsupported(static_graph(1)) is None
    reason = registry.get("ddp").unsupported(static_graph(2))
    assert reason is not None and "no_sync" in reason and "static_graph=off" in reason


def test_synchronising_each_micro_batch_is_what_a_static_graph_takes() -> None:
    case = static_graph(2)
    every = replace(case, settings=(*case.settings, NameValue(name="accumulation_sync", value="every")))
    assert registry.get("ddp").unsupported(every) is None


def test_powersgd_is_refused_over_gloo_whose_order_of_collectives_differs_between_ranks() -> None:
    hook = replace(static_graph(1), settings=(NameValue(name="comm_hook", value="powersgd"),))
    assert "it needs NCCL" in str(registry.get("ddp").unsupported(hook))
    on_gpus = replace(hook, device_type="cuda")
    assert registry.get("ddp").unsupported(on_gpus) is None
    assert registry.get("ddp").unsupported(replace(on_gpus, devices=(0, 0))) is not None


def test_buckets_are_torchs_own_where_nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given as a number, even as its default, the size would turn off the smaller first bucket."""
    given: list[Any] = []
    monkeypatch.setattr(ddp, "DistributedDataParallel", lambda model, **options: given.append(options))
    for settings in ((), (NameValue(name="bucket_cap_mb", value="5"),)):
        case = replace(static_graph(1), settings=settings)
        registry.get("ddp").wrap(nn.Linear(2, 2), Context(case=case, devices=(torch.device("cpu"),), blocks=()))
    assert [options["bucket_cap_mb"] for options in given] == [None, 5]
