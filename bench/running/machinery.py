"""Opening a run: find the machine, describe the environment, refuse early what cannot work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from bench import strategies, workloads
from bench.balance import size_text
from bench.host import cpu_cores
from bench.measuring.host_memory import allocator_text
from bench.measuring.launcher import Launcher
from bench.measuring.machine import Machine, find_machine
from bench.planning.arguments import arguments, resolved
from bench.planning.plan import Plan
from bench.recording.environment import describe_run, new_run_id
from bench.recording.files import check_writable
from bench.recording.writer import check_run_id
from bench.running.session import RunSession
from bench.running.typed import Typed
from bench.schema import Case, Run


class Machinery:
    """The launcher and the machine of a pytest session, made when they are first needed."""

    def __init__(self) -> None:
        self._launcher: Launcher | None = None
        self._machine: Machine | None = None

    @property
    def launcher(self) -> Launcher:
        if self._launcher is None:
            self._launcher = Launcher(threads_per_worker=cpu_cores())
        return self._launcher

    def find(self, device_type: str) -> Machine:
        """The devices here; UsageError when those asked for cannot be used."""
        if self._machine is None:
            self._machine = find_machine(device_type, self.launcher)
        return self._machine

    def describe(self, plan: Plan, typed: Typed, cases: Sequence[Case], hears: Mapping[str, bool]) -> Run:
        """The run's row: its id, its options and its environment.

        `cases`: that of every launch; `hears`: as in `run_notes`.
        """
        options = plan.options
        if options.run_id is not None:
            check_run_id(options.run_id)
        run = describe_machine(
            plan.machine,
            plan.devices,
            run_id=options.run_id or new_run_id(datetime.now(timezone.utc)),
            preset=plan.preset.name,
            seed=options.seed,
            memory_limit_bytes=plan.memory_limit_bytes,
        )
        return replace(
            run,
            command_line=typed.command_line,
            arguments=(*typed.selection, *arguments(resolved(plan))),
            planned_launches=len(cases),
            notes=run_notes(plan, cases, hears),
        )


def describe_machine(
    machine: Machine,
    ordinals: Iterable[int],
    *,
    run_id: str,
    preset: str,
    seed: int,
    memory_limit_bytes: int | None = None,
) -> Run:
    """The row of a run on these devices of a machine, with its environment and no word about what it measures."""
    used = tuple(dict.fromkeys(ordinals))
    run = describe_run(
        run_id=run_id,
        preset=preset,
        device_type=machine.device_type,
        seed=seed,
        command_line="",
        devices=tuple(machine.devices[ordinal] for ordinal in used),
        topology=machine.topology(used),
        host_allocator=allocator_text(machine.device_type, limited=memory_limit_bytes is not None),
        cuda_version=machine.cuda_version,
        driver_version=machine.driver_version,
        nccl_version=".".join(map(str, machine.nccl_version)) if machine.nccl_version else None,
    )
    return replace(run, memory_limit_bytes=memory_limit_bytes)


def run_notes(plan: Plan, cases: Iterable[Case], hears: Mapping[str, bool]) -> tuple[str, ...]:
    """What a reader of the whole run must know. `hears`: by scenario, whether `--strategies` decides on its cases."""
    notes = list(plan.machine.notes)
    if plan.machine.device_type == "cpu":
        emulated = {case.strategy for case in cases if strategies.registry.get(case.strategy).emulated(case)}
        replicas = f"; {' and '.join(sorted(emulated))}: host replicas (emulated), not ranked" if emulated else ""
        notes.append(f"CPU run: it shows the suite working, not GPU speed{replicas}")
    if len(set(plan.devices)) < len(plan.devices):
        notes.append("a device is listed more than once: this tries the code, its speed means nothing")
    notes += _limit_note(plan)
    if plan.options.strategies is not None:
        notes += [f"{name} has strategies of its own, not those of --strategies" for name in hears if not hears[name]]
    unused = [
        name
        for name in plan.workloads
        if (plan.options.data or workloads.registry.get(name).default_data) == "synthetic"
    ]
    if plan.options.data_root is not None and unused:
        notes.append(f"--data-root is not used by {', '.join(unused)}: synthetic data; add --data real to use it")
    return tuple(notes)


def _limit_note(plan: Plan) -> list[str]:
    limit = plan.memory_limit_bytes
    if limit is None:
        return []
    note = f"--memory-limit: every launch had {size_text(limit)} a device, and its speed was measured so"
    if plan.machine.device_type == "cpu":
        note += (
            "; on CPU that is what a worker may take besides its imports, its batches too, and as many times that as "
            "it drives devices (dp, balanced_dp)"
        )
    return [note]


def open_run(plan: Plan, machinery: Machinery, run: Run) -> RunSession:
    """A session that is ready to launch. ResultsError before anything is measured where it cannot be kept."""
    check_writable(plan.options.results, what="the results", option="--results")
    check_writable(plan.options.reports, what="the report", option="--reports")
    machinery.launcher.threads_per_worker = max(1, cpu_cores() // len(plan.devices))
    return RunSession(plan, machinery.launcher, run)
