"""A workload's model and its blocks, looked at before anything is done with them."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bench.errors import BenchError
from bench.workloads import Workload


def seed_all(seed: int) -> None:
    """Seed every global generator that a model may draw from: all ranks draw alike, as when layers are left out."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def built(workload: Workload) -> nn.Module:
    """A new model; BenchError where `build` gives none that can be trained."""
    model = workload.build()
    if not isinstance(model, nn.Module):
        raise BenchError(
            f"build() of workload {workload.name} returns {type(model).__name__}, not a torch.nn.Module; "
            "return the model itself"
        )
    lazy = [name for name, weight in chain(model.named_parameters(), model.named_buffers()) if is_lazy(weight)]
    if lazy:
        raise BenchError(
            f"{len(lazy)} parameters of workload {workload.name} have no shape yet ({', '.join(lazy[:4])}): its layers "
            "are lazy; run a forward on one sample in build()"
        )
    return model


def blocks_of(workload: Workload, model: nn.Module) -> tuple[nn.Module, ...]:
    """The workload's blocks, each once, inner ones before those around them; BenchError where they are no such."""
    found, named = workload.blocks(model), f"blocks() of workload {workload.name}"
    try:
        blocks = list(dict.fromkeys(found))
    except TypeError as error:
        raise BenchError(f"{named} returns {type(found).__name__}; return a list of modules of the model") from error
    paths = {module: path for path, module in model.named_modules()}
    for block in blocks:
        if block is model:
            raise BenchError(f"{named} holds the model itself, which is wrapped anyway; leave it out")
        if block not in paths:
            raise BenchError(f"{named} holds {type(block).__name__}, which is no module of the model that it was given")
    return tuple(sorted(blocks, key=lambda block: -paths[block].count(".")))
