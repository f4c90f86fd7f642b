"""What the terminal shows of a run: the plan, a line per launch with the time left, the end."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import workloads
from bench.planning.plan import Plan, reason_to_skip
from bench.recording.reader import read_run
from bench.reporting.page import render
from bench.reporting.terminal import print_summary
from bench.running.searches import Search
from bench.running.session import Finished
from bench.schema import Case, Launch, Run, Trace

COLOURS = {"ok": "green", "skipped": "yellow", "oom": "yellow", "timeout": "red", "error": "red"}


def clock_text(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any: 2:05, 1:02:05."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def write_plan(
    reporter: Any, plan: Plan, run: Run, cases: Sequence[Case], searches: Sequence[Search] = (), *, dry_run: bool
) -> None:
    """The devices, the number of launches, the expected time, and where results go."""
    parity = sum(case.purpose == "parity" for case in cases)
    timing = len(cases) - parity
    distinct = dict.fromkeys(case for case in cases if case.purpose == "timing")
    expected = clock_text(plan.expected_seconds(timing, parity))
    names = ", ".join(dict.fromkeys(device.name for device in run.devices))
    reporter.section("dpbench", sep="-")
    devices = _count(len(plan.devices), "device")
    reporter.write_line(f"{plan.machine.device_type}, {devices} ({names}), preset {plan.preset.name}")
    for note in run.notes:
        reporter.write_line(note, yellow=True)
    amount = ", ".join([_count(len(distinct), "case"), _count(timing, "launch"), _count(parity, "parity check")])
    doubt = "; that is a figure for GPUs, CPUs take far longer" if _slow(plan) else ""
    reporter.write_line(f"{amount}; about {expected} (minutes:seconds) when nothing else runs{doubt}")
    for search in searches:
        timed = len(search.cases) * plan.launches
        longest = clock_text(plan.expected_seconds(timed, search.most_probes))
        asked = f"up to {_count(search.most_probes, 'probe')}, then {_count(timed, 'launch')}"
        reporter.write_line(f"then {search.name}: {asked}; about {longest} where it takes them all")
    if dry_run:
        for case in distinct:
            _write_case(reporter, plan, case)
        for search in searches:
            reporter.write_line(f"  {search.name}, which begins with:")
            for case in search.cases:
                _write_case(reporter, plan, case, "  ")
    verb = "would be" if dry_run else "are"
    reporter.write_line(f"results {verb} in {plan.options.results / run.run_id}, the report in {plan.options.reports}")


def _write_case(reporter: Any, plan: Plan, case: Case, indent: str = "") -> None:
    reason = reason_to_skip(case, plan.machine, None)
    reporter.write_line(f"  {indent}{case}" + (f"  skipped: {reason}" if reason else ""), yellow=bool(reason))


def _count(number: int, word: str) -> str:
    plural = "es" if word.endswith("ch") else "s"
    return f"{number} {word}{'' if number == 1 else plural}"


def _slow(plan: Plan) -> bool:
    return plan.machine.device_type == "cpu" and plan.size != "quick"


class Progress:
    """A line per launch: number of number, what it is, how it ended, what it reached, time left."""

    def __init__(self, reporter: Any, plan: Plan, cases: Sequence[Case], searches: Sequence[Search] = ()) -> None:
        self.known: set[str] = set()
        self._reporter, self._plan = reporter, plan
        self._waiting = [case.purpose for case in cases]
        self._total, self._done, self._started = len(cases) + len(searches), 0, 0.0
        self._seconds: dict[str, list[float]] = {"timing": [], "parity": []}
        self._label = ""
        self._capture = reporter.config.pluginmanager.get_plugin("capturemanager")
        reporter.showfspath = False
        # Our lines carry their own count; pytest has no public switch for its percentages.
        reporter._show_progress_info = False

    def start(self, nodeid: str, label: str, case: Case) -> None:
        """A launch begins; on a terminal its line appears at once."""
        self.known.add(nodeid)
        self._started = time.perf_counter()
        self._label = f"[{self._done + 1:>{len(str(self._total))}}/{self._total}] {label}"
        if self._reporter.isatty and self._reporter.verbosity <= 0:
            line = f"{self._label} ... {clock_text(self._left())} left"
            self._reporter.rewrite(line[: self._reporter._tw.fullwidth - 1], erase=True)

    def finish(self, case: Case, row: Launch | None, trace: Trace | None) -> None:
        """A launch is over; its line stays."""
        self._done += 1
        self._waiting.remove(case.purpose)
        self._seconds[case.purpose].append(time.perf_counter() - self._started)
        if self._reporter.isatty and self._reporter.verbosity <= 0:
            self._reporter.rewrite("", erase=True)
            self._reporter.write("\r")
        left = f"  ({clock_text(self._left())} left)" if self._waiting else ""
        self._write(self._label, case, row, trace, left)

    def _write(self, label: str, case: Case, row: Launch | None, trace: Trace | None, left: str = "") -> None:
        status = row.status if row is not None else "not run"
        result = _reached(case, trace) if status == "ok" else (row.reason or "") if row is not None else ""
        self._reporter.ensure_newline()
        self._reporter.write(f"{label}  ")
        self._reporter.write(status, **{COLOURS.get(status, "red"): True})
        self._reporter.write(f"  {result.splitlines()[0] if result else ''}{left}\n")

    def search(self, nodeid: str, search: Search) -> None:
        """A search begins; its launches have lines of their own, since how many there will be is not known."""
        self.known.add(nodeid)
        self._done += 1
        self.say(f"[{self._done}/{self._total}] {search.name}: up to {_count(search.most_probes, 'probe')}")

    def say(self, text: str) -> None:
        """A line of a search."""
        with self._uncaptured():
            self._reporter.ensure_newline()
            self._reporter.write_line(text)
            self._reporter._tw.flush()

    def tell(self, finished: Finished) -> None:
        """A launch that a search asked for is over."""
        row = finished.row
        label = f"  {row.case_id}" + ("" if row.purpose == "search" else f"-launch{row.launch}")
        with self._uncaptured():
            self._write(label, finished.case, row, finished.trace)
            self._reporter._tw.flush()

    def _uncaptured(self) -> AbstractContextManager[None]:
        """Within a test pytest keeps what is written; the lines of a search are for now."""
        shown: AbstractContextManager[None] = (
            nullcontext() if self._capture is None else self._capture.global_and_fixture_disabled()
        )
        return shown

    def _left(self) -> float:
        """Expected time of what has not run (s): the mean so far of its kind, else the preset's figure."""
        guess = {"timing": self._plan.expected_seconds(1, 0), "parity": self._plan.expected_seconds(0, 1)}
        spent = sum(sum(known) for known in self._seconds.values())
        guessed = sum(guess[kind] * len(known) for kind, known in self._seconds.items())
        # This machine against the preset's figures, as far as it is known.
        pace = spent / guessed if guessed else 1.0
        mean = {kind: statistics.fmean(known) if known else pace * guess[kind] for kind, known in self._seconds.items()}
        return sum(mean[purpose] for purpose in self._waiting)


def _reached(case: Case, trace: Trace | None) -> str:
    if trace is None or case.purpose == "search":
        return ""
    if trace.parity is not None:
        return f"parity_error {trace.parity.error:.1e}"
    seconds = statistics.median(trace.round_seconds) / trace.steps_per_round
    return f"{case.global_batch_size / seconds:,.1f} {workloads.registry.get(case.workload).sample_word}/s"


def write_summary(reporter: Any, folder: Path) -> None:
    """The table of what each strategy reached."""
    width = reporter._tw.fullwidth if reporter.isatty else 140
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=reporter.hasmarkup, highlight=False)
    print_summary(read_run(folder), console)
    reporter.section("dpbench")
    reporter.write(text.getvalue())


def write_report(reporter: Any, folder: Path, reports: Path) -> None:
    """Render the page, and say where it and the tables lie. A failure here loses nothing that was measured."""
    try:
        page = render(folder, reports)
    except Exception as error:
        reporter.write_line(f"the report could not be rendered: {type(error).__name__}: {error}", red=True)
        reporter.write_line(f"the tables are whole; try again with: python -m bench report {folder}")
        return
    reporter.write_line(f"results: {folder.resolve()}")
    reporter.write_line(f"report:  {page.resolve()}")
