"""What a worker does in a timed launch: build, then rounds of steps at the driver's word.

No `.item()`, print or synchronisation happens inside a round; every device in use is
synchronised before and after, and the loss is looked at once the clock has stopped.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

from bench import levers, strategies, workloads
from bench.errors import BenchError, RefusedError
from bench.measuring.batches import StepBatch, make_batches, placed
from bench.measuring.control import Channel, Message, Plain
from bench.measuring.host_memory import keep_freed_memory
from bench.measuring.memory_limit import MemoryLimit, limit_memory
from bench.measuring.pace import pace_of
from bench.measuring.place import Place, training_place
from bench.measuring.step import Trainer, synchronize
from bench.measuring.traffic import traffic_of
from bench.measuring.trials import ALONE, case_alone, refused_by_trial
from bench.schema import Case, DeviceTrace
from bench.workloads import DataSource, Workload

ROTATING_BATCHES = 3

# Imported in the forkserver, so that every worker finds all declarations already loaded.
strategies.registry.load()
levers.registry.load()
workloads.registry.load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One case to run in fresh workers. `backend` is None for one process."""

    case: Case
    source: DataSource
    seed: int
    backend: str | None
    timeout_seconds: float
    address: str | None = None
    """What `--workload` said, for a worker to find a class that the suite does not hold."""
    adapted: workloads.Adapted | None = None
    """What an adapter made of that, so that no worker has to again."""
    looks: float = strategies.LOOKS
    """How many of the first steps the strategy's `loss_check` looks at."""
    compiled: str | None = None
    """Folder for what torch.compile makes, that of the run: so that its first launch compiles, whatever was before."""
    memory_limit: MemoryLimit | None = None
    keeps_memory: bool = True
    """Whether CPU workers keep what they free; False where a benchmark shows what that changes."""

    def workload(self) -> Workload:
        """The case's workload at its size."""
        if self.adapted is not None:
            return self.adapted.workload()(self.case.size)
        name = self.case.workload
        found = workloads.registry.get(name) if self.address is None else workloads.find(self.address)
        return found(self.case.size)


class Rounds:
    """A rank's trainer and its batches in rotation."""

    def __init__(self, trainer: Trainer, batches: Sequence[StepBatch], place: Place) -> None:
        self._trainer, self._devices = trainer, place.devices
        self._batches: Iterator[StepBatch] = cycle(batches)
        self._weight = batches[0].weight
        self._cpu = self._wall = 0.0

    def run(self, steps: int) -> float:
        """Train `steps` steps; seconds between two synchronisations. BenchError when the loss is not finite."""
        terms: Tensor | None = None
        synchronize(self._devices)
        started = time.perf_counter()
        for _ in range(steps):
            terms = self._trainer.step(next(self._batches))
        synchronize(self._devices)
        seconds = time.perf_counter() - started
        loss = float(terms[0]) if terms is not None else 0.0
        if not math.isfinite(loss):
            remedy = "" if self._trainer.case.precision == "fp32" else ", or try --precision fp32"
            raise BenchError(f"the loss is {loss}; lower the learning rate{remedy}")
        return seconds

    def look(self) -> None:
        """Train one more step that the strategy's `loss_check` looks at."""
        self._trainer.look_again(1)
        self.run(1)

    def pace(self) -> Message:
        """How fast the devices are just now."""
        return pace_of(self._devices)

    def begin(self) -> None:
        """From here on figures count: reset the allocators' peaks and the CPU clock."""
        gc.collect()
        for device in dict.fromkeys(self._devices):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def traces(self, case: Case, rank: int) -> list[DeviceTrace]:
        """What each of this process's devices saw since `begin`."""
        cpu_percent = 100 * (time.process_time() - self._cpu) / (time.perf_counter() - self._wall)
        one_process = len(self._devices) == case.num_devices
        positions = range(case.num_devices) if one_process else [rank]
        if case.device_type == "cpu":
            positions = list(positions)[:1] if one_process else [rank]
        traces = []
        for number, position in enumerate(positions):
            device = self._devices[number]
            seen_before = device in self._devices[:number]
            on_cuda = device.type == "cuda" and not seen_before
            traces.append(
                DeviceTrace(
                    device_index=position,
                    peak_allocated_bytes=torch.cuda.max_memory_allocated(device) if on_cuda else None,
                    peak_reserved_bytes=torch.cuda.max_memory_reserved(device) if on_cuda else None,
                    host_peak_rss_bytes=peak_rss_bytes() if number == 0 else None,
                    cpu_percent=cpu_percent if number == 0 else None,
                )
            )
        return traces


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def prepare_process(job: Job, rank: int) -> None:
    """Set what the whole process must know before it builds a model."""
    if job.compiled is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = job.compiled
    levers.set_process(job.case)
    limit_memory(job.memory_limit, job.case, rank)  # which creates CUDA's context


