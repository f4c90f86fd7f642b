"""What data is made of: batches, and sources that are ready to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Batch(NamedTuple):
    """Inputs and targets of a model call `model(*args, **kwargs)`.

    Every tensor inside, at any depth, has the samples in dimension 0.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Data that is ready to be read by any number of processes at once (plain data).

    kind: `synthetic` or `real`; text: where it came from, for the reader;
    path: prepared file, None for synthetic; num_samples: how many there are.
    """

    kind: str
    text: str
    num_samples: int
    path: str | None = None
