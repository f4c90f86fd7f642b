"""Checks of how a run and its launches ended, and of what they trained."""

from __future__ import annotations

from collections.abc import Iterator

from bench.analysis.checks.base import Check, Seen, by_reason
from bench.analysis.plausibility import impossible

NOT_OK, SKIPPED = "Did not end ok", "Skipped"
RESUME = "start the run again; what is recorded is kept"


def of_run(seen: Seen) -> Iterator[Check]:
    """What concerns every figure of the run."""
    run, data = seen.data.run, seen.data
    yield Check(title="Not read and set aside", seen=tuple(data.problems))
    yield Check(
        title="The run has no recorded end: it was stopped, or still runs",
        seen=() if run.finished_at else (str(run.run_id),),
        remedy=RESUME,
    )
    planned, done = run.planned_launches, sum(launch.search is None for launch in data.launches)
    missing = planned is not None and done < planned
    yield Check(
        title="Stopped early: launches are missing",
        seen=(f"{done} of {planned} planned launches are recorded",) if missing else (),
        remedy=RESUME,
    )
    yield Check(title="About the whole run", seen=tuple(run.notes or ()))
    names = dict.fromkeys(device.name for device in run.devices or ())
    yield Check(
        title="The GPUs are not alike",
        seen=(", ".join(names),) if run.device_type == "cuda" and len(names) > 1 else (),
        remedy="the slowest sets the pace of all; choose equal ones with --devices",
    )


def of_training(seen: Seen) -> Iterator[Check]:
    """Whether the strategies trained what one device trains."""
    rows = seen.rows
    yield Check(
        title="Parity missed: the weights are not those that one device trains",
        seen=tuple(f"{name}: {row.parity.reason}" for name, row in rows if row.parity.status == "missed"),
        remedy="its speed is that of another training: do not use it before that is mended",
    )
    yield Check(
        title="Parity without a verdict",
        seen=tuple(f"{name}: {row.parity.reason}" for name, row in rows if row.parity.status == "no verdict"),
    )
    yield Check(
        title="Parity not known: its check did not end ok, or did not run",
        seen=tuple(
            f"{name}: {row.parity.reason or row.parity.status or 'not checked'}"
            for name, row in rows
            if row.result.status == "ok" and not row.parity.known
        ),
        remedy="run the whole scenario: each has a test of its parity",
    )
    yield Check(
        title="Parameters without a gradient: frozen, or not reached by the loss",
        seen=by_reason(
            (name, row.parity.untrained) for name, row in rows if row.result.status == "ok" and row.parity.untrained
        ),
    )


def of_plausibility(seen: Seen) -> Iterator[Check]:
    """Figures that cannot be true, and those of which nobody can say."""
    yield Check(
        title="Impossible: beyond what the hardware can do", seen=impossible(row.result for _, row in seen.rows)
    )
    counted = [(name, row.result.estimates.get(("model_flops_per_step", None))) for name, row in seen.rows]
    yield Check(
        title="FLOPs not counted, so that nobody can say whether the speed is possible",
        seen=by_reason((name, found.note) for name, found in counted if found and found.value is None and found.note),
    )


def of_failures(seen: Seen) -> Iterator[Check]:
    """Cases that did not end ok."""
    yield Check(
        title=NOT_OK,
        seen=by_reason(
            (name, f"{row.result.status}, {row.result.reason or 'no reason recorded'}")
            for name, row in seen.rows
            if row.result.status not in ("ok", "skipped")
        ),
    )


def of_standing_in(seen: Seen) -> Iterator[Check]:
    """Cases whose speed means nothing."""
    yield Check(
        title="Emulated by host replicas: correctness only, not ranked",
        seen=tuple(name for name, row in seen.rows if row.result.emulated),
        remedy="torch's DataParallel needs GPUs",
    )
    yield Check(
        title="Oversubscribed, not ranked",
        seen=tuple(name for name, row in seen.rows if row.result.oversubscribed),
        remedy="list each device once in --devices",
    )


def of_skips(seen: Seen) -> Iterator[Check]:
    """Cases that were not tried."""
    yield Check(
        title=SKIPPED,
        seen=by_reason(
            (name, row.result.reason or "no reason recorded")
            for name, row in seen.rows
            if row.result.status == "skipped"
        ),
    )
