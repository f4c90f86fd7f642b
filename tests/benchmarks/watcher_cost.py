"""Does watching cost the measured step anything? Watched rounds against unwatched ones, alternated.

    python -m tests.benchmarks.watcher_cost [--pairs 60] [--round-seconds 1] [--workload mnist_cnn] [--device-type cpu]

One launch of `ddp` trains round after round, on two CPU workers or on every GPU; every other round the watcher reads,
as it does in a run, from just before the round to just after it, in the order ABBA, so that drift
hits both alike. A round lasts as long as its slowest rank. Printed is the geometric mean of the
paired ratios with its 95 % interval (Student's t on logarithms), and the CPU time that the watcher
took for itself, which no noise of the machine hides.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from bench import strategies, workloads
from bench.analysis.intervals import mean_interval
from bench.host import cpu_cores
from bench.measuring.launcher import Launcher, Session
from bench.measuring.machine import Machine, find_machine
from bench.measuring.place import backend_for
from bench.measuring.tasks import Job, measure
from bench.watching.watcher import Watcher
from tests.benchmarks.launch_overhead import job_for

WARMUP_STEPS = 4


def gpu_job(workload: str, machine: Machine) -> Job:
    """The standard size in fp32, one worker for each of the machine's GPUs."""
    job, size = job_for(workload), workloads.registry.get(workload)("standard").size
    batch = size.global_batch_size or (size.batch_per_device or 1) * len(machine.devices)
    devices = tuple(device.index for device in machine.devices)
    case = replace(job.case, device_type="cuda", devices=devices, size="standard", global_batch_size=batch)
    backend = backend_for(case, strategies.registry.get("ddp"), machine.nccl_version)
    return replace(job, case=case, backend=backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Seconds of the rounds, pair by pair, and what the watcher did in those it watched."""

    steps: int
    watched: list[float]
    unwatched: list[float]
    moments: int
    watcher_cpu_seconds: float


def alternate(
    session: Session, watcher: Watcher, ordinals: Sequence[int], *, pairs: int, round_seconds: float
) -> Rounds:
    """Rounds of at least `round_seconds` in turn, watched and not."""
    pids = [process.pid for process in session.processes]

    def timed(phase: str, steps: int) -> float:
        replies = session.command({"op": "round", "steps": steps, "phase": phase})
        return max(float(reply["seconds"]) for reply in replies)  # type: ignore[arg-type]

    first_steps = [timed("warm-up", 1) for _ in range(WARMUP_STEPS)]
    steps = math.ceil(round_seconds / first_steps[-1])
    seconds: dict[bool, list[float]] = {True: [], False: []}
    moments, cpu_seconds = 0, 0.0
    for pair in range(pairs):
        for watched in (True, False) if pair % 2 == 0 else (False, True):
            if watched:
                watcher.watch(ordinals, pids, started=time.perf_counter())
                before = psutil.Process(watcher.pid).cpu_times()
                watcher.begin()
            seconds[watched].append(timed(f"pair {pair}", steps))
            if watched:
                watcher.finish()
                read, after = watcher.stop(), psutil.Process(watcher.pid).cpu_times()
                assert not read.problems, read.problems
                moments += len(read.moments)
                cpu_seconds += after.user + after.system - before.user - before.system
    return Rounds(
        steps=steps,
        watched=seconds[True],
        unwatched=seconds[False],
        moments=moments,
        watcher_cpu_seconds=cpu_seconds,
    )


def main() -> None:
    """Print the ratio of the watched step to the unwatched one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--round-seconds", type=float, default=1.0)
    parser.add_argument("--workload", default="mnist_cnn", choices=workloads.registry.names())
    parser.add_argument("--device-type", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    launcher = Launcher(threads_per_worker=max(1, cpu_cores() // 2))
    machine = find_machine(options.device_type, launcher)
    job = gpu_job(options.workload, machine) if options.device_type == "cuda" else job_for(options.workload)
    watcher, devices = Watcher(machine.devices), job.case.devices
    with launcher.start(measure, job, len(devices), 3600) as session:
        session.replies()
        rounds = alternate(session, watcher, devices, pairs=options.pairs, round_seconds=options.round_seconds)
        session.command({"op": "finish"})
    watcher.close()
    ratios = [ours / theirs for ours, theirs in zip(rounds.watched, rounds.unwatched, strict=True)]
    ratio, total = mean_interval(ratios), sum(rounds.watched)
    assert ratio.low is not None and ratio.high is not None
    spread = statistics.stdev(math.log(value) for value in ratios)
    print(f"{job.case}, {len(ratios)} pairs of {rounds.steps} steps, {cpu_cores()} cores")
    for name, seconds in (("watched", rounds.watched), ("unwatched", rounds.unwatched)):
        print(f"{name:<10} median {statistics.median(seconds) / rounds.steps * 1e3:.2f} ms a step")
    print(f"read       {rounds.moments / len(devices) / total:.1f} times a second and device")
    print(f"watcher    {100 * rounds.watcher_cpu_seconds / total:.2f} % of one core")
    print(
        f"ratio  {ratio.value:.4f}, 95 % interval {ratio.low:.4f} to {ratio.high:.4f}; a pair spreads by {spread:.1%}"
    )


if __name__ == "__main__":
    main()
