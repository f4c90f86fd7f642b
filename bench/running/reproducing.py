"""A recorded run measured again, here: the same cases with the same seeds and options.

What the run was asked for is in its table (`Run.arguments`). Order, models and data all come from
the seed, so that equal arguments give the same launches in the same order. Code, own models and own
data are not in the table: what is known of them is said.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

import bench
from bench.analysis.environments import COMMIT, UNKNOWN, devices_text, differences, why_not_comparable
from bench.errors import ResultsError, UsageError
from bench.measuring.machine import Machine
from bench.planning.arguments import Asked, listed, read_arguments
from bench.planning.memory import choose_memory_limit
from bench.planning.options import choose_devices
from bench.recording.environment import new_run_id
from bench.recording.reader import RunData, find_run, is_run, read_run
from bench.running.machinery import Machinery, describe_machine
from bench.running.typed import CHECKOUT
from bench.schema import Run

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def reproduce(results: Path, name: str, reports: Path, *, print_only: bool) -> int:
    """Print what will be measured and how this environment differs, measure it, and return pytest's exit status.

    UsageError where this machine cannot do it, ResultsError where it is not known what the run was asked for.
    """
    data = read_run(find_run(results, name))
    asked, remarks = asked_for(data)
    _check_files(data.run, asked)
    machine = _machine_for(data.run, asked)
    devices = choose_devices(asked.options, machine)
    here = describe_machine(
        machine,
        devices,
        run_id=new_run_id(datetime.now(timezone.utc)),
        preset=data.run.preset,
        seed=asked.options.seed,
        memory_limit_bytes=choose_memory_limit(asked.options, machine, devices),
    )
    words = ["-m", "pytest", *_placed(asked).arguments(), "--run-id", here.run_id]
    words += ["--results", str(results), "--reports", str(reports)]
    for line in (*remarks, *_before(data, here, asked), shlex.join(["python", *words])):
        print(line)
    if print_only:
        return 0
    sys.stdout.flush()
    status = _call([sys.executable, *words])
    for line in _after(data, results, here.run_id, status):
        print(line)
    return status


def asked_for(data: RunData) -> tuple[Asked, tuple[str, ...]]:
    """What a run was asked for, and what must be said about it."""
    run = data.run
    if not run.fingerprint:
        raise ResultsError(f"what {run.run_id} was asked for is unknown: {'; '.join(data.problems)}")
    if not run.arguments:
        return _older(data)
    asked = read_arguments(run.arguments, CHECKOUT)
    if asked.left_out:
        raise UsageError(
            f"{run.run_id} was asked for with {shlex.join(asked.left_out)}, which dpbench {bench.__version__} does "
            f"not know and which is no scenario in {CHECKOUT}; use the suite that made the run: {_made_by(run)}"
        )
    return asked, ()


def _older(data: RunData) -> tuple[Asked, tuple[str, ...]]:
    """From what was typed for a run that is older than the column of its arguments, as far as it goes."""
    run = data.run
    try:
        asked = read_arguments(shlex.split(run.command_line)[1:], CHECKOUT)
    except ValueError as error:
        raise ResultsError(f"{run.run_id}: its command line cannot be read ({error}): {run.command_line}") from error
    if not asked.scenarios:
        raise UsageError(f"{run.run_id} was typed as {run.command_line}, which names no scenario in {CHECKOUT}")
    typed = asked.options
    used = tuple(device.index for device in run.devices)
    longest = max([used, *(launch.devices for launch in data.launches)], key=len)
    options = replace(
        typed,
        preset=run.preset,
        device_type=run.device_type,
        devices=typed.devices if typed.devices and "," in typed.devices else listed(longest),
        seed=run.seed,
    )
    remarks = [f"{run.run_id} is older than the column of its arguments: this is taken from what was typed"]
    if asked.left_out:
        remarks.append(f"left out, as they are no options of the suite: {shlex.join(asked.left_out)}")
    return replace(asked, options=options), tuple(remarks)


def _check_files(run: Run, asked: Asked) -> None:
    """UsageError where a file of one's own that the run needed is not here."""
    models = [text.rpartition(":")[0] for text in asked.options.own_workloads]
    needed = [Path(name) for name in models if name.endswith(".py")]
    needed += [asked.options.data_root] if asked.options.data_root is not None else []
    for path in needed:
        if not path.expanduser().exists():
            raise UsageError(
                f"{run.run_id} needs {path}, which is not in {Path.cwd()}; put there what the run used, or start this "
                "in the folder that holds it"
            )


