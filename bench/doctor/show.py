"""Findings for a person and for a program."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import bench
from bench.doctor.examine import examine
from bench.doctor.findings import AREAS, STATUSES, Finding
from bench.errors import UsageError

SCHEMA_VERSION = 1
STYLES = {"problem": "bold red", "warning": "yellow", "info": "cyan", "ok": "green"}


def run(results: Path, *, as_json: bool) -> None:
    """Examine this machine and print what was found; with `as_json` one JSON document and nothing else on stdout.

    Raises UsageError where rich, which draws the table, is not installed.
    """
    if as_json:
        with _stdout_kept_clean():
            found = examine(results)
        print(to_json(found))
        return
    try:
        import rich  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            "the table needs rich, which this Python does not have; pip install rich, or use --json"
        ) from error
    with _stdout_kept_clean():
        found = examine(results)
    print_findings(found)


@contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """What libraries print to stdout while the block runs, C libraries and started processes too, goes to stderr."""
    if sys.stdout is None:  # it was closed before this process began: there is nowhere to print to
        raise UsageError("standard output is closed; give it somewhere to go")
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def to_json(found: Sequence[Finding]) -> str:
    """One document: schema_version, dpbench_version, checked_at (UTC), counts by status, findings."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "dpbench_version": bench.__version__,
        "checked_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "counts": _counts(found),
        "findings": [asdict(finding) for finding in found],
    }
    return json.dumps(document, indent=2)


def _counts(found: Sequence[Finding]) -> dict[str, int]:
    return {status: sum(finding.status == status for finding in found) for status in STATUSES}


def print_findings(found: Sequence[Finding], width: int | None = None) -> None:
    """By area, the worst first; then how many of each kind, and where. `width` None: that of the terminal."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if isinstance(sys.stdout, io.TextIOWrapper):
        # A GPU's name or a variable may hold what the terminal's encoding has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    console = Console(width=width, highlight=False)
    for area in AREAS:
        table = Table.grid(padding=(0, 1))
        table.add_column(width=max(map(len, STATUSES)), no_wrap=True)
        table.add_column(overflow="fold")
        for finding in (finding for finding in found if finding.area == area):
            fact = f"\n{finding.fact}" if "\n" in finding.fact else finding.fact
            mark = Text(finding.status, style=STYLES[finding.status])
            table.add_row(mark, Text.assemble((f"{finding.title}: ", "bold"), printable(fact)))
            for name, text in (("effect", finding.effect), ("remedy", finding.remedy)):
                if text is not None:
                    table.add_row("", Padding(Text(printable(f"{name}: {text}")), (0, 0, 0, 2)))
        if table.row_count:
            console.print(Text(area, style="bold underline"), table, Text(), sep="\n")
    counts = ", ".join(f"{count} {status}" for status, count in _counts(found).items())
    console.print(Text(f"{len(found)} findings: {counts}", style="bold"))
    for status in STATUSES[:2]:
        titles = dict.fromkeys(f"{finding.area}/{finding.title}" for finding in found if finding.status == status)
        if titles:
            console.print(Text(f"{status}: {', '.join(titles)}", style=STYLES[status]))


def printable(text: str) -> str:
    """The text without what would steer the terminal: names of programs and variables come from others."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)
