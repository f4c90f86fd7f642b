"""This suite's DDP step against a loop by hand, Hugging Face Accelerate's and Lightning Fabric's, alternated.

    pip install accelerate lightning-fabric
    python -m tests.benchmarks.other_loops [--workload mnist_cnn] [--launches 8] [--turns 32] [--steps 2]
                                           [--settings own] [--global-batch-size N]

Each launch is a fresh pair of gloo workers on the CPU, one thread each, that holds the model four times, each trained
by one of the loops (`four_loops.py`): the quick size, synthetic data, the same batches from host memory. First every
loop trains the same few batches; where losses, gradients or weights differ from those of the loop by hand, nothing is
compared. Then turn by turn each runs a round of steps, in the orders of a balanced Latin square (Williams, Australian
Journal of Scientific Research A 2, 1949), so that none is always after the same other one. A round lasts as long as its
slowest rank. A launch's ratio is the median over its turns; printed is the geometric mean over launches of each
loop's time over the suite's, with its 95 % interval (Student's t on logarithms): above 1 the suite is faster.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import cycle

import torch
import torch.distributed as dist

from bench import levers, strategies, workloads
from bench.analysis.intervals import Interval, mean_interval
from bench.errors import BenchError
from bench.host import cpu_cores
from bench.measuring.batches import StepBatch, make_batches
from bench.measuring.control import Channel, Message, Plain
from bench.measuring.host_memory import keep_freed_memory
from bench.measuring.launcher import Launcher
from bench.measuring.place import training_place
from bench.measuring.tasks import ROTATING_BATCHES, Job
from bench.schema import PARITY_LIMIT
from tests.benchmarks.four_loops import (
    BY_HAND,
    MAKERS,
    PACKAGES,
    SUITE,
    Loop,
    Setup,
    apart,
    set_environment,
    settings,
    trained,
)
from tests.benchmarks.launch_overhead import job_for

RANKS, THREADS = 2, 1
WARMUP_ROUNDS = 2
LIMIT_SECONDS = 3600.0
ORDERS = ((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))
"""Each of four is once in each place, and once just after each other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopsJob:
    """What a launch does. names: the loops as they are built, in turn; alike: all with the suite's settings."""

    job: Job
    names: tuple[str, ...]
    turns: int
    steps: int
    alike: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a launch said of each loop: its settings, how far it trains from the one by hand, its rounds (s)."""

    settings: dict[str, str]
    apart: dict[str, dict[str, float]]
    rounds: dict[str, list[float]]


def missing() -> str | None:
    """Which packages are not installed and how to get them, None where all are."""
    names = [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if not names:
        return None
    return f"{' and '.join(names)} not installed, whose loops this compares with; pip install {' '.join(names)}"


def alternate(job: LoopsJob, channel: Channel) -> None:
    """Worker task: reply with settings and distances of the loops, then with the seconds of their rounds."""
    case = job.job.case
    keep_freed_memory()
    levers.set_float32_precision(case.precision)
    set_environment(channel.rank, RANKS, THREADS)
    with training_place(case, job.job.backend, channel, job.job.timeout_seconds) as place:
        workload, strategy = job.job.workload(), strategies.registry.get(case.strategy)
        batches = make_batches(
            workload, strategy, case, job.job.source, rank=channel.rank, seed=job.job.seed, count=ROTATING_BATCHES
        )
        setup = Setup(workload=workload, case=case, place=place, seed=job.job.seed, alike=job.alike)
        loops = {name: MAKERS[name](setup) for name in job.names}
        if torch.get_num_threads() != THREADS:
            raise BenchError(
                f"a library changed the number of threads to {torch.get_num_threads()}; all have {THREADS}"
            )
        said: dict[str, Plain] = {name: settings(loop.module) for name, loop in loops.items()}
        channel.reply({"settings": said, "apart": check(loops, batches, job.job.seed + channel.rank)})
        gc.collect()  # what the check held
        seconds: dict[str, Plain] = {name: list(values) for name, values in time_rounds(job, loops, batches).items()}
        channel.reply(seconds)


def check(loops: Mapping[str, Loop], batches: Sequence[StepBatch], seed: int) -> dict[str, Plain]:
    """How far each loop's training is from that of the loop by hand."""
    reference = trained(loops[BY_HAND], batches, seed)
    others = [name for name in loops if name != BY_HAND]
    return {name: {**apart(trained(loops[name], batches, seed), reference)} for name in sorted(others)}


def time_rounds(job: LoopsJob, loops: Mapping[str, Loop], batches: Sequence[StepBatch]) -> dict[str, list[float]]:
    """Seconds of each loop's rounds, turn by turn, on this rank."""
    names, turning = list(MAKERS), {name: cycle(batches) for name in loops}
    found: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(-WARMUP_ROUNDS, job.turns):
        for place in ORDERS[turn % len(ORDERS)]:
            name = names[place]
            step, mine = loops[name].step, turning[name]
            dist.barrier()
            started = time.perf_counter()
            for _ in range(job.steps):
                step(next(mine))
            seconds = time.perf_counter() - started
            if turn >= 0:
                found[name].append(seconds)
    return found


