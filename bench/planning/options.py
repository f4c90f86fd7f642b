"""What was typed, checked: every option of a run, with its meaning said once.

Errors are UsageErrors that list what exists or name both numbers; nothing is measured then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import strategies, workloads
from bench.errors import UnknownNameError, UsageError
from bench.levers import Lever
from bench.levers import registry as levers
from bench.measuring.launch import RoundPlan
from bench.measuring.machine import Machine
from bench.planning.presets import PRESETS, Preset
from bench.schema import NameValue

LARGEST_BATCH = 10**9
TARGET_PERCENT = (0.01, 50.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyChoice:
    """A strategy with options of its own: `balanced_dp:gpu0_bsz=2`."""

    name: str
    settings: tuple[NameValue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run as they were typed; None where nothing was."""

    preset: str | None = None
    device_type: str = "auto"
    devices: str | None = None
    strategies: str | None = None
    workloads: str | None = None
    own_workloads: tuple[str, ...] = ()
    global_batch_size: str | None = None
    batch_per_device: str | None = None
    precision: str | None = None
    levers: str | None = None
    sweeps: str | None = None
    data: str | None = None
    data_root: Path | None = None
    launches: int | None = None
    rounds: int | None = None
    interval_target: str | None = None
    launch_timeout: float | None = None
    memory_limit: str | None = None
    run_id: str | None = None
    results: Path = Path("results")
    reports: Path = Path("reports")
    seed: int = 0
    dry_run: bool = False


def choose_preset(options: RunOptions, machine: Machine) -> Preset:
    """The preset asked for, by default standard on GPUs and quick on CPUs, with its rounds as they were asked for."""
    name = options.preset or ("standard" if machine.device_type == "cuda" else "quick")
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return replace(PRESETS[name], plan=choose_rounds(options, PRESETS[name].plan))


def choose_rounds(options: RunOptions, plan: RoundPlan) -> RoundPlan:
    """`--rounds 10` fixes their number, `--interval-target 0.5%` says how well their median is to be known."""
    if options.rounds is not None:
        if options.interval_target is not None:
            raise UsageError(
                f"--rounds {options.rounds} fixes the number of rounds, which --interval-target "
                f"{options.interval_target} would choose; give one of them"
            )
        return replace(plan, rounds=options.rounds, stopping=None)
    if options.interval_target is None or plan.stopping is None:
        return plan
    return replace(plan, stopping=replace(plan.stopping, target=_target(options.interval_target)))


def _target(text: str) -> float:
    """The fraction that a percentage such as 1%, or 1, stands for."""
    least, most = TARGET_PERCENT
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not least <= percent <= most:
        raise UsageError(
            f"--interval-target {text!r} is no percentage from {least:g} to {most:g}; write e.g. 1% or 0.5%"
        )
    return percent / 100


def choose_devices(options: RunOptions, machine: Machine) -> tuple[int, ...]:
    """Ordinals from `--devices N` (the first N) or `--devices 0,2` (a list; twice the same is allowed).

    By default all GPUs, or two CPU workers. UsageError names what was asked for and what there is.
    """
    there = len(machine.devices)
    word = "GPU" if machine.device_type == "cuda" else "CPU core"
    have = f"this machine has {there} {word}{'s' if there != 1 else ''}"
    if options.devices is None:
        if machine.device_type == "cuda":
            return tuple(range(there))
        return (0, 1) if there > 1 else (0, 0)
    text = options.devices.strip()
    if not text:
        raise UsageError(f"--devices is empty; give a number or a list such as 0,1; {have}")
    try:
        listed = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"--devices {text!r} is neither a number nor a list such as 0,1; {have}") from None
    if "," in text:
        wrong = [ordinal for ordinal in listed if not 0 <= ordinal < there]
        if wrong or not listed:
            raise UsageError(f"--devices {text} names device {wrong[0] if wrong else 'nothing'}, but {have}, from 0")
        return tuple(listed)
    if not listed or not 1 <= listed[0] <= there:
        twice = ",".join(["0"] * min(max(listed[0], 2), 4)) if listed and listed[0] > 0 else "0,0"
        raise UsageError(
            f"--devices {text} asks for {text} devices, but {have}; use 1 to {there}, or list a device more than "
            f"once (--devices {twice}) to try the code, not its speed"
        )
    return tuple(range(listed[0]))


