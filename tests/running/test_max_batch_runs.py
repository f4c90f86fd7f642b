"""The search for the largest batch in a real run: it finds a limit that is known before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.analysis.largest import largest_summaries
from bench.analysis.summary import OWN_LARGEST, summarise
from bench.recording.reader import RunData, read_run
from tests.measuring.known_memory import SAMPLE_BYTES

ROOT = Path(__file__).resolve().parents[2]
FILE = "tests/measuring/known_memory.py:KnownMemory"
# Seven samples of 32 MiB are more than the limit by themselves; six leave 28 MiB for threads, oneDNN, gloo, batches.
FITS = 6
LIMIT_MEBIBYTES = FITS * SAMPLE_BYTES // 2**20 + 28


def run(folder: Path, arguments: Sequence[str]) -> tuple[int, str]:
    places = ("--results", str(folder / "results"), "--reports", str(folder / "reports"), "--run-id", "found")
    words = [sys.executable, "-m", "pytest", "scenarios/test_max_batch.py", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, "--device-type", "cpu", "--launches", "1", "--rounds", "2", *places, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunData, str]:
    folder = tmp_path_factory.mktemp("found")
    status, said = run(
        folder, ["--workload", FILE, "--strategies", "single,ddp", "--memory-limit", f"{LIMIT_MEBIBYTES}MiB"]
    )
    assert status == 0, said
    return read_run(folder / "results" / "found"), said


@pytest.mark.slow
def test_the_search_finds_a_limit_that_is_known_before(found: tuple[RunData, str]) -> None:
    data, said = found
    (summary,) = largest_summaries(data, summarise(data))
    rows = {row.strategy: row for row in summary.rows}
    assert {name: row.largest for name, row in rows.items()} == {"single": FITS, "ddp": 2 * FITS}, said
    assert all(row.exact and row.confirmed for row in rows.values())
    assert rows["ddp"].too_large == 2 * FITS + 2
    assert summary.memory_limit_bytes == LIMIT_MEBIBYTES * 2**20


@pytest.mark.slow
def test_probes_are_rows_of_their_own_and_each_is_timed_at_its_largest(found: tuple[RunData, str]) -> None:
    data, said = found
    probes = [launch for launch in data.launches if launch.purpose == "search"]
    assert {launch.status for launch in probes} == {"ok", "oom"}
    assert all(launch.case_id.endswith("-search") and launch.search == "max_batch-known_memory" for launch in probes)
    assert not set(data.estimates["case_id"]) & {launch.case_id for launch in probes}
    (summary,) = summarise(data)
    timed = {row.result.axes.strategy: row for row in summary.rows if row.result.status == "ok"}
    assert set(timed) == {"single", "ddp"} and {row.excluded for row in timed.values()} == {OWN_LARGEST}
    assert "known_memory: the largest batch of each strategy" in said and "largest global batch" in said


@pytest.mark.slow
def test_without_a_limit_a_cpu_run_is_skipped_with_the_remedy(tmp_path: Path) -> None:
    status, said = run(tmp_path, ["--workloads", "mnist_cnn", "--strategies", "ddp", "-k", "largest_batch"])
    assert status == 0 and "give each worker a limit, e.g. --memory-limit" in said
    data = read_run(tmp_path / "results" / "found")
    assert [(row.purpose, row.status) for row in data.launches] == [("search", "skipped")]
    page = (tmp_path / "reports" / "found.html").read_text()
    assert "is not looked for without" in page
