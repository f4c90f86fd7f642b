"""One input of a sample, and the facts that it depends on: a forward's names, and a configuration's numbers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bench.workloads._adapters.configs import field, parts, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of one sample.

    kind: `ids` (from low up to high, but none of `barred`), `noise`, `ones`, `zeros`, `boxes` (whole numbers from 0 to
    1000 as left, top, right, bottom), `half` (True at half of the places), `grid` (the numbers `grid`). word: what it
    is called to a reader, empty for what goes without saying. packed: the model wants the rows of all samples as one.
    """

    kind: str
    shape: tuple[int, ...]
    word: str = ""
    low: int = 0
    high: int = 0
    barred: tuple[int, ...] = ()
    placed: tuple[tuple[int, int], ...] = ()
    """(id, how often): ids that stand for an image or sound, from the second place on."""
    dtype: torch.dtype = torch.float32
    grid: tuple[int, ...] = ()
    packed: bool = False

    @property
    def text(self) -> str:
        if self.kind == "ids":
            return f"{self.shape[-1]} tokens, vocabulary {self.high:,}"
        return f"{'x'.join(str(length) for length in self.shape)} {self.word}"

    def draw(self, generator: torch.Generator) -> Tensor:
        """A sample of it."""
        if self.kind == "ids":
            return self._ids(generator)
        if self.kind == "noise":
            return torch.randn(self.shape, generator=generator)
        if self.kind == "boxes":
            corners = torch.randint(0, 1001, (*self.shape[:-1], 2, 2), generator=generator)
            return corners.sort(dim=-2).values.flatten(-2)
        if self.kind == "half":
            order = torch.randperm(math.prod(self.shape), generator=generator)
            return (order < len(order) // 2).reshape(self.shape)
        if self.kind == "grid":
            return torch.tensor(self.grid)
        return self._with_places(torch.full(self.shape, 1 if self.kind == "ones" else 0, dtype=self.dtype))

    def _ids(self, generator: torch.Generator) -> Tensor:
        """Ids from just above the reserved ones: a padding id among them would change what is attended to."""
        ids = torch.randint(self.low, self.high, self.shape, generator=generator)
        for barred in self.barred:
            ids[ids == barred] = self.low
        return self._with_places(ids)

    def _with_places(self, ids: Tensor) -> Tensor:
        start = 1
        for placed, count in self.placed:
            ids[..., start : start + count] = placed
            start += count
        return ids


class Facts:
    """What inputs depend on: the forward's names, and the numbers in a configuration at a size."""

    def __init__(self, model_class: Any, config: Any, size: str) -> None:
        self.name: str = model_class.__name__
        self.config, self.size = config, size
        self.takes = {
            key: parameter
            for key, parameter in inspect.signature(model_class.forward).parameters.items()
            if key != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        main = model_class.main_input_name
        self.main = [main] if isinstance(main, str) else list(main)

    @cached_property
    def parts(self) -> list[tuple[str, Any]]:
        return list(parts(self.config))

    def first(self, *names: str, near: Iterable[str] = (), kind: Any = int) -> Any:
        """The first of these fields that holds a `kind`, in the parts whose path speaks of `near` and then in all."""
        nearest = [part for path, part in self.parts if any(word in path for word in near)]
        for part in (*nearest, *(part for _, part in self.parts)):
            for name in names:
                value = field(part, name)
                if isinstance(value, kind) and not isinstance(value, bool):
                    return value
        return None

    def text_part(self, *, decoder: bool = False) -> Any:
        """The configuration of the text that is read, or written, or the first that has a vocabulary."""
        text = text_of(self.config, decoder=decoder)
        if getattr(text, "vocab_size", None):
            return text
        return next((part for _, part in self.parts if getattr(part, "vocab_size", None)), text)

    def labels(self) -> int:
        return int(getattr(self.config, "num_labels", None) or 2)


def reserved(config: Any) -> list[int]:
    """Ids that mean something of their own: padding, ends, the places of images."""
    numbers = [
        value
        for _, part in parts(config)
        for key, value in vars(part).items()
        if key.endswith(("_token_id", "_token_index", "_token")) and isinstance(value, int)
    ]
    return sorted({number for number in numbers if number >= 0})
