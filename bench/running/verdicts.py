"""The verdict of a scenario's test on what its launches recorded: a result, or a failure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.schema import Launch

GOOD = ("ok", "oom")
XDIST_REFUSAL = (
    "launches must run one at a time, since each uses every device and core: run the scenarios without "
    "pytest-xdist (leave out -n, or add -p no:xdist)"
)


def conclude(row: Launch) -> None:
    """Of one launch: skipped and oom are results, an error or a timeout is a failure."""
    if row.status == "oom":
        pytest.skip(f"out of memory (recorded): {row.reason}")
    if row.status == "skipped":
        pytest.skip(row.reason or "skipped")
    if row.status != "ok":
        pytest.fail("\n".join(filter(None, [_failed(row), row.traceback])), pytrace=False)


def conclude_search(rows: Sequence[Launch]) -> None:
    """Of a whole search: it fails where a launch ended as an error or a timeout, and is skipped where nothing ran."""
    failed = [row for row in rows if row.status not in (*GOOD, "skipped")]
    if failed:
        said = [f"{row.case_id}: {_failed(row)}" for row in failed]
        pytest.fail("\n".join(filter(None, [*said, failed[0].traceback])), pytrace=False)
    if not any(row.status in GOOD for row in rows):
        reasons = dict.fromkeys(row.reason or "skipped" for row in rows)
        pytest.skip("; ".join(reasons) or "it asked for no launch")


def _failed(row: Launch) -> str:
    where = f" (rank {row.rank}, {row.phase})" if row.rank is not None else ""
    return f"{row.status}{where}: {row.reason}"
