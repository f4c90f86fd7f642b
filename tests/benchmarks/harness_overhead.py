"""Does the harness cost the measured step anything? Its DDP step against a bare loop, alternated.

    python -m tests.benchmarks.harness_overhead [--pairs 60] [--steps 2] [--workload mnist_cnn]

Two gloo workers hold two copies of the model: one trained by the suite's own rounds, one by a loop
written by hand below. Rounds of both alternate in the same processes, in the order ABBA, so that
drift hits both alike; a round lasts as long as its slowest rank. Printed is the geometric mean of
the paired ratios with its 95 % interval (Student's t on logarithms).
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass
from itertools import cycle

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench import strategies, workloads
from bench.analysis.intervals import mean_interval
from bench.host import cpu_cores
from bench.measuring.batches import StepBatch, make_batches
from bench.measuring.control import Channel, Plain
from bench.measuring.launcher import Launcher
from bench.measuring.place import training_place
from bench.measuring.step import Trainer
from bench.measuring.tasks import ROTATING_BATCHES, Job, Rounds
from tests.benchmarks.launch_overhead import job_for

WARMUP_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedJob:
    """How many pairs of rounds, of how many steps each."""

    job: Job
    pairs: int
    steps: int


class BareLoop:
    """A DDP step as one would write it by hand for this workload: no harness, no classes, no options."""

    def __init__(self, job: Job, batches: list[StepBatch]) -> None:
        torch.manual_seed(job.seed)
        self.workload = workloads.registry.get(job.case.workload)("quick")
        self.model = DistributedDataParallel(self.workload.build().train(), gradient_as_bucket_view=True)
        self.optimizer = self.workload.optimizer(self.model.parameters())
        self.batches = cycle([(step.micro_batches[0], step.weight) for step in batches])

    def run(self, steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            (args, kwargs, targets), weight = next(self.batches)
            self.optimizer.zero_grad(set_to_none=True)
            loss, _ = self.workload.loss(self.model(*args, **kwargs), targets)
            (loss * (2 / weight)).backward()
            self.optimizer.step()
        return time.perf_counter() - started


def alternate(paired: PairedJob, channel: Channel) -> None:
    """Worker task: time both kinds of rounds in turn and reply with all durations."""
    job, strategy = paired.job, strategies.registry.get("ddp")
    workload = workloads.registry.get(job.case.workload)("quick")
    with training_place(job.case, job.backend, channel, job.timeout_seconds) as place:
        batches = make_batches(
            workload, strategy, job.case, job.source, rank=channel.rank, seed=job.seed, count=ROTATING_BATCHES
        )
        trainer = Trainer(
            workload=workload, strategy=strategy, case=job.case, devices=place.devices, mesh=place.mesh, seed=job.seed
        )
        runners = {"suite": Rounds(trainer, batches, place), "bare": BareLoop(job, batches)}
        channel.reply({})
        for runner in runners.values():
            runner.run(WARMUP_STEPS)
        seconds: dict[str, list[Plain]] = {name: [] for name in runners}
        for pair in range(paired.pairs):
            for name in ("suite", "bare") if pair % 2 == 0 else ("bare", "suite"):
                dist.barrier()
                seconds[name].append(runners[name].run(paired.steps))
        channel.reply({name: values for name, values in seconds.items()})


def main() -> None:
    """Print the ratio of the suite's step to the bare one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--workload", default="mnist_cnn", choices=workloads.registry.names())
    options = parser.parse_args()
    paired = PairedJob(job=job_for(options.workload), pairs=options.pairs, steps=options.steps)
    launcher = Launcher(threads_per_worker=max(1, cpu_cores() // 2))
    with launcher.start(alternate, paired, 2, 1800) as session:
        session.replies()
        replies = session.replies()
    first, second = replies
    suite, bare = ([max(pair) for pair in zip(first[name], second[name], strict=True)] for name in ("suite", "bare"))
    ratios = [ours / theirs for ours, theirs in zip(suite, bare, strict=True)]
    ratio = mean_interval(ratios)
    assert ratio.low is not None and ratio.high is not None
    spread = statistics.stdev(math.log(value) for value in ratios)
    print(f"{options.workload}, ddp, 2 workers, {len(ratios)} pairs of {options.steps} steps, {cpu_cores()} cores")
    print(f"suite  median {statistics.median(suite) / options.steps * 1e3:.2f} ms a step")
    print(f"bare   median {statistics.median(bare) / options.steps * 1e3:.2f} ms a step")
    print(
        f"ratio  {ratio.value:.4f}, 95 % interval {ratio.low:.4f} to {ratio.high:.4f}; a pair spreads by {spread:.1%}"
    )


if __name__ == "__main__":
    main()
