"""`python -m bench doctor`."""

from __future__ import annotations

import argparse

from bench.commands import Commands, add_results


def add(commands: Commands) -> None:
    parser = commands.add_parser("doctor", help="what this box has, and what would bite", description=run.__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> None:
    """Say what this box has, what would bite a run, and how to mend it. Needs no GPU. Status 0, whatever it finds."""
    from bench.doctor.show import run as examine

    examine(options.results, as_json=options.json)
