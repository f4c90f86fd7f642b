"""torch.compile: the model, or each of its blocks, as generated kernels."""

from __future__ import annotations

import importlib
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from torch import nn

from bench.errors import RefusedError, in_short
from bench.levers.base import Abilities, Blocks, Lever, Witness, refuse_uncalled, register
from bench.schema import Case

REPLICAS = "its replicas are copies of the module, and compiled code stays bound to the original"

COMPILERS = {"_dynamo", "_inductor", "_functorch"}
"""Parts of torch whose own errors say that a model cannot be compiled."""


@register
class Compile(Lever):
    name = "compile"
    meaning = "model: the whole model in place, blocks: each of the workload's blocks (torch.compile's defaults)"
    changes = "step time, for a long first step: first_step_seconds tells it"
    default = "off"
    values = ("off", "model", "blocks")
    needs = "a C++ compiler and Python's headers, on a GPU triton too; blocks: a workload that names some"
    order = 2
    not_with = dict.fromkeys(("dp", "balanced_dp"), REPLICAS)

    def unsupported(self, case: Case, abilities: Abilities) -> str | None:
        if abilities.cannot_compile is not None:
            return f"{self.name}={self.of(case)}: {abilities.cannot_compile}"
        return super().unsupported(case, abilities)

    def prepare_model(self, case: Case, model: nn.Module, blocks: Blocks) -> Blocks:
        whole = self.of(case) == "model"
        if not whole and not blocks:
            raise RefusedError("compile=blocks: the workload names no blocks; name them in blocks(), or compile=model")
        refuse_uncalled(self.name, [model] if whole else blocks)
        _compile_here()
        # In place, so that names, and what the strategy wraps, stay as they are.
        for module in [model] if whole else blocks:
            module.compile()
        return blocks

    def witness(self, case: Case) -> Witness:
        return Graphs(self.of(case))

    def refusal(self, case: Case, error: Exception) -> str | None:
        kinds = {kind.__module__.split(".")[1] for kind in type(error).__mro__ if kind.__module__.startswith("torch.")}
        if kinds & COMPILERS:
            return f"{self.name}={self.of(case)}: torch.compile cannot take this model ({in_short(error)})"
        return None


class Graphs:
    """Whether anything was compiled: a block's forward may be called past its `__call__`, or keep the compiler out."""

    def __init__(self, value: str) -> None:
        self._value = value

    def watching(self) -> AbstractContextManager[object]:
        return nullcontext()

    def refusal(self) -> str | None:
        counted: Any = importlib.import_module("torch._dynamo.utils").counters["stats"]
        if counted["unique_graphs"]:
            return None
        return f"compile={self._value} compiled nothing: is the module called, and does it let the compiler in?"


def _compile_here() -> None:
    """Compile in the rank's own process: a pool of others for each rank would outlive it, and share its cores."""
    config: Any = importlib.import_module("torch._inductor.config")  # takes seconds, which only this lever pays
    config.compile_threads = 1
    with suppress(ImportError):  # torch.fx draws no bar, but makes tqdm's lock between processes, and leaves it
        importlib.import_module("tqdm").tqdm.set_lock(threading.RLock())
