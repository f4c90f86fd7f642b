"""Models without their memory: on the meta device tensors have shapes and nothing else.

So a model of any size is tried in a second. One that hangs on values on its way cannot be tried there.
"""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from bench.data.files import sample_generator
from bench.errors import UsageError
from bench.workloads._adapters.configs import one_line, parts, silence
from bench.workloads._adapters.inputs import Input
from bench.workloads._adapters.overriding import COUNTS
from bench.workloads._adapters.packing import packed, packed_names, unpacked
from bench.workloads._adapters.spec import OWN

HOOKED = "_output_capturing_hooks_installed"
LEAST_SAMPLES = 23
LEAST_PACKED = 5
"""Fewer: a model goes through images of a grid one by one, in every layer."""
LIBRARIES = {"detectron2": "git+https://github.com/facebookresearch/detectron2.git"}
"""Where pip finds what is not in its index under its own name."""


class Unseen(Exception):
    """The model could not be tried on the meta device."""


def built(model_class: Any, config: Any, origin: str = "", remedy: str = OWN) -> nn.Module | None:
    """The model on the meta device, None where it cannot be there; UsageError where the settings do not fit."""
    config = copy.deepcopy(config)
    config._experts_implementation = "batched_mm"  # the one way to compute experts that does not look at values
    try:
        with without_values():
            model: nn.Module = model_class(config)
    except Exception as error:
        if speaks_of_meta(error):
            return None
        given, remedy = _lacking(error, config, origin, remedy)
        raise UsageError(
            f"--workload: {model_class.__name__} cannot be built {given}: {type(error).__name__}: {one_line(error)}; "
            f"{remedy}"
        ) from error
    return model


def _lacking(error: Exception, config: Any, origin: str, remedy: str) -> tuple[str, str]:
    """Which configuration cannot be built, with the numbers that are None in it, and what to do."""
    library = re.search(r"requires the (\S+) library", str(error))
    if library:
        return origin or "here", f"install it first: pip install {LIBRARIES.get(library[1], library[1])}"
    keys = dict.fromkeys(key for _, part in parts(config) for key, value in vars(part).items() if value is None)
    lacking = [key for key in keys if re.search(COUNTS, key)][:6]
    given = (origin or "at its default configuration") + (
        f" (without a value: {', '.join(lacking)})" if lacking else ""
    )
    if origin:
        return given, remedy
    value = "give what has no value one as an override, " if lacking else ""
    return given, f"{value}name a folder with the config.json of a trained model, or {OWN}"


def speaks_of_meta(error: BaseException) -> bool:
    """Whether an error is about tensors without values, rather than about the model."""
    words = ("meta", "data-dependent", "data dependent", "unallocated storage")
    return isinstance(error, NotImplementedError) or any(word in str(error).lower() for word in words)


def batches(inputs: Mapping[str, Input], samples: int) -> dict[str, Tensor]:
    """A batch of each input, without values; but with those of whole numbers where there is a grid of patches, which
    says what lies where."""
    drawn = {name: item.draw(sample_generator(0, 0)) for name, item in inputs.items()}
    seen = has_grid(inputs)
    return {
        name: torch.stack([sample] * samples) if seen and not sample.is_floating_point() else batch_of(sample, samples)
        for name, sample in drawn.items()
    }


def has_grid(inputs: Mapping[str, Input]) -> bool:
    return any(item.kind == "grid" for item in inputs.values())


def batch_of(sample: Tensor, samples: int) -> Tensor:
    return torch.empty((samples, *sample.shape), dtype=sample.dtype, device="meta")


def samples_unlike(config: Any, inputs: Mapping[str, Input]) -> int:
    """How many samples to try: a prime that divides no number of the configuration or of the inputs' shapes.

    So the dimension of the samples is told from widths, lengths and numbers of heads. Samples without values cost
    nothing.
    """
    numbers = {length for item in inputs.values() for length in item.shape}
    waiting: list[Any] = [value for _, part in parts(config) for value in vars(part).values()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif isinstance(value, int) and value:
            numbers.add(value)
    least = LEAST_PACKED if has_grid(inputs) else LEAST_SAMPLES
    primes = (odd for odd in count(least, 2) if all(odd % less for less in range(3, math.isqrt(odd) + 1)))
    return next(prime for prime in primes if all(number % prime for number in numbers))


class Answered(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """On the meta device, an answer to what a forward asks a tensor: yes, but no to whether any is (padding, a gap).

    otherwise: the other answer to each of them.
    """

    def __init__(self, *, otherwise: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked, self.otherwise = False, otherwise
        self._any: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.asked = True
            yes = all(args[0] is not one for one in self._any) is not self.otherwise
            return yes if args[0].dtype is torch.bool else 1 + self.otherwise
        args, kwargs = _all_on_meta(func, args, kwargs or {})
        result = func(*args, **kwargs)
        if func is torch.ops.aten.any.default:
            self._any.append(result)
        return result


def _all_on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """Where tensors with values meet some without, or would be made of them, nothing has values."""
    kinds = {tensor.is_meta for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
    if len(kinds) > 1:
        return tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    if kinds == {True} and func is torch.ops.aten._to_copy.default:
        kwargs = {**kwargs, "device": torch.device("meta")}
    return args, kwargs


@contextmanager
def without_values(answers: Answered | None = None, *, device: str = "meta") -> Iterator[None]:
    """Everything made in here is on the meta device; what transformers remarks is kept off the terminal.

    device: that of what is made anew. On the CPU it has values until it meets what has none.
    """
    with torch.device(device), warnings.catch_warnings(), answers or Answered(), silence():
        warnings.simplefilter("ignore")
        yield


def tried(model: nn.Module | None, inputs: Mapping[str, Input], samples: int) -> Any:
    """What the model returns for a batch, without values. Unseen where that hangs on values, else the model's error."""
    if model is None:
        raise Unseen
    batch = packed(batches(inputs, samples), packed_names(inputs))
    for training in (True, False):  # in training, a layer may be left out by chance
        model.train(training)
        answers = Answered()
        try:
            with without_values(answers, device="cpu" if has_grid(inputs) else "meta"):
                output = model(**batch)
            return unpacked(output, samples) if packed_names(inputs) else output
        except Exception as error:
            if not speaks_of_meta(error) and not (answers.asked and _misled(model, batch, error)):
                raise
    raise Unseen


def _misled(model: nn.Module, batch: Mapping[str, Tensor], error: Exception) -> bool:
    """Whether an error may come of the answers: with the others there is none, or not the same."""
    if "NoneType" in str(error):  # something is missing, whatever the values
        return False
    try:
        with without_values(Answered(otherwise=True)):
            model(**batch)
    except Exception as other:
        return str(other) != str(error)
    return True


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
