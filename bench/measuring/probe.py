"""One probe of a search: does a case train at all, and how fast is a handful of its steps?

The workers do what those of a timed launch do, each thing once: they take the machine's pace, train a short round, and
look at what a step communicates. So what fits in a probe fits there. The work of the pace alone leaves some megabytes
in oneDNN's caches: without it every timed launch at a largest batch ran out of memory in its first round after it.
"""

from __future__ import annotations

from bench.measuring.launch import Clock, LaunchResult, device_traces, run_launch
from bench.measuring.launcher import Launcher, Session
from bench.measuring.tasks import ROTATING_BATCHES, Job, measure
from bench.schema import Trace

STEPS = ROTATING_BATCHES
"""Each of the batches in rotation once; the optimizer's state is there from the second on."""


def probe_case(launcher: Launcher, job: Job, world_size: int) -> LaunchResult:
    """Train the job's case for `STEPS` steps in fresh workers. It ended ok only if every rank took all of them.

    The trace holds one round, of all steps, first ones included: not a figure of its speed.
    """

    def drive(session: Session, clock: Clock) -> tuple[Trace, None]:
        session.command({"op": "pace"})
        session.command({"op": "begin"})
        replies = session.command({"op": "round", "steps": STEPS, "phase": "probe"})
        traces = session.command({"op": "traces"})
        clock.measured_seconds = clock.lap()
        session.command({"op": "finish", "traffic": True})
        seconds = max(float(reply["seconds"]) for reply in replies)  # type: ignore[arg-type]
        trace = Trace(
            case=job.case,
            steps_per_round=STEPS,
            round_seconds=(seconds,),
            devices=device_traces(traces, job.case.num_devices),
        )
        return trace, None

    return run_launch(launcher, measure, job, world_size, drive)
