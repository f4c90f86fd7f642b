"""Levers: one file each. `registry` finds them."""

from bench.levers.base import (
    Abilities,
    Lever,
    Witness,
    is_lossy,
    optimizer_factory,
    prepare_batch,
    prepare_model,
    refusal,
    register,
    registry,
    set_process,
    unsupported,
    without_loss,
    witnesses,
)
from bench.levers.precision import autocast, set_float32_precision

__all__ = [
    "Abilities",
    "Lever",
    "Witness",
    "autocast",
    "is_lossy",
    "optimizer_factory",
    "prepare_batch",
    "prepare_model",
    "register",
    "refusal",
    "registry",
    "set_float32_precision",
    "set_process",
    "unsupported",
    "witnesses",
    "without_loss",
]
