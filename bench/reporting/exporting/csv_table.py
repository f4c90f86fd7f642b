"""The rows of `bench.load` for one run as CSV: a header, then a line a case; unknown is empty, lists are JSON."""

from __future__ import annotations

import json

from bench.analysis.load import case_table
from bench.recording.reader import RunData


def text(data: RunData) -> str:
    """Every timed case with all its columns, SI base units as in the parquet files."""
    table = case_table(data)
    for name in table:
        if any(isinstance(item, list) for item in table[name]):
            table[name] = [json.dumps(item) if isinstance(item, list) else item for item in table[name]]
    made: str = table.to_csv(index=False, lineterminator="\n")
    return made
