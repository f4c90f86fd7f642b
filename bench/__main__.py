"""`python -m bench`: reports, lists, doctor. Each command imports only what it needs, so a report needs no torch."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench.errors import BenchError

EXIT_USAGE = 2
REPORTS_NEED = ("pandas", "pyarrow", "matplotlib", "jinja2")
LISTS = ("strategies", "workloads", "metrics", "levers", "runs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, or 2 with the error on stderr."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = options.command
    try:
        command(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ModuleNotFoundError as error:
        install = f"pip install {' '.join(REPORTS_NEED)}, or " if error.name in REPORTS_NEED else ""
        remedy = f"{install}use the Python that measures, in a checkout .nox/env/bin/python"
        print(f"error: {options.name} needs {error.name}, which this Python does not have; {remedy}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:  # a full disk, or a reader that has gone, such as `head`
        with contextlib.suppress(OSError):
            print(f"error: cannot print: {error}", file=sys.stderr)
        # What is still buffered would fail again, with a traceback, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_USAGE
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Which data-parallel strategy, for this model on this machine, and how sure are we?",
        epilog="Measuring itself is `python -m pytest scenarios` with this Python, or `nox -s bench`; "
        "`python -m pytest scenarios --help` lists its options under 'dpbench'.",
    )
    commands = parser.add_subparsers(dest="name", title="commands", required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="render a run as one HTML page", description=_report.__doc__)
    report.add_argument("run", nargs="?", default="latest", metavar="RUN", help="run id, folder, or latest (default)")
    _add_results(report)
    report.add_argument(
        "--out", type=Path, default=Path("reports"), metavar="DIR", help="where to write (default: reports)"
    )
    report.set_defaults(command=_report)
    listing = commands.add_parser("list", help="list what there is", description=_list.__doc__)
    listing.add_argument("what", choices=LISTS, help="what to list")
    _add_results(listing)
    listing.set_defaults(command=_list)
    doctor = commands.add_parser("doctor", help="what this box has, and what would bite", description=_doctor.__doc__)
    doctor.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    _add_results(doctor)
    doctor.set_defaults(command=_doctor)
    return parser


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="folder of the runs (default: results)"
    )


def _report(options: argparse.Namespace) -> None:
    """Rebuild the report of a run from its parquet files and print its path. Needs no GPU and no torch."""
    from bench.recording.reader import find_run
    from bench.reporting.page import render

    print(render(find_run(options.results, options.run), options.out))


def _list(options: argparse.Namespace) -> None:
    """List strategies, workloads, metrics, levers or recorded runs, one a line."""
    listed: dict[str, Callable[[Path], Iterable[tuple[str, str]]]] = {
        "strategies": _strategies, "workloads": _workloads, "metrics": _metrics, "levers": _levers, "runs": _runs,
    }  # fmt: skip
    rows = [(name, " ".join(text.split())) for name, text in listed[options.what](options.results)]
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        print(f"{name:<{width}}  {text}".rstrip())


def _doctor(options: argparse.Namespace) -> None:
    """Say what this box has, what would bite a run, and how to mend it. Needs no GPU. Status 0, whatever it finds."""
    from bench.doctor.show import run

    run(options.results, as_json=options.json)


def _strategies(_: Path) -> Iterable[tuple[str, str]]:
    from bench.strategies import registry

    for item in registry:
        yield item.name, item.summary
        for option in item.options:
            values = "|".join(option.values) or "|".join(["a whole number", *option.words])
            default = f" (default {option.default})" if option.default else ""
            yield f"  {item.name}:{option.name}", f"{values}: {option.meaning}{default}"


def _workloads(_: Path) -> Iterable[tuple[str, str]]:
    from bench.workloads import registry

    return [(item.name, item.summary) for item in registry]


def _metrics(_: Path) -> Iterable[tuple[str, str]]:
    from bench.metrics import registry

    found = [item.declaration for item in registry]
    return [(item.name, f"{item.meaning} [{item.unit or 'ratio'}{', per device' * item.per_device}]") for item in found]


def _levers(_: Path) -> Iterable[tuple[str, str]]:
    from bench.levers import LEVERS

    return [(item.name, f"{'|'.join(item.values) or 'a whole number'}: {item.meaning}") for item in LEVERS]


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


if __name__ == "__main__":
    sys.exit(main())
