"""How often the gate cries wolf over identical code, and how often it finds a real slowdown.

    python -m tests.benchmarks.false_alarms measure FILE.parquet [--turns 240]
    python -m tests.benchmarks.false_alarms judge FILE.parquet

`measure` takes launches as a run does: turn by turn, each turn every case once in a seeded random order, two CPU
workers, 10 rounds of 50 ms. Five cases are the same code throughout; three more are one of them with a busy-wait
of 3, 5 and 10 % of its step in the forward. Every launch's rounds go into FILE.

`judge` (tests/benchmarks/false_alarms_judged.py) cuts the turns into runs and judges each against earlier ones.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench import strategies, workloads
from bench.host import cpu_cores
from bench.measuring.launch import RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.metrics.machine_pace_seconds import machine_pace_seconds
from bench.metrics.step_p10_seconds import percentile_10
from tests.benchmarks.false_alarms_judged import IDENTICAL, SHARES, SLOWED, judge, read, slowed_name
from tests.benchmarks.launch_overhead import job_for

# Shorter than the quick preset's, so that 250 turns take an hour: 10 rounds of 50 ms.
PLAN = RoundPlan(rounds=10, round_seconds=0.05, warmup=WarmupRule(least_rounds=4, max_rounds=8, max_seconds=1.0))


def jobs(folder: Path, step_seconds: float) -> dict[str, Job]:
    """Every case by name; the slowed ones spin for a share of `step_seconds`."""
    found = {name: _job(strategy, batch) for name, (strategy, batch) in IDENTICAL.items()}
    lines = ["from tests.benchmarks.slowed import SlowedCnn"]
    for share in SHARES:
        lines += [
            f"class Slowed{share * 100:.0f}(SlowedCnn):",
            f"    '''slowed'''\n    spin_seconds = {share * step_seconds!r}",
        ]
    file = folder / "slowed_cases.py"
    file.write_text("\n".join(lines))
    for share in SHARES:
        address = f"{file}:Slowed{share * 100:.0f}"
        job = found[SLOWED]
        case = replace(job.case, workload=workloads.find(address).name)
        found[slowed_name(share)] = replace(job, case=case, address=address)
    return found


def _job(strategy: str, batch: int) -> Job:
    job = job_for("mnist_cnn", strategy)
    return replace(
        job, case=replace(job.case, devices=(0,) if strategy == "single" else (0, 1), global_batch_size=batch)
    )


def measure(file: Path, turns: int) -> None:
    """Write the rounds of `turns` launches of every case."""
    launcher = Launcher(threads_per_worker=max(1, cpu_cores() // 2))
    with tempfile.TemporaryDirectory(prefix="dpbench-alarms-") as folder:
        first = [_take(launcher, _job(*IDENTICAL[SLOWED])) for _ in range(5)]
        step = min(percentile_10(steps) for steps, _ in first)
        cases = jobs(Path(folder), step)
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
    print(f"a step of {SLOWED} took {1000 * step:.2f} ms; rounds of {PLAN.round_seconds} s or more")


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
