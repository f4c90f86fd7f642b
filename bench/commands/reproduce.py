"""`python -m bench reproduce`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.commands import Commands, add_results


def add(commands: Commands) -> None:
    parser = commands.add_parser("reproduce", help="measure a run's cases again, here", description=run.__doc__)
    parser.add_argument("run", metavar="RUN", help="run id, folder, or latest")
    add_results(parser)
    parser.add_argument(
        "--reports", type=Path, default=Path("reports"), metavar="DIR", help="where the page goes (default: reports)"
    )
    parser.add_argument(
        "--print-only",
        "--dry-run",
        action="store_true",
        help="say how this environment differs, and the command line; measure nothing",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Say how this environment differs from a run's, then measure the same cases again with the same seeds and options.

    The new run lies beside the old ones. The exit status is pytest's.
    """
    from bench.running.reproducing import reproduce

    return reproduce(options.results, options.run, options.reports, print_only=options.print_only)