def measure(job: Job, channel: Channel) -> None:
    """Serve one timed launch: `round`, `pace`, `begin` and `traces` commands, in any order, then `finish`."""
    case = job.case
    channel.phase("build")
    if case.device_type == "cpu" and job.keeps_memory and job.memory_limit is None:
        keep_freed_memory()
    prepare_process(job, channel.rank)
    workload, strategy = job.workload(), strategies.registry.get(case.strategy)
    with training_place(case, job.backend, channel, job.timeout_seconds) as place:
        trainer = Trainer(
            workload=workload,
            strategy=strategy,
            case=case,
            devices=place.devices,
            mesh=place.mesh,
            seed=job.seed,
            looks=job.looks,
        )
        channel.phase("data")
        batches = make_batches(
            workload, strategy, case, job.source, rank=channel.rank, seed=job.seed, count=ROTATING_BATCHES
        )
        rounds = Rounds(trainer, placed(case, batches, place.devices[0]), place)
        channel.phase("ready")
        channel.reply({})
        for command in channel.commands():
            try:
                channel.reply(_obey(command, rounds, case, channel))
            except Exception as error:
                if trainer.steps_taken or job.address is None:
                    raise
                reason = refused_by_trial(error, case, channel, partial(_alone, job, place))
                if reason is None:
                    raise
                raise RefusedError(reason) from error


def _alone(job: Job, place: Place) -> tuple[Trainer, list[StepBatch]]:
    """A new model on one device, and the first batch of a timed launch."""
    workload, case, strategy = job.workload(), case_alone(job.case), strategies.registry.get(ALONE)
    trainer = Trainer(
        workload=workload, strategy=strategy, case=case, devices=place.devices[:1], mesh=None, seed=job.seed
    )
    return trainer, make_batches(workload, strategy, case, job.source, rank=0, seed=job.seed, count=1)


def _obey(command: Message, rounds: Rounds, case: Case, channel: Channel) -> Message:
    if command["op"] == "round":
        channel.phase(str(command["phase"]))
        steps = command["steps"]
        assert isinstance(steps, int)
        return {"seconds": rounds.run(steps)}
    if command["op"] == "pace":
        channel.phase("the machine's pace")
        return rounds.pace()
    if command["op"] == "begin":
        rounds.begin()
        return {}
    if command["op"] == "traces":
        devices: list[Plain] = [asdict(trace) for trace in rounds.traces(case, channel.rank)]
        return {"devices": devices}
    assert command["op"] == "finish"
    strategy = strategies.registry.get(case.strategy)
    looked = case.num_devices > 1 and strategy.ranks_must_agree
    if looked:
        channel.phase("a last look")
        rounds.look()
    if not command.get("traffic"):
        return {}
    channel.phase("what a step communicates")
    if looked:
        rounds.run(1)  # in which the strategy's own messages end
    return traffic_of(lambda: rounds.run(1), case, strategy)
