"""When ranks synchronise gradients that are accumulated: on the last micro-batch, or on every one."""

from __future__ import annotations

from bench.levers.base import Abilities, Lever, register
from bench.schema import Case

ONE_PROCESS = "one process has no other ranks to synchronise with"


@register
class AccumulationSync(Lever):
    name = "accumulation_sync"
    meaning = "last: synchronise gradients on the last micro-batch only (no_sync on the others); every: on each"
    changes = "bytes moved per step; under FSDP also memory, since gradients wait unsharded for the last"
    default = "last"
    values = ("last", "every")
    needs = "accumulation_steps of 2 or more"
    not_with = dict.fromkeys(("single", "dp", "balanced_dp"), ONE_PROCESS)

    def unsupported(self, case: Case, abilities: Abilities) -> str | None:
        if case.accumulation_steps == 1:
            return f"{self.name}={self.of(case)} changes nothing with 1 accumulation step; add accumulation_steps=2"
        return super().unsupported(case, abilities)
