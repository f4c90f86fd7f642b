"""`python -m bench export`."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from pathlib import Path

from bench.commands import Commands, add_results

FORMATS = {
    "github-action": "JSON for benchmark-action/github-action-benchmark with tool: customSmallerIsBetter (seconds per "
    "step, so less is better)",
    "bencher": "Bencher Metric Format, for bencher run --adapter json: latency is a step in nanoseconds, throughput is "
    "samples per second",
    "csv": "the rows of bench.load, a line a case",
    "markdown": "the comparison as tables, for a job summary or a comment",
}


def add(commands: Commands) -> None:
    parser = commands.add_parser("export", help="write a run in another format", description=run.__doc__)
    parser.add_argument("run", metavar="RUN", help="run id, folder, or latest")
    formats = "; ".join(f"{name}: {meaning}" for name, meaning in FORMATS.items())
    parser.add_argument("--format", required=True, choices=list(FORMATS), help=formats)
    add_results(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: stdout)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> None:
    """Write a run in the format of another tool, to stdout or a file whose path is printed. Needs no GPU and no torch.

    The two formats for trackers hold the cases that ended ok, under their case ids; stderr names the others, those
    that are not ranked, and every reason to doubt figures. csv and markdown hold every case with its status.
    """
    from bench.analysis.wording import banner, one_line
    from bench.recording.files import write_atomically
    from bench.recording.reader import find_run, read_run
    from bench.reporting.exporting import export

    data = read_run(find_run(options.results, options.run))
    made = export(data, options.format)
    told = {"left out": made.left_out, "not ranked": made.not_ranked, "doubt": made.doubts}
    notes = [f"{word}: {one_line(line)}" for word, lines in told.items() for line in lines]
    if options.format != "markdown" and (notice := banner(data)):
        notes.insert(0, notice)
    # A tracker's doubts hold these already.
    notes += [] if made.doubts else map(one_line, data.problems)
    for note in notes:
        print(note, file=sys.stderr)
    if options.output is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A name may hold what the encoding of the terminal or pipe has not.
            sys.stdout.reconfigure(errors="backslashreplace")
        print(made.text, end="")
        return
    with contextlib.suppress(OSError):  # the write below says what is wrong
        options.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.output, lambda file: file.write(made.text.encode("utf-8", "replace")))
    print(options.output)
