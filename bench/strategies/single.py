"""One device: the baseline that every ratio refers to."""

from __future__ import annotations

from torch import nn

from bench.schema import Case
from bench.strategies.base import Context, Strategy, register, whole_micro_batch


@register
class Single(Strategy):
    name = "single"
    summary = "one device, no cooperation"
    one_process = True

    def unsupported(self, case: Case) -> str | None:
        return f"single uses one device, not {case.num_devices}" if case.num_devices != 1 else None

    def chunk_sizes(self, case: Case) -> tuple[int, ...]:
        return (whole_micro_batch(case),)

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        return model
