"""The commands of `python -m bench`, one file each: `add(commands)` declares it, `run(options)` does it.

`run` returns the exit status, None for 0. It imports what it needs, so that a report needs no torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


def add_results(parser: argparse.ArgumentParser) -> None:
    """The option that says where the runs lie."""
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="folder of the runs (default: results)"
    )
