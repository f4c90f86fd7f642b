"""`python -m bench`: what can be done beside measuring. Each command is a file of `bench/commands/`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence

from bench.commands import Commands, compare, doctor, export, listing, report, reproduce
from bench.errors import BenchError

EXIT_USAGE = 2
REPORTS_NEED = ("pandas", "pyarrow", "matplotlib", "jinja2")
COMMANDS = (report, compare, export, reproduce, listing, doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: its own, or 2 with the error on stderr."""
    options = _parsed(arguments)
    command: Callable[[argparse.Namespace], int | None] = options.command
    try:
        status = command(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ModuleNotFoundError as error:
        install = f"pip install {' '.join(REPORTS_NEED)}, or " if error.name in REPORTS_NEED else ""
        remedy = f"{install}use the Python that measures, in a checkout .nox/env/bin/python"
        print(f"error: {options.name} needs {error.name}, which this Python does not have; {remedy}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:  # a full disk, or a reader that has gone, such as `head`
        with contextlib.suppress(OSError):
            print(f"error: cannot print: {error}", file=sys.stderr)
        # What is still buffered would fail again, with a traceback, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_USAGE
    return status or 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command. What no command knows is told with the usage of the one that was named."""
    parser, commands = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices[options.name].error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _parser() -> tuple[argparse.ArgumentParser, Commands]:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Which data-parallel strategy, for this model on this machine, and how sure are we?",
        epilog="Measuring itself is `python -m pytest scenarios` with this Python, or `nox -s bench`; "
        "`python -m pytest scenarios --help` lists its options under 'dpbench'.",
    )
    commands = parser.add_subparsers(dest="name", title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