def launch_of(first: Sequence[Message], second: Sequence[Message]) -> Launch:
    """The ranks' replies together: the worst rank's distance, the slowest rank's time."""
    distances: list[dict[str, dict[str, float]]] = [reply["apart"] for reply in first]  # type: ignore[misc]
    rounds: list[dict[str, list[float]]] = [dict(reply) for reply in second]  # type: ignore[arg-type]
    worst = {
        name: {part: _worst([of[name][part] for of in distances]) for part in parts}
        for name, parts in distances[0].items()
    }
    slowest = {name: [max(ranks) for ranks in zip(*(of[name] for of in rounds), strict=True)] for name in rounds[0]}
    return Launch(settings=first[0]["settings"], apart=worst, rounds=slowest)  # type: ignore[arg-type]


def _worst(values: Sequence[float]) -> float:
    """The largest; one that is not a number is none that could be compared."""
    return max(value if value == value else float("inf") for value in values)


def refuse_different_work(distances: Mapping[str, Mapping[str, float]]) -> None:
    """BenchError where a loop does not train what the loop by hand trains."""
    for name, parts in distances.items():
        far = {part: _worst([value]) for part, value in parts.items() if not value <= PARITY_LIMIT}
        if far:
            said = ", ".join(f"{part} by {value:.1e}" for part, value in far.items())
            raise BenchError(
                f"{name} does not train what the loop by hand trains: {said} apart, above {PARITY_LIMIT:g}; "
                "times of different work are not compared"
            )


def ratio_to_suite(launches: Sequence[Launch], name: str) -> Interval:
    """A loop's time over the suite's: the median over the turns of each launch, their mean over launches."""
    ratios = []
    for launch in launches:
        pairs = zip(launch.rounds[name], launch.rounds[SUITE], strict=True)
        ratios.append(statistics.median(theirs / ours for theirs, ours in pairs))
    return mean_interval(ratios)


def summary(launches: Sequence[Launch], steps: int) -> str:
    """A line for the check, the settings and the step of each loop, and each ratio."""
    distance = max(value for launch in launches for parts in launch.apart.values() for value in parts.values())
    lines = [f"trained alike  losses, gradients and weights apart by at most {distance:.1e} (limit {PARITY_LIMIT:g})"]
    lines += [f"{name:<11} {launches[0].settings[name]}" for name in MAKERS]
    for name in MAKERS:
        step = mean_interval([statistics.median(launch.rounds[name]) / steps for launch in launches])
        lines.append(f"{name:<11} {step.value * 1e3:.2f} ms a step")
    for name in MAKERS:
        if name != SUITE:
            ratio = ratio_to_suite(launches, name)
            between = "too few launches for an interval"
            if ratio.low is not None and ratio.high is not None:
                between = f"95 % interval {ratio.low:.4f} to {ratio.high:.4f}"
            lines.append(f"{name:<11} / suite  ratio {ratio.value:.4f}, {between}")
    return "\n".join(lines)


def run(launcher: Launcher, job: LoopsJob) -> Launch:
    """One launch; BenchError before anything is timed where the loops do not train alike."""
    with launcher.start(alternate, job, RANKS, LIMIT_SECONDS) as session:
        first = session.replies()
        distances: list[dict[str, dict[str, float]]] = [reply["apart"] for reply in first]  # type: ignore[misc]
        for of_rank in distances:
            refuse_different_work(of_rank)
        return launch_of(first, session.replies())


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="mnist_cnn", choices=workloads.registry.names())
    parser.add_argument("--launches", type=int, default=8, metavar="N", help="pairs of workers")
    parser.add_argument("--turns", type=int, default=32, metavar="N", help="rounds of each loop in a launch")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="steps of a round")
    parser.add_argument(
        "--settings", default="own", choices=["own", "suite"],
        help="of DDP: each library's own defaults, or the suite's for all, which compares what is around DDP",
    )  # fmt: skip
    parser.add_argument(
        "--global-batch-size", type=int, metavar="N",
        help="samples of a step (default: the quick size's); the fewer, the more shows of what is around the model",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.global_batch_size is not None and (options.global_batch_size < 1 or options.global_batch_size % RANKS):
        parser.error(f"--global-batch-size {options.global_batch_size} is no multiple of {RANKS} from {RANKS}")
    if min(options.launches, options.turns, options.steps) < 1:
        parser.error("--launches, --turns and --steps are whole numbers from 1")
    absent = missing()
    if absent is not None:
        parser.error(absent)
    return options


def job_of(options: argparse.Namespace) -> LoopsJob:
    """What one launch does."""
    job = job_for(options.workload)
    batch = options.global_batch_size or job.case.global_batch_size
    return LoopsJob(
        job=replace(job, case=replace(job.case, global_batch_size=batch)),
        names=tuple(MAKERS),
        turns=options.turns,
        steps=options.steps,
        alike=options.settings == "suite",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what each loop's step takes, over the suite's."""
    options = options_of(arguments)
    job, launches = job_of(options), []
    launcher, load = Launcher(threads_per_worker=THREADS), os.getloadavg()[0]
    for number in range(options.launches):
        first, started = number % len(job.names), time.perf_counter()
        try:
            launches.append(run(launcher, replace(job, names=(*job.names[first:], *job.names[:first]))))
        except BenchError as error:
            sys.exit(str(error))
        print(f"launch {number + 1} of {options.launches}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", *PACKAGES.values()))
    print(f"{job.job.case}, quick, {RANKS} gloo ranks, {THREADS} thread each, {cpu_cores()} cores; {libraries}")
    print(f"launches {len(launches)}, turns {job.turns}, steps a round {job.steps}, settings {options.settings}")
    print(f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    print(summary(launches, job.steps))


if __name__ == "__main__":
    main()
