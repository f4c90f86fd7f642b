"""How often the gate cries wolf over identical code, and how often it finds a real slowdown.

    python -m tests.benchmarks.false_alarms measure FILE.parquet [--turns 240]
    python -m tests.benchmarks.false_alarms judge FILE.parquet

`measure` takes launches as a run does: turn by turn, each turn every case once in a seeded random order, two CPU
workers, 20 rounds of 50 ms. Five cases are the same code throughout; six more are two of them with a busy-wait
of 3, 5 and 10 % of their step in the forward. Every launch's rounds go into FILE.

`judge` (tests/benchmarks/false_alarms_judged.py) cuts the turns into runs and judges each against earlier ones.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from bench import strategies, workloads
from bench.host import cpu_cores
from bench.measuring.launch import RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.metrics.machine_pace_seconds import machine_pace_seconds
from bench.series import percentile_10
from tests.benchmarks.false_alarms_judged import IDENTICAL, SHARES, SLOWED, STRATEGIES, judge, read, slowed_name
from tests.benchmarks.launch_overhead import job_for

# Shorter than a preset's, so that 130 turns take an hour.
PLAN = RoundPlan(rounds=20, round_seconds=0.05, warmup=WarmupRule(least_rounds=4, max_rounds=8, max_seconds=1.0))

BATCH = 16


def jobs(folder: Path, step_seconds: Mapping[str, float]) -> dict[str, Job]:
    """Every case by name; the slowed ones spin for a share of their case's `step_seconds`."""
    found = {name: _job(strategy) for name, strategy in IDENTICAL.items()}
    for case in SLOWED:
        for share in SHARES:
            name = f"Slowed{STRATEGIES[case].title()}{share * 100:.0f}"
            file = folder / f"{name}.py"
            file.write_text(
                "from tests.benchmarks.slowed import SlowedCnn\n"
                f"class {name}(SlowedCnn):\n    '''slowed'''\n    spin_seconds = {share * step_seconds[case]!r}\n"
            )
            address, job = f"{file}:{name}", found[case]
            slowed = replace(job.case, workload=workloads.find(address).name)
            found[slowed_name(case, share)] = replace(job, case=slowed, address=address)
    return found


def _job(strategy: str) -> Job:
    job = job_for("mnist_cnn", strategy)
    return replace(
        job, case=replace(job.case, devices=(0,) if strategy == "single" else (0, 1), global_batch_size=BATCH)
    )


def _usual_step(launcher: Launcher, strategy: str) -> float:
    """Seconds a step of five launches, the median."""
    return median(percentile_10(_take(launcher, _job(strategy))[0]) for _ in range(5))


def measure(file: Path, turns: int) -> None:
    """Write the rounds of `turns` launches of every case."""
    launcher = Launcher(threads_per_worker=max(1, cpu_cores() // 2))
    with tempfile.TemporaryDirectory(prefix="dpbench-alarms-") as folder:
        step_seconds = {name: _usual_step(launcher, STRATEGIES[name]) for name in SLOWED}
        print(*(f"a step of {name} takes {1000 * step:.2f} ms" for name, step in step_seconds.items()), sep="; ")
        cases = jobs(Path(folder), step_seconds)
        order, rows, started = random.Random(0), [], time.perf_counter()
        for turn in range(turns):
            names = list(cases)
            order.shuffle(names)
            for name in names:
                steps, pace = _take(launcher, cases[name])
                rows.append(
                    {
                        "case": name,
                        "turn": turn,
                        "elapsed": time.perf_counter() - started,
                        "step_seconds": steps,
                        "pace_seconds": pace,
                    }
                )
            if turn % 10 == 9:
                print(f"turn {turn + 1} of {turns}, {time.perf_counter() - started:.0f} s", flush=True)
                pq.write_table(pa.Table.from_pylist(rows), file)
    pq.write_table(pa.Table.from_pylist(rows), file)


def _take(launcher: Launcher, job: Job) -> tuple[list[float], float]:
    """Seconds a step, round by round, of one launch, and the machine's pace beside them."""
    ranks = strategies.registry.get(job.case.strategy).world_size(job.case)
    result = time_case(launcher, job, ranks, PLAN)
    if result.trace is None:
        raise RuntimeError(f"{job.case}: {result.outcome}")
    (pace,) = machine_pace_seconds(result.trace)
    assert pace.value is not None
    return [seconds / result.trace.steps_per_round for seconds in result.trace.round_seconds], pace.value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "judge"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--turns", type=int, default=240, metavar="N")
    parser.add_argument("--launches", type=int, nargs="+", default=[6, 12, 24], metavar="N")
    options = parser.parse_args(arguments)
    if options.what == "measure":
        measure(options.file, options.turns)
    else:
        judge(read(options.file), options.launches)


if __name__ == "__main__":
    main()
