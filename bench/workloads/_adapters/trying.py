"""Models without their memory: on the meta device tensors have shapes and nothing else.

So a model of any size is tried in a second. One that hangs on values on its way cannot be tried there.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.data.files import sample_generator
from bench.errors import UsageError
from bench.workloads._adapters.configs import COUNTS, one_line, parts, silence
from bench.workloads._adapters.inputs import Input

HOOKED = "_output_capturing_hooks_installed"
TRIED_SAMPLES = 23
"""A batch without values costs nothing, and one of 23 is told from every usual width and length."""


class Unseen(Exception):
    """The model could not be tried on the meta device."""


def built(model_class: Any, config: Any, query: str) -> nn.Module | None:
    """The model on the meta device, None where it cannot be there; UsageError where the settings do not fit."""
    config = copy.deepcopy(config)
    config._experts_implementation = "batched_mm"  # the one way to compute experts that does not look at values
    try:
        with without_values():
            model: nn.Module = model_class(config)
    except Exception as error:
        if speaks_of_meta(error):
            return None
        lacking = [key for _, part in parts(config) for key, value in vars(part).items() if value is None]
        lacking = [key for key in dict.fromkeys(lacking) if re.search(COUNTS, key)]
        given = f"with {query[1:]}" if query else "at its default configuration"
        given += f" (without a value: {', '.join(lacking[:6])})" if lacking else ""
        raise UsageError(
            f"--workload: {model_class.__name__} cannot be built {given}: {type(error).__name__}: {one_line(error)}"
        ) from error
    return model


def speaks_of_meta(error: BaseException) -> bool:
    """Whether an error is about tensors without values, rather than about the model."""
    words = ("meta", "data-dependent", "data dependent")
    return isinstance(error, NotImplementedError) or any(word in str(error).lower() for word in words)


def on_meta(item: Input, samples: int = TRIED_SAMPLES) -> Tensor:
    """A batch of an input, without values."""
    return batch_of(item.draw(sample_generator(0, 0)), samples)


def batch_of(sample: Tensor, samples: int = TRIED_SAMPLES) -> Tensor:
    return torch.empty((samples, *sample.shape), dtype=sample.dtype, device="meta")


class Answered(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """On the meta device, an answer to what a forward asks a tensor: yes, but no to whether any is (padding, a gap)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = False
        self._any: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.asked = True
            yes = all(args[0] is not one for one in self._any)
            return yes if args[0].dtype is torch.bool else 1
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.any.default:
            self._any.append(result)
        return result


@contextmanager
def without_values(answers: Answered | None = None) -> Iterator[None]:
    """Everything made in here is on the meta device; what transformers remarks is kept off the terminal."""
    with torch.device("meta"), warnings.catch_warnings(), answers or Answered(), silence():
        warnings.simplefilter("ignore")
        yield


def tried(model: nn.Module | None, inputs: Mapping[str, Input]) -> Any:
    """What the model returns for a batch, without values. Unseen where that hangs on values, else the model's error."""
    if model is None:
        raise Unseen
    batch = {name: on_meta(item) for name, item in inputs.items()}
    for training in (True, False):  # in training, a layer may be left out by chance
        model.train(training)
        answers = Answered()
        try:
            with without_values(answers):
                return model(**batch)
        except Exception as error:
            misled = answers.asked and "NoneType" not in str(error)  # something is missing, whatever the values
            if not misled and not speaks_of_meta(error):
                raise
    raise Unseen


def hooked_parts(model: nn.Module | None) -> list[str]:
    """Names of the submodels (of the model itself: empty) that a forward has given hooks for their hidden states."""
    return [] if model is None else [name for name, part in model.named_modules() if getattr(part, HOOKED, False)]


def install_hooks(model: nn.Module, names: Sequence[str]) -> None:
    """What the first forward would do: replicas, which share their hooks, would each do it again and count twice."""
    if names:
        from transformers.utils.output_capturing import maybe_install_capturing_hooks

        for name in names:
            part: Any = model.get_submodule(name)
            maybe_install_capturing_hooks(part)
