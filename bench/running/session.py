"""A run in progress: it turns cases into launches, and launches into rows on the disk.

The one place where planning, measuring and recording meet:
case -> workers -> trace -> metrics -> samples -> one parquet part, launch by launch.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

from bench import strategies, workloads
from bench.analysis.estimates import estimate
from bench.errors import DataError, UsageError
from bench.measuring.launch import Clock, LaunchResult, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.memory_limit import MemoryLimit, as_out_of_memory
from bench.measuring.parity import CAUSE, exact_case, parity_case, parity_of
from bench.measuring.place import backend_for
from bench.measuring.preflight import PreflightJob, preflight
from bench.measuring.probe import probe_case
from bench.measuring.tasks import Job
from bench.measuring.yardstick import Yardstick
from bench.planning.plan import Plan, reason_to_skip
from bench.recording.reader import read_run
from bench.recording.writer import RunWriter
from bench.running.balancing import PROBE_PLAN, Balancer, Settled
from bench.running.rows import declared_metrics, launch_row, samples_of, timeline_of
from bench.schema import Case, Launch, Outcome, Run, Trace
from bench.watching.watcher import Watcher
from bench.workloads import DataSource

Measure: TypeAlias = Callable[[Job, int], LaunchResult]


def memory_limit_of(plan: Plan) -> MemoryLimit | None:
    """What `--memory-limit` is for the workers of a run, None without it."""
    if plan.memory_limit_bytes is None:
        return None
    idle = tuple(device.idle_memory_used_bytes or 0 for device in plan.machine.devices)
    return MemoryLimit(size_bytes=plan.memory_limit_bytes, idle_bytes=idle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A launch that is on the disk, with what the scenario needs of it."""

    case: Case
    row: Launch
    trace: Trace | None


