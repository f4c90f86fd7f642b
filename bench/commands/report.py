"""`python -m bench report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.commands import Commands, add_results


def add(commands: Commands) -> None:
    parser = commands.add_parser("report", help="render a run as one HTML page", description=run.__doc__)
    parser.add_argument("run", nargs="?", default="latest", metavar="RUN", help="run id, folder, or latest (default)")
    add_results(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("reports"), metavar="DIR", help="where to write (default: reports)"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> None:
    """Rebuild the report of a run from its parquet files and print its path. Needs no GPU and no torch."""
    from bench.recording.reader import find_run
    from bench.reporting.page import render

    print(render(find_run(options.results, options.run), options.out))
