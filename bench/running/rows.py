"""From a launch that is over to its rows: one of `launches`, many of `samples` and of `timeline`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime

from bench import metrics, strategies, workloads
from bench.measuring.launch import LaunchResult
from bench.metrics import Measured, Value
from bench.schema import Case, Launch, Metric, Moment, Sample, TimelineRow, Trace


def declared_metrics() -> list[Metric]:
    """Every metric's declaration, for the metadata of the tables."""
    return [measured.declaration for measured in metrics.registry]


def launch_row(
    case: Case,
    result: LaunchResult,
    *,
    run_as: Case,
    balance: str | None,
    run_id: str,
    launch: int,
    position: int,
    started_at: datetime,
    seed: int,
    data_source: str | None,
    backend: str | None,
    threads: int,
    search: str | None = None,
) -> Launch:
    """The row of a launch, however it ended. What did not happen is None.

    run_as: what the workers got: `case`, or with a number where it says auto.
    """
    strategy, declared = strategies.registry.get(case.strategy), workloads.registry.get(case.workload)
    outcome, clock = result.outcome, result.clock
    timed = result.trace if case.purpose == "timing" else None
    ran = outcome.status != "skipped"
    return Launch(
        run_id=run_id,
        case_id=str(case),
        launch=launch,
        purpose=case.purpose,
        position=position,
        workload=case.workload,
        strategy=case.strategy,
        device_type=case.device_type,
        devices=case.devices,
        num_devices=case.num_devices,
        world_size=strategy.world_size(case),
        global_batch_size=case.global_batch_size,
        size=case.size,
        size_text=declared(case.size).size.text,
        data=case.data or declared.default_data,
        data_source=data_source or "none",
        precision=case.precision,
        accumulation_steps=case.accumulation_steps,
        settings=case.settings,
        chunk_sizes=_chunk_sizes(run_as),
        seed=seed,
        status=outcome.status,
        reason=outcome.reason,
        rank=outcome.rank,
        phase=outcome.phase,
        traceback=outcome.traceback,
        started_at=started_at,
        wall_seconds=clock.wall_seconds,
        startup_seconds=clock.startup_seconds,
        warmup_seconds=clock.warmup_seconds,
        measured_seconds=clock.measured_seconds,
        teardown_seconds=clock.teardown_seconds,
        warmup_rounds=len(timed.warmup_round_seconds) if timed else None,
        warmup_end=result.warmup_end,
        steady=result.steady,
        rounds=len(timed.round_seconds) if timed else None,
        rounds_end=result.rounds_end,
        steps_per_round=timed.steps_per_round if timed else None,
        threads_per_worker=threads if ran else None,
        backend=backend if ran else None,
        emulated=strategy.emulated(case),
        oversubscribed=case.oversubscribed,
        computes_in=strategy.computes_in(case),
        balance=balance,
        watch_problems=result.watch_problems,
        search=search,
    )


def _chunk_sizes(case: Case) -> tuple[int, ...]:
    """Samples per device, empty where the batch cannot be split: the row's reason says so."""
    try:
        return strategies.registry.get(case.strategy).chunk_sizes(case)
    except ValueError:
        return ()


def samples_of(row: Launch, trace: Trace | None) -> list[Sample]:
    """Every metric's values of a launch, none for one without a trace."""
    if trace is None:
        return []
    return [
        Sample(
            run_id=row.run_id,
            case_id=row.case_id,
            launch=row.launch,
            metric=measured.declaration.name,
            device_index=value.device_index,
            round_index=value.round_index,
            value=value.value,
            note=value.note,
        )
        for measured in metrics.registry
        for value in _values(measured, trace)
    ]


def timeline_of(row: Launch, timeline: Iterable[Moment]) -> list[TimelineRow]:
    """The moments of a launch as rows, whether it ended well or not."""
    names = [item.name for item in fields(Moment)]
    return [
        TimelineRow(
            run_id=row.run_id,
            case_id=row.case_id,
            launch=row.launch,
            **{name: getattr(moment, name) for name in names},
        )
        for moment in timeline
    ]


def _values(measured: Measured, trace: Trace) -> Iterable[Value]:
    """A metric's values; one that fails says so in its place and does not hide the others."""
    try:
        return list(measured.compute(trace))
    except Exception as error:
        return [Value(value=None, note=f"the metric failed: {type(error).__name__}: {error}")]