def _machine_for(run: Run, asked: Asked) -> Machine:
    """The devices here. UsageError where they cannot stand for those of the run."""
    # Not `cuda`: where there is no GPU at all, the remedies for a torch that cannot use it would mislead.
    machine = Machinery().find("cpu" if run.device_type == "cpu" else "auto")
    devices = (asked.options.devices or "").rstrip(",")
    needed = _count(devices)
    if machine.device_type != run.device_type:
        raise UsageError(
            f"{run.run_id} used {devices_text(run)}, but this machine has no GPU that torch can use; reproduce it on "
            f"one with at least {needed}; `python -m bench doctor` says what is missing here"
        )
    there = len(machine.devices)
    if needed > there:
        word = "GPU" if machine.device_type == "cuda" else "CPU core"
        fewer = replace(asked, options=replace(asked.options, devices=listed(range(there))))
        raise UsageError(
            f"{run.run_id} used {word}s {devices} ({devices_text(run)}), but this machine has {there}, counted from 0; "
            f"reproduce it on one with at least {needed}, or measure on fewer, which is another run: "
            f"{shlex.join(['python', '-m', 'pytest', *_placed(fewer).arguments()])}"
        )
    return machine


def _count(devices: str) -> int:
    """Devices that a machine must have for this list; 0 for a list that `choose_devices` will refuse."""
    try:
        return max(int(part) for part in devices.split(",")) + 1
    except ValueError:
        return 0


def _placed(asked: Asked) -> Asked:
    """Scenarios of the checkout as they are named from this folder."""
    if Path.cwd() == CHECKOUT:
        return asked
    return replace(asked, scenarios=tuple(os.path.join(CHECKOUT, name) for name in asked.scenarios))


def _before(data: RunData, here: Run, asked: Asked) -> Iterator[str]:
    """The run, how this environment differs from its, and what will be measured."""
    run = data.run
    yield f"{run.run_id}: measured {run.started_at:%Y-%m-%d %H:%M} UTC on {devices_text(run)}"
    found = differences(run, here)
    yield "This environment differs (the run -> here):" if found else "Nothing differs in this environment."
    for item in found:
        yield f"  {item.name}: {item.base or UNKNOWN} -> {item.head or UNKNOWN}"
    if why := why_not_comparable(run, here):
        yield f"The figures of the two will not be comparable: {why}"
    yield from _code(run, any(item.name == COMMIT for item in found))
    own = [*asked.options.own_workloads, *filter(None, [asked.options.data_root])]
    if own:
        yield f"No run keeps a copy of these; they must be what the run used: {', '.join(map(str, own))}"
    known = [launch for launch in data.launches if launch.search is None]
    purposes = Counter(launch.purpose for launch in known)
    timed, checks = purposes["timing"], purposes["parity"]
    yield f"Cases: {len(_cases(data))}, timed launches: {timed}, parity checks: {checks}"
    if searches := list(dict.fromkeys(launch.search for launch in data.launches if launch.search is not None)):
        yield f"Searches: {', '.join(searches)}; what they try, and then time, is found anew"
    if run.planned_launches is not None and run.planned_launches > len(known):
        yield f"The run ended after {len(known)} of {run.planned_launches} launches; here all are measured."
    yield "The same again:"


def _code(run: Run, other: bool) -> Iterator[str]:
    """How to get the code of the run, as far as it is known."""
    if other and run.git_commit is not None:
        yield f"For the same code: git checkout {run.git_commit}"
    if run.git_dirty:
        yield "The run's checkout had uncommitted changes, which no commit holds: its exact code is not known."


def _made_by(run: Run) -> str:
    return f"dpbench {run.dpbench_version}" + (f", git checkout {run.git_commit}" if run.git_commit else "")


def _cases(data: RunData) -> dict[str, None]:
    """Ids of the cases that a scenario timed, in order; those of a search may differ from run to run."""
    timed = (launch for launch in data.launches if launch.purpose == "timing" and launch.search is None)
    return dict.fromkeys(launch.case_id for launch in timed)


def _call(command: Sequence[str]) -> int:
    """Run a command and return its exit status, 128 + N where signal N ended it. Signals go on to it, once each.

    It has a session of its own: else Ctrl-C would reach it from the terminal and from here, and the second one
    would end it while it still writes its tables.
    """
    process: subprocess.Popen[bytes] | None = None
    waiting: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            waiting.append(number)
        else:
            process.send_signal(number)

    # One that is ignored here, as in a shell's background job, stays so in the command.
    heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        process = subprocess.Popen(command, start_new_session=True)
        for number in waiting:
            process.send_signal(number)
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _after(data: RunData, results: Path, run_id: str, status: int) -> Iterator[str]:
    """Whether the same cases were measured, and how to compare."""
    folder = results / run_id
    if not is_run(folder):
        yield f"Nothing was measured: pytest ended with status {status}."
        return
    before, now = _cases(data), _cases(read_run(folder))
    missing, new = [name for name in before if name not in now], [name for name in now if name not in before]
    if not missing and not new:
        yield f"The same cases were measured ({len(now)})."
    for word, names in (("Missing here", missing), ("New here", new)):
        if names:
            yield f"{word}, of {len(before)} cases of the run and {len(now)} here: {', '.join(names)}"
    base = data.folder.name if data.folder.parent == results else str(data.folder)
    place = [] if results == Path("results") else ["--results", str(results)]
    yield f"To compare: {shlex.join(['python', '-m', 'bench', 'compare', base, run_id, *place])}"
