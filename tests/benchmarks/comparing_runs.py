"""How long `compare` takes over many runs, and how much memory.

    python -m tests.benchmarks.comparing_runs [--runs 100 300 1000] [--launches 100]

For each number of runs it writes that many made-up runs (real files, one case per 6 launches, 10 rounds a launch, 30
figures a launch, and a timeline), then calls the command in a process of its own: the newest against a window of all
others. Printed is the wall time and the peak resident memory of that process, and both per run.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq

from bench.recording.columns import arrow_table
from bench.recording.writer import RunWriter
from bench.schema import Estimate, Sample
from tests.recording.made_up import METRICS, START, made_case, made_launch, made_run, sample, timeline

LAUNCHES_PER_CASE = 6
DEVICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What comparing with a window of `runs` runs took."""

    runs: int
    seconds: float
    peak_bytes: int
    stored_bytes: int


def write_runs(results: Path, runs: int, launches: int) -> None:
    """`runs` runs of `launches` launches. They share their launches and samples; estimates differ by noise of 1 %."""
    first = _write_one(results, launches)
    estimates = pq.read_table(first / "estimates.parquet").to_pylist()
    noise = random.Random(0)
    for number in range(1, runs):
        run_id = f"night{number:04d}"
        folder = Path(shutil.copytree(first, results / run_id))
        run = made_run(run_id=run_id, started_at=START + timedelta(days=number), finished_at=START)
        pq.write_table(arrow_table("run", [run], metrics=METRICS, file=folder), folder / "run.parquet")
        rows = [_moved(row, run_id, noise.lognormvariate(0, 0.01)) for row in estimates]
        pq.write_table(arrow_table("estimates", rows, metrics=METRICS, file=folder), folder / "estimates.parquet")


def _moved(row: dict[str, object], run_id: str, factor: float) -> Estimate:
    found = Estimate(**row)  # type: ignore[arg-type]
    ends = {name: getattr(found, name) for name in ("value", "low", "high")}
    moved = {name: None if end is None else end * factor for name, end in ends.items()}
    return replace(found, run_id=run_id, **moved)  # type: ignore[arg-type]


def _write_one(results: Path, launches: int) -> Path:
    from bench.analysis.estimates import estimate
    from bench.recording.reader import read_run

    writer = RunWriter(results, made_run(run_id="night0000"), METRICS)
    noise = random.Random(1)
    for position in range(launches):
        number, index = divmod(position, LAUNCHES_PER_CASE)
        launch = made_launch(made_case("ddp", DEVICES, 64 * (number + 1)), index, position, run_id="night0000")
        writer.add(launch, _samples(launch, noise), timeline(launch, seconds=1.0))
    data = read_run(writer.folder)
    writer.finish(estimate(data.samples, data.launches, METRICS), START)
    return writer.folder


def _samples(launch: object, noise: random.Random) -> list[Sample]:
    step = noise.lognormvariate(-3.0, 0.01)
    found = []
    for index in range(10):
        found.append(sample(launch, "step_seconds", step, round_index=index))  # type: ignore[arg-type]
        found.append(sample(launch, "samples_per_second", 64 / step, round_index=index))  # type: ignore[arg-type]
    found.append(sample(launch, "step_p10_seconds", step))  # type: ignore[arg-type]
    for name in ("peak_allocated_bytes", "utilization_percent"):
        found += [sample(launch, name, 50.0, device_index=index) for index in range(DEVICES)]  # type: ignore[arg-type]
    return found


def cost_of(results: Path, runs: int) -> Cost:
    """Compare the newest of the runs in `results` with all others, in a process of its own."""
    command = [sys.executable, "-m", "bench", "compare", f"last:{runs}", "latest", "--results", str(results)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 10):
        raise RuntimeError(f"compare ended with {done.returncode}: {done.stderr}{done.stdout[-2000:]}")
    # The largest of the children so far: sizes have to grow from call to call.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    stored = sum(path.stat().st_size for path in results.rglob("*.parquet"))
    return Cost(runs=runs, seconds=seconds, peak_bytes=peak, stored_bytes=stored)


def measure(sizes: Sequence[int], launches: int) -> list[Cost]:
    """The cost at each number of runs, the smallest first."""
    found = []
    for runs in sorted(sizes):
        with tempfile.TemporaryDirectory(prefix="dpbench-compare-") as folder:
            write_runs(Path(folder), runs, launches)
            found.append(cost_of(Path(folder), runs))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 300, 1000], metavar="N")
    parser.add_argument("--launches", type=int, default=100, metavar="N")
    options = parser.parse_args(arguments)
    print(f"{options.launches} launches a run, {options.launches // LAUNCHES_PER_CASE + 1} cases")
    for cost in measure(options.runs, options.launches):
        print(
            f"{cost.runs:5d} runs  {cost.seconds:6.2f} s  {1000 * cost.seconds / cost.runs:5.1f} ms a run  "
            f"peak {cost.peak_bytes / 2**20:5.0f} MiB  ({cost.stored_bytes / 2**20:.0f} MiB on the disk)"
        )


if __name__ == "__main__":
    main()
