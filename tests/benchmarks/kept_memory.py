"""What it changes that CPU workers keep the memory they free (`bench.measuring.host_memory`).

    python -m tests.benchmarks.kept_memory [--turns 6] [--cases mnist_cnn:single mnist_cnn:ddp ...]

Turn by turn, alternating which comes first, each case is launched with freed memory kept and with malloc as it is
without that: the quick size, synthetic data, two CPU workers. Printed for each case: the step both ways (10th
percentile of 20 rounds of 100 ms or more), their ratio with its 95 % interval, and how much rounds and launches spread.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bench import strategies
from bench.analysis.intervals import ratio_in_turns
from bench.host import cpu_cores
from bench.measuring.launch import RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.series import percentile_10
from tests.benchmarks.launch_overhead import job_for

CASES = ("mnist_cnn:single", "mnist_cnn:dp", "mnist_cnn:ddp", "mnist_cnn:fsdp", "resnet50:single", "resnet50:ddp",
         "bert_small:single", "bert_small:ddp")  # fmt: skip
PLAN = RoundPlan(rounds=20, round_seconds=0.1, warmup=WarmupRule(least_rounds=4, max_rounds=8, max_seconds=3.0))


@dataclass(frozen=True, slots=True)
class Launches:
    """What the launches of a case gave, one way: each one's step (s) and the spread of its rounds."""

    steps: list[float] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)

    def text(self) -> str:
        launches = statistics.stdev(map(math.log, self.steps))
        step = math.exp(statistics.fmean(map(math.log, self.steps)))
        return (
            f"{1000 * step:.2f} ms, rounds spread by {statistics.fmean(self.spreads):.1%}, launches by {launches:.1%}"
        )


def job_of(case: str) -> Job:
    """`mnist_cnn:ddp`, on two CPU devices, or on one with `single`."""
    workload, _, strategy = case.partition(":")
    job = job_for(workload, strategy)
    return job if strategy != "single" else replace(job, case=replace(job.case, devices=(0,)))


def take(launcher: Launcher, job: Job, into: Launches) -> None:
    """One launch."""
    ranks = strategies.registry.get(job.case.strategy).world_size(job.case)
    result = time_case(launcher, job, ranks, PLAN)
    if result.trace is None:
        raise RuntimeError(f"{job.case}: {result.outcome}")
    rounds = result.trace.round_seconds
    into.steps.append(percentile_10(rounds) / result.trace.steps_per_round)
    into.spreads.append(statistics.stdev(map(math.log, rounds)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=6, metavar="N")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="WORKLOAD:STRATEGY")
    options = parser.parse_args(arguments)
    launcher = Launcher(threads_per_worker=max(1, cpu_cores() // 2))
    found = {(case, kept): Launches() for case in options.cases for kept in (True, False)}
    for turn in range(options.turns):
        for case in options.cases:
            for kept in (True, False) if turn % 2 else (False, True):
                take(launcher, replace(job_of(case), keeps_memory=kept), found[case, kept])
    for case in options.cases:
        kept, given_back = found[case, True], found[case, False]
        ratio = ratio_in_turns(kept.steps, given_back.steps)
        print(f"{case}: kept {kept.text()}; given back {given_back.text()}")
        ends = "too few turns" if ratio.low is None else f"95 % interval {ratio.low:.3f} to {ratio.high:.3f}"
        print(f"    ratio {ratio.value:.3f}, {ends}")


if __name__ == "__main__":
    main()
