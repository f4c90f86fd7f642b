"""`python -m bench list`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from bench.commands import Commands, add_results
from bench.errors import BenchError

LISTS = ("strategies", "workloads", "metrics", "levers", "runs")


def add(commands: Commands) -> None:
    parser = commands.add_parser("list", help="list what there is", description=run.__doc__)
    parser.add_argument("what", choices=LISTS, help="what to list")
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> None:
    """List strategies, workloads, metrics, levers or recorded runs, one a line."""
    listed: dict[str, Callable[[Path], Iterable[tuple[str, str]]]] = {
        "strategies": _strategies, "workloads": _workloads, "metrics": _metrics, "levers": _levers, "runs": _runs,
    }  # fmt: skip
    rows = [(name, " ".join(text.split())) for name, text in listed[options.what](options.results)]
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        print(f"{name:<{width}}  {text}".rstrip())


def _strategies(_: Path) -> Iterable[tuple[str, str]]:
    from bench.strategies import registry

    for item in registry:
        yield item.name, item.summary
        for option in item.options:
            values = "|".join(option.values) or "|".join(["a whole number", *option.words])
            default = f" (default {option.default})" if option.default else ""
            yield f"  {item.name}:{option.name}", f"{values}: {option.meaning}{default}"
            for kind, reason in option.not_on.items():
                yield "    not with", f"{kind}: {reason}"
            if option.lossy:
                yield "    rounds", _rounding(option.values, option.lossy)


def _workloads(_: Path) -> Iterable[tuple[str, str]]:
    from bench.workloads import registry

    return [(item.name, item.summary) for item in registry]


def _metrics(_: Path) -> Iterable[tuple[str, str]]:
    from bench.metrics import registry

    found = [item.declaration for item in registry]
    return [(item.name, f"{item.meaning} [{item.unit or 'ratio'}{', per device' * item.per_device}]") for item in found]


def _levers(_: Path) -> Iterable[tuple[str, str]]:
    from bench.levers import registry

    for item in registry:
        yield item.name, f"{'|'.join(item.values) or item.takes}: {item.meaning} (default {item.default})"
        yield "  changes", item.changes
        if item.needs:
            yield "  needs", item.needs
        for reason, names in _grouped({**item.not_on, **item.not_with}):
            yield "  not with", f"{', '.join(names)}: {reason}"
        if item.lossy:
            yield "  rounds", _rounding(item.values, item.lossy)


def _grouped(reasons: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    """Each reason with the names that it holds for."""
    for reason in dict.fromkeys(reasons.values()):
        yield reason, [name for name, other in reasons.items() if other == reason]


def _rounding(values: Iterable[str], lossy: Collection[str]) -> str:
    return f"{', '.join(value for value in values if value in lossy)}: no parity verdict"


def _runs(results: Path) -> Iterable[tuple[str, str]]:
    from bench.recording.reader import read_run, runs

    for folder in runs(results):
        try:
            data = read_run(folder)
        except BenchError as error:
            yield folder.name, str(error)
            continue
        ends = Counter(launch.status or "unknown" for launch in data.launches)
        ended = ", ".join(f"{ends[status]} {status}" for status in sorted(ends, key=lambda name: (name != "ok", name)))
        started = f"{data.run.started_at:%Y-%m-%d %H:%M} UTC" if data.run.started_at else "unknown start"
        names = ", ".join(dict.fromkeys(device.name for device in data.run.devices)) or data.run.device_type
        facts = [started, f"{len(data.run.devices)} x {names}", f"launches: {ended or 'none'}"]
        yield folder.name, ", ".join(facts + ([] if data.run.finished_at else ["without a recorded end"]))
