"""Where the batches lie that a step takes."""

from __future__ import annotations

from bench.levers.base import Lever, register, registry
from bench.schema import Case


@register
class DataPlacement(Lever):
    name = "data_placement"
    meaning = (
        "host: in pinned host memory, copied to the device in each step; resident: on the device already (dp and "
        "balanced_dp: on the first, from which they scatter)"
    )
    changes = "leaves the copy out of the step: what is left is the rest"
    default = "host"
    values = ("host", "resident")


def is_resident(case: Case) -> bool:
    """Whether the case's batches lie on the device."""
    return registry.get(DataPlacement.name).of(case) == "resident"
