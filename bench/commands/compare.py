"""`python -m bench compare`: is this run slower than that one, or than the last ones?"""

from __future__ import annotations

import argparse
import re

from bench.commands import Commands, add_results
from bench.errors import UsageError

EXIT_SLOWER = 10
EXIT_NO_BASELINE = 11
FORMATS = ("text", "json", "markdown")
METRICS = ("step_p10_seconds", "step_seconds")
MEASURE_MORE = "measure the same cases on this machine again (python -m bench reproduce RUN), and compare with that"
OWN_KIND = "give a run of a machine like this one, or last:10, which takes only such runs"
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
DESCRIPTION = (
    "Compare one run with another or with a window of earlier ones, case by case: a ratio with its 95 % interval and a "
    "verdict (faster, slower, same: inside +-1 %, or unclear). Runs are comparable where devices, processor, cores and "
    "memory are the same; versions, driver and commit are listed where they differ."
)
STATUSES = (
    "exit status: 0, or 10 where a case is slower by more than the limit with the near end of its interval, ended ok "
    "before and fails now, or lost its parity; 11 where there is no comparable baseline; 2 for a wrong command "
    "line or run"
)


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "compare", help="compare a run with earlier ones; a gate for CI", description=DESCRIPTION, epilog=STATUSES
    )
    parser.add_argument(
        "base",
        metavar="BASE",
        help="run id, latest, the folder of a run, a folder of runs (all that are comparable), or last:N: the last N "
        "comparable runs before HEAD (last alone: 10); from 3 runs on, what differs from run to run is in the interval",
    )
    parser.add_argument("head", metavar="HEAD", help="the run to judge: run id, latest, or folder")
    parser.add_argument(
        "--fail-on-slower",
        metavar="PERCENT",
        default="3%",
        help="the limit, with its %% sign; the whole interval has to lie beyond it (default: 3%%)",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="text (default), json, or markdown")
    parser.add_argument(
        "--metric",
        choices=METRICS,
        default=METRICS[0],
        help="what is compared: the 10th percentile of a launch's rounds (default), which other work on the machine "
        "moves least, or their median",
    )
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Print the comparison; the exit status says what it found."""
    from bench.analysis.comparing import compare, is_same
    from bench.analysis.environments import other_software, why_not_comparable
    from bench.analysis.history import MOST_WITH_READINGS, find_baseline, read_record, with_readings
    from bench.recording.reader import find_run
    from bench.reporting.comparison import Judged, as_text

    limit = share(options.fail_on_slower)
    head = read_record(find_run(options.results, options.head), options.metric)
    baseline = find_baseline(options.results, options.base, head, options.metric)
    base, same = baseline.runs, is_same(head, baseline.runs)
    refusal = None if base else f"there are no {baseline.words} with a case of this one; {_remedy(options.metric)}"
    if len(base) == 1 and not same and (why := why_not_comparable(base[0].run, head.run)):
        refusal = f"{baseline.words} is not comparable: {why}" + (f"; {OWN_KIND}" if head.run.fingerprint else "")
    if not head.cases:
        refusal = (
            f"{options.head} holds no timed case that can be read; python -m bench report {options.head} says more"
        )
    if refusal is None:
        few = len(base) <= MOST_WITH_READINGS
        head = with_readings(head, options.metric)
        # Of many runs the newest at least, for its parity.
        base = tuple(with_readings(run, options.metric) if few or run is base[0] else run for run in base)
    blind = next((why for record in base if (why := other_software(record.run, head.run))), None)
    found = None if refusal else compare(head, base, why_blind=blind)
    regressions = found.regressions(limit) if found else ()
    if found and not found.compared and not regressions and not same:
        refusal = f"no case could be compared, for the reasons beside each; {_remedy(options.metric)}"
    status = EXIT_NO_BASELINE if refusal else EXIT_SLOWER if regressions else 0
    judged = Judged(
        head=head, baseline=baseline, found=found, metric=options.metric, limit=limit, refusal=refusal, status=status
    )
    print(as_text(judged, options.format))
    return status


def _remedy(metric: str) -> str:
    """What to do where there is nothing to compare with."""
    older = f"; of older runs try --metric {METRICS[1]}" if metric != METRICS[1] else ""
    return f"{MEASURE_MORE}{older}"


def share(text: str) -> float:
    """`3%` as 0.03. UsageError for anything else."""
    found = _PERCENT.fullmatch(text.strip())
    if found is None or float(found[1]) >= 1000:
        raise UsageError(f"--fail-on-slower {text!r} is no percentage; write e.g. --fail-on-slower 3%")
    return float(found[1]) / 100
