"""What a launch costs besides its rounds, against `torchrun` starting the same two workers.

    python -m tests.benchmarks.launch_overhead [--launches 15] [--torchrun 5] [--workload mnist_cnn]

Overhead of a launch: its wall time less its warm-up and measured rounds; the first launch, which
starts the forkserver, is shown apart. Overhead of torchrun: wall time of a run whose workers build
the same model, join the same kind of process group, wrap it, and leave. Both alternate in one run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import strategies, workloads
from bench.host import cpu_cores
from bench.measuring.launch import LaunchResult, RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.place import backend_for
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.schema import Case

ROOT = Path(__file__).parents[2]
PLAN = RoundPlan(rounds=2, round_seconds=0.01, warmup=WarmupRule(max_rounds=2))


def job_for(workload: str, strategy: str = "ddp") -> Job:
    """The quick size on two CPU workers, synthetic data."""
    declared = workloads.registry.get(workload)("quick")
    assert declared.size.global_batch_size is not None
    case = Case(
        workload=workload,
        strategy=strategy,
        device_type="cpu",
        devices=(0, 1),
        global_batch_size=declared.size.global_batch_size,
        size="quick",
    )
    source = declared.prepare("synthetic", None, Path("unused"))
    backend = backend_for(case, strategies.registry.get(strategy), None)
    return Job(case=case, source=source, seed=0, backend=backend, timeout_seconds=120)


def overhead(result: LaunchResult) -> float:
    """Wall time of a launch less its warm-up and measured rounds (s)."""
    clock = result.clock
    assert result.outcome.status == "ok", result.outcome
    assert clock.wall_seconds is not None and clock.warmup_seconds is not None and clock.measured_seconds is not None
    return clock.wall_seconds - clock.warmup_seconds - clock.measured_seconds


def torchrun_seconds(workload: str) -> float:
    """Wall time of two workers that start under torchrun, get ready to train, and leave (s)."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": str(max(1, cpu_cores() // 2))}
    started = time.perf_counter()
    subprocess.run(
        [*command, "-m", "tests.benchmarks.torchrun_worker", workload],
        check=True,
        cwd=ROOT,
        env=environment,
        capture_output=True,
    )
    return time.perf_counter() - started


def main() -> None:
    """Print both overheads and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=15)
    parser.add_argument("--torchrun", type=int, default=5)
    parser.add_argument("--workload", default="mnist_cnn", choices=workloads.registry.names())
    options = parser.parse_args()
    launcher, job = Launcher(threads_per_worker=max(1, cpu_cores() // 2)), job_for(options.workload)
    first = overhead(time_case(launcher, job, 2, PLAN))
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(options.launches):
        ours.append(overhead(time_case(launcher, job, 2, PLAN)))
        if number < options.torchrun:
            theirs.append(torchrun_seconds(options.workload))
    print(f"{options.workload}, ddp, 2 workers, {cpu_cores()} cores")
    print(f"first launch             {first:.2f} s")
    for name, seconds in (("launch overhead", ours), ("torchrun, same workers", theirs)):
        middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
        print(f"{name:<24} median {middle:.3f} s, {least:.3f} to {most:.3f}, n {len(seconds)}")
    print(f"ratio of medians         {statistics.median(theirs) / statistics.median(ours):.1f}")


if __name__ == "__main__":
    main()
