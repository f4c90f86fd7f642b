"""The options of a run written as arguments again, so that the same can be asked for another time, elsewhere.

The inverse of `bench.planning.cli`: what is declared there is written here, and nothing else has
to be listed. What only says where things go (`PLACES`), and a dry run, are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from bench.errors import UsageError
from bench.planning.cli import add_options, read_options
from bench.planning.options import RunOptions
from bench.planning.plan import Plan

PLACES = frozenset({"run_id", "results", "reports"})
NOT_ASKED = PLACES | {"dry_run"}
FIELDS = {"workload": "own_workloads"}
"""Options whose field has another name than theirs."""
# pytest's own options that select among the cases, by their place in its configuration.
SELECTING = {"-k": "keyword", "-m": "markexpr", "--deselect": "deselect"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run was asked for. `scenarios`: files, folders or tests; `selection`: as pytest takes it.

    `left_out`: arguments that are none of these.
    """

    scenarios: tuple[str, ...] = ()
    selection: tuple[str, ...] = ()
    options: RunOptions
    left_out: tuple[str, ...] = ()

    def arguments(self) -> tuple[str, ...]:
        """What follows `python -m pytest`."""
        return (*self.scenarios, *self.selection, *arguments(self.options))


def arguments(options: RunOptions) -> tuple[str, ...]:
    """Every option that was given and decides on the cases or on how they are measured, as `--name=value`."""
    parser = _Parser(add_help=False)
    add_options(parser)
    return tuple(text for action in parser._actions for text in _written(action, options))


def _written(action: argparse.Action, options: RunOptions) -> Iterator[str]:
    field = FIELDS.get(action.dest, action.dest)
    value, name = getattr(options, field), action.option_strings[0]
    if field in NOT_ASKED or value is None:
        return
    if action.nargs == 0:
        yield from [name] if value else []
    else:
        # One word, so that a value may begin with a dash.
        yield from (f"{name}={item}" for item in (value if isinstance(value, tuple) else (value,)))


def resolved(plan: Plan) -> RunOptions:
    """A plan's options with what they left to this machine and to the preset, as far as it can be named.

    Strategies, workloads and sweeps stay as they were typed: a scenario may have those of its own.
    """
    return replace(
        plan.options,
        preset=plan.preset.name,
        device_type=plan.machine.device_type,
        devices=listed(plan.devices),
        launches=plan.launches,
    )


def listed(devices: Sequence[int]) -> str:
    """Ordinals as `--devices` takes a list; a single one has a comma, or it would be a number of devices."""
    return ",".join(map(str, devices)) + ("," if len(devices) == 1 else "")


def read_arguments(given: Sequence[str], checkout: Path) -> Asked:
    """What a run was asked for, from its arguments or from what was typed.

    UsageError where an option has a value that it cannot have. `checkout`: that of relative scenarios.
    """
    found, rest = _parser().parse_known_args(list(given))
    scenarios = [text for text in rest if is_scenario(text, checkout)]
    return Asked(
        scenarios=tuple(scenarios),
        selection=selection_of(found),
        options=replace(read_options(found), **_unplaced()),
        left_out=tuple(text for text in rest if text not in scenarios),
    )


def selection_of(parsed: Any) -> tuple[str, ...]:
    """pytest's own selection among the cases, as it takes it."""
    words: list[str] = []
    for name, place in SELECTING.items():
        value = getattr(parsed, place)
        words += [f"{name}={item}" for item in value] if isinstance(value, list) else [name, value] if value else []
    return tuple(words)


def is_scenario(text: str, checkout: Path) -> bool:
    """Whether an argument names tests that are here: a folder, a Python file, or one test in it."""
    path = checkout / text.partition("::")[0]
    return not text.startswith("-") and (path.is_dir() or (path.suffix == ".py" and path.is_file()))


def _unplaced() -> dict[str, Any]:
    return {field.name: field.default for field in fields(RunOptions) if field.name in NOT_ASKED}


class _Parser(argparse.ArgumentParser):
    """A bad value is a UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"these arguments cannot be asked for again: {message}")


def _parser() -> _Parser:
    """The declared options, and pytest's selecting ones."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_options(parser)
    for name, place in SELECTING.items():
        parser.add_argument(name, dest=place, action="append" if name.startswith("--") else "store")
    return parser