def choose_strategies(options: RunOptions, preset: Preset) -> list[StrategyChoice]:
    """`--strategies dp,balanced_dp:gpu0_bsz=2`; the preset's by default. UsageError lists what exists."""
    if options.strategies is None:
        return [StrategyChoice(name=name) for name in preset.strategies]
    return [_strategy(part) for part in _parts(options.strategies, "--strategies")]


def _strategy(text: str) -> StrategyChoice:
    name, _, rest = text.partition(":")
    strategy = strategies.registry.get(name)
    settings: set[NameValue] = set()
    given: dict[str, str] = {}
    for item in filter(None, rest.split(":")):
        key, equals, value = item.partition("=")
        option = next((known for known in strategy.options if known.name == key), None)
        if option is None:
            raise UnknownNameError(f"option of {name}", key, [known.name for known in strategy.options])
        if not equals:
            raise UsageError(f"{name}:{item} lacks a value; write {name}:{key}=VALUE")
        value = option.check(value)
        given.setdefault(key, value)
        if given[key] != value:
            raise UsageError(f"{name}:{key} is given twice, as {given[key]} and {value}; give one of them")
        if value != option.default:
            settings.add(NameValue(name=key, value=value))
    return StrategyChoice(name=name, settings=tuple(sorted(settings)))


def choose_workloads(options: RunOptions) -> list[str]:
    """`--workloads` in the order given, then each `--workload`; all of the suite's without either.

    Each `--workload` is found, which runs its code. UsageError says what is wrong with one, or lists what exists.
    """
    own = [workloads.find(address).name for address in options.own_workloads]
    if options.workloads is None:
        return own or [known.name for known in workloads.registry if known.address is None]
    names = _parts(options.workloads, "--workloads")
    for name in names:
        try:
            workloads.registry.get(name)
        except UnknownNameError as error:
            hint = f"; a model of your own goes to --workload {name}" if re.search(r"[:/]|\.py$", name) else ""
            raise UsageError(f"{error}{hint}") from None
    return list(dict.fromkeys([*names, *own]))


def choose_sweeps(options: RunOptions) -> list[str]:
    """`--sweeps` in the order given, none by default. Which ones exist is known once the scenarios are collected."""
    return [] if options.sweeps is None else _parts(options.sweeps, "--sweeps")


def choose_levers(options: RunOptions) -> list[tuple[Lever, str]]:
    """Settings from `--precision` and `--levers name=value,...`. UsageError lists what exists."""
    known = {lever.name: lever for lever in levers}
    chosen = []
    for item in _parts(options.levers, "--levers") if options.levers is not None else []:
        name, equals, value = item.partition("=")
        if name not in known:
            raise UnknownNameError("lever", name, known)
        if not equals:
            raise UsageError(f"--levers {item} lacks a value; write {name}=VALUE")
        chosen.append((known[name], known[name].check(value)))
    if options.precision is not None:
        chosen.append((known["precision"], known["precision"].check(options.precision)))
    for lever, value in chosen:
        other = next((text for again, text in chosen if again is lever and text != value), None)
        if other is not None:
            raise UsageError(f"{lever.name} is given twice, as {value} and {other}; give one of them")
    return chosen


def choose_batches(text: str | None, option: str) -> list[int]:
    """Batch sizes from a list such as `64,128`; empty when the option was not given."""
    if text is None:
        return []
    batches = []
    for part in _parts(text, option):
        if not (part.isascii() and part.isdecimal()) or not 1 <= int(part) <= LARGEST_BATCH:
            raise UsageError(
                f"{option} {part!r} is not a number of samples from 1 to {LARGEST_BATCH}; write e.g. {option} 64"
            )
        batches.append(int(part))
    return batches


def _parts(text: str, option: str) -> list[str]:
    parts: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{option} is empty; leave it out for the default")
    return list(dict.fromkeys(parts))
