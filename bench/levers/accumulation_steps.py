"""Gradient accumulation: a global batch in several pieces, one optimizer step for all."""

from __future__ import annotations

from dataclasses import replace

from bench.levers.base import Lever, register
from bench.schema import Case


@register
class AccumulationSteps(Lever):
    name = "accumulation_steps"
    meaning = "micro-batches per optimizer step"
    changes = "activation memory, which is that of one micro-batch; smaller pieces use a device less well"
    default = "1"

    def of(self, case: Case) -> str:
        return str(case.accumulation_steps)

    def apply(self, case: Case, text: str) -> Case:
        return replace(case, accumulation_steps=int(self.check(text)))