class RunSession:
    """Runs the launches of one run, one after the other, and records each at once."""

    def __init__(self, plan: Plan, launcher: Launcher, run: Run) -> None:
        self.plan, self.run = plan, run
        self._launcher = launcher
        self._writer = RunWriter(plan.options.results, run, declared_metrics())
        self._cache = Path(tempfile.mkdtemp(prefix="dpbench-data-"))
        self._sources: dict[tuple[str, str], DataSource | Outcome] = {}
        self._given_up: dict[str, str] = {}
        self._refused: dict[Case, str] = {}
        self._untrained: dict[Case, str] = {}
        self._broken: dict[str | None, str] = {}
        self._balancer = Balancer(lambda job: time_case(self._launcher, job, 1, PROBE_PLAN))
        self._watcher = Watcher(plan.machine.devices)
        self._yardstick = Yardstick(launcher, plan.machine.devices)
        self._limit = memory_limit_of(plan)
        self._position = 0
        self.timed: dict[Case, list[Finished]] = {}
        """Every timed launch of this run by its case, without what the watcher read."""
        self._probes: Counter[Case] = Counter()

    @property
    def folder(self) -> Path:
        return self._writer.folder

    def prepare(self, cases: Sequence[Case]) -> list[str]:
        """Make the data ready, once, and try whether the devices can talk. Returns what went wrong.

        Cases that need what does not work are recorded as skipped or failed, the others run. Then the
        devices' matrix products are measured.
        """
        for case in cases:
            self._source(case)
        kinds = {self._backend(case) for case in cases if case.num_devices > 1}
        for backend in kinds if self.plan.machine.device_type == "cuda" else kinds - {None}:
            job = PreflightJob(device_type=self.plan.machine.device_type, devices=self.plan.devices, backend=backend)
            problem = preflight(self._launcher, job)
            if problem is not None:
                self._broken[backend] = problem
        self._measure_products(cases)
        return list(self._broken.values())

    def _measure_products(self, cases: Sequence[Case]) -> None:
        """Measure what the devices reach in a matrix product, and put it into the run's row."""
        timed = [case for case in cases if case.purpose == "timing"]
        products = self._yardstick.multiply(
            case for case in timed if reason_to_skip(case, self.plan.machine, None) is None
        )
        notes = self.run.notes if products.problem is None else (*self.run.notes, products.problem)
        self.run = replace(self.run, matrix_products=products.found, notes=notes)
        self._writer.describe(self.run)

    def time(self, case: Case, launch: int, search: str | None = None) -> Finished:
        """Run and record one timed launch. `search`: the one that asks for it."""
        plan = self.plan.preset.plan
        finished = self._launch(
            case, launch, lambda job, ranks: time_case(self._launcher, job, ranks, plan, self._watcher), search
        )
        trace = finished.trace and replace(finished.trace, timeline=())
        self.timed.setdefault(case, []).append(replace(finished, trace=trace))
        return finished

    def probe(self, case: Case, search: str, skipped: str | None = None) -> Finished:
        """Run and record a few steps of a case for a search; where it is `skipped`, record that it was not tried."""
        case = replace(case, purpose="search")
        self._probes[case] += 1
        given_up = None if skipped is None else Outcome(status="skipped", reason=skipped)
        return self._launch(
            case,
            self._probes[case] - 1,
            lambda job, ranks: probe_case(self._launcher, job, ranks),
            search,
            given_up=given_up,
        )

    def num_samples(self, case: Case) -> int | None:
        """Samples that a case's data holds, None where it is not there."""
        source = self._source(case)
        return None if isinstance(source, Outcome) else source.num_samples

    def check_parity(self, case: Case) -> Finished:
        """Run and record one parity launch; `case` comes from `parity_case`."""
        return self._launch(case, 0, lambda job, ranks: parity_of(self._launcher, job, ranks))

    def finish(self) -> None:
        """Compact the run's files and add the estimates."""
        data = read_run(self.folder)
        self._writer.finish(estimate(data.samples, data.launches, declared_metrics()), datetime.now(timezone.utc))

    def close(self) -> None:
        """End the watcher, and remove what was unpacked for this run."""
        self._watcher.close()
        shutil.rmtree(self._cache, ignore_errors=True)

    def _launch(
        self,
        case: Case,
        launch: int,
        measure: Measure,
        search: str | None = None,
        *,
        given_up: Outcome | None = None,
    ) -> Finished:
        started_at = datetime.now(timezone.utc)
        source = self._source(case)
        refused = given_up or (source if isinstance(source, Outcome) else self._refusal(case, source))
        settled = Settled(case=case)
        if refused is not None or isinstance(source, Outcome):
            result = LaunchResult(outcome=refused or Outcome(status="error"), clock=Clock())
        else:
            workload = workloads.registry.get(case.workload)
            job = Job(
                case=case,
                source=source,
                seed=self.plan.options.seed,
                backend=self._backend(case),
                timeout_seconds=self.plan.launch_timeout_seconds,
                address=workload.address,
                adapted=workloads.adapted(workload),
                # Each case its own, or the first launch of one would find what another has compiled.
                compiled=str(self._cache / "compiled" / hashlib.sha256(str(case).encode()).hexdigest()[:16]),
                memory_limit=self._limit,
            )
            settled = self._balancer.settle(job)
            job = replace(job, case=settled.case)
            result = settled.failed or measure(job, strategies.registry.get(case.strategy).world_size(case))
            outcome = as_out_of_memory(result.outcome, self._limit, probing=case.purpose == "search")
            result = replace(result, outcome=outcome)
            if case.purpose == "timing":
                result = self._yardstick.held_against(result, job)
        result, balance = settled.complete(result)
        if result.outcome.status in ("oom", "timeout"):
            self._given_up[str(case)] = f"launch {launch} of this case ended as {result.outcome.status}"
        if refused is None and result.outcome.status == "skipped":
            self._refused[case] = result.outcome.reason or "refused"
            if result.outcome.phase == CAUSE:
                self._untrained[case] = self._refused[case]
        row = launch_row(
            case,
            result,
            run_as=settled.case,
            balance=balance,
            run_id=self.run.run_id,
            launch=launch,
            position=self._position,
            started_at=started_at,
            seed=self.plan.options.seed,
            data_source=None if isinstance(source, Outcome) else source.text,
            backend=self._backend(case),
            threads=self._launcher.threads_per_worker,
            search=search,
        )
        # A probe's few steps, the first ones among them, are no figure of its speed.
        samples = [] if case.purpose == "search" else samples_of(row, result.trace)
        self._writer.add(row, samples, timeline_of(row, result.timeline))
        self._position += 1
        return Finished(case=case, row=row, trace=result.trace)

    def _refusal(self, case: Case, source: DataSource) -> Outcome | None:
        """The outcome of a launch that need not be tried."""
        # A refusal is of this very case: the parity check runs in evaluation mode, where a model may use other
        # parameters. But what trains something else there does so at any batch size.
        reason = (
            self._given_up.get(str(case))
            or self._refused.get(case)
            or self._untrained.get(parity_case(exact_case(case)))
            or reason_to_skip(case, self.plan.machine, source.num_samples)
        )
        if reason is not None:
            return Outcome(status="skipped", reason=reason)
        broken = self._broken.get(self._backend(case)) if case.num_devices > 1 else None
        return Outcome(status="error", reason=broken, phase="preflight") if broken is not None else None

    def _backend(self, case: Case) -> str | None:
        return backend_for(case, strategies.registry.get(case.strategy), self.plan.machine.nccl_version)

    def _source(self, case: Case) -> DataSource | Outcome:
        """The case's data, prepared on first use, or the outcome of every launch that needs it."""
        kind = case.data or workloads.registry.get(case.workload).default_data
        key = (case.workload, kind)
        if key not in self._sources:
            try:
                workload = workloads.registry.get(case.workload)(case.size)
                self._sources[key] = workload.prepare(kind, self.plan.options.data_root, self._cache)
            except UsageError as error:
                self._sources[key] = Outcome(status="skipped", reason=str(error), phase="data")
            except DataError as error:
                self._sources[key] = Outcome(status="error", reason=str(error), phase="data")
            except Exception as error:
                self._sources[key] = Outcome(
                    status="error",
                    reason=f"{type(error).__name__}: {error}",
                    phase="data",
                    traceback="".join(traceback.format_exception(error)),
                )
        return self._sources[key]
