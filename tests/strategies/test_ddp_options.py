"""Options of ddp that exclude each other."""

from __future__ import annotations

from bench.schema import Case, NameValue
from bench.strategies import registry


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
