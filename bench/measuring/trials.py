"""Does one device take the steps that a strategy fails on? Tried by every rank, once all of them have failed alike.

What one device takes and a strategy does not, the strategy cannot take. A fault of one rank alone is none of that,
unless the model is seen to do what the strategy does not allow: shards differ from rank to rank.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from bench import strategies
from bench.errors import in_short
from bench.measuring.batches import StepBatch
from bench.measuring.building import blocks_of
from bench.measuring.control import Channel, may_be_refused
from bench.measuring.place import without_group
from bench.measuring.reading import misread
from bench.measuring.step import Trainer
from bench.schema import Case

ALONE = "single"
PATIENCE_SECONDS = 3.0
"""How long a rank that has failed waits for the others to do so as well."""

Alone: TypeAlias = Callable[[], "tuple[Trainer, Sequence[StepBatch]]"]
"""Makes a new model on one device, and the batches that the strategy failed on, in the pieces of `case_alone`."""


def refused_by_trial(error: Exception, case: Case, channel: Channel, alone: Alone) -> str | None:
    """Why the strategy cannot take an own model whose steps ended by `error`; None where that is a fault."""
    if case.strategy == ALONE or not may_be_refused(error):
        return None
    alike = _all_failed_alike(error, case, channel)
    traceback.clear_frames(error.__traceback__)  # what the failed step has made would stay in memory
    gc.collect()
    with without_group():
        if alike and not _taken(alone):
            return None
        if (reason := _cause(case, alone)) is not None:
            return f"{reason} ({in_short(error)})"
    return f"one device takes these steps, {case.strategy} does not ({in_short(error)})" if alike else None


def case_alone(case: Case) -> Case:
    """The case on one device that takes as many samples at a time as each of its devices, where they are equal."""
    pieces = case.accumulation_steps * case.num_devices
    steps = case.accumulation_steps if case.global_batch_size % pieces else pieces
    return replace(case, strategy=ALONE, devices=case.devices[:1], settings=(), accumulation_steps=steps)


def _all_failed_alike(error: Exception, case: Case, channel: Channel) -> bool:
    """Whether every rank comes here, with an error of the same type."""
    ranks = range(strategies.registry.get(case.strategy).world_size(case))
    keys = [f"failed/{rank}" for rank in ranks]
    kind = type(error).__name__
    channel.store.set(f"failed/{channel.rank}", kind)
    until = time.monotonic() + PATIENCE_SECONDS
    while not channel.store.check(keys):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return all(channel.store.get(key).decode() == kind for key in keys)


def _taken(alone: Alone) -> bool:
    """Whether one device takes the steps."""
    try:
        trainer, batches = alone()
        for batch in batches:
            trainer.step(batch)
    except Exception:
        return False
    return True


def _cause(case: Case, alone: Alone) -> str | None:
    """What the forward does that the strategy does not allow; nothing if the search fails, which is a help, no more."""
    strategy = strategies.registry.get(case.strategy)
    if strategy.whole_parameters:
        return None
    with suppress(Exception):
        trainer, batches = alone()
        piece, blocks = batches[0].micro_batches[0], blocks_of(trainer.workload, trainer.model)
        return misread(strategy, trainer.model, blocks, lambda: trainer.loss(piece))
    return None
