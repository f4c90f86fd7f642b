"""What was typed for a run, as it was and so that it can be asked for again elsewhere."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import bench
from bench.planning.arguments import selection_of

CHECKOUT = Path(bench.__file__).resolve().parents[1]
"""The folder that holds the suite and its scenarios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """`command_line` is what was typed, `selection` the scenarios and pytest's selection among their tests."""

    command_line: str
    selection: tuple[str, ...] = ()


def typed(config: pytest.Config) -> Typed:
    """What was typed for this pytest session, without the place where pytest is installed."""
    folder = config.invocation_params.dir
    scenarios = tuple(in_checkout(argument, folder) for argument in config.args)
    selection = (*scenarios, *selection_of(config.option))
    return Typed(command_line=shlex.join(["pytest", *sys.argv[1:]]), selection=selection)


def in_checkout(argument: str, folder: Path) -> str:
    """A scenario that was named from `folder`: relative to the checkout where it is in it, else absolute."""
    name, colons, test = argument.partition("::")
    path = (folder / name).resolve()
    inside = path.relative_to(CHECKOUT).as_posix() if path.is_relative_to(CHECKOUT) else str(path)
    return f"{inside}{colons}{test}"
