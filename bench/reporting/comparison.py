"""A comparison of runs as text, as JSON and as markdown: the same figures, words and doubts."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.analysis.checks import REASONS, Check, checks
from bench.analysis.comparing import TELLS_NOTHING, CaseComparison, Comparison, counted
from bench.analysis.environments import Difference, differences
from bench.analysis.history import Baseline, RunRecord
from bench.analysis.summary import summarise
from bench.analysis.wording import banner, ends_text, one_line
from bench.recording.reader import RunData, read_run
from bench.reporting.markdown import code, escaped, row
from bench.reporting.units import Scale, scale_of

NONE = "–"
HEADINGS = ("case", "before", "now", "times as long (95 %)", "verdict")
MOST_CHECKED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What `compare` found. found: None where there is nothing comparable, `refusal` says why; limit: 0.03 is 3 %."""

    head: RunRecord
    baseline: Baseline
    found: Comparison | None
    metric: str
    limit: float
    refusal: str | None
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One case as text."""

    case: str
    before: str
    now: str
    ratio: str
    verdict: str
    regression: bool

    @property
    def cells(self) -> tuple[str, ...]:
        return self.case, self.before, self.now, self.ratio, self.verdict


def as_text(judged: Judged, form: str) -> str:
    """The comparison in one of the formats: text, json or markdown."""
    data = read_run(judged.head.folder)
    return {"text": _text, "json": _json, "markdown": _markdown}[form](judged, data)


def lines(found: Comparison, limit: float) -> list[Line]:
    """Every case, times in one unit."""
    scale = scale_of((value for case in found.cases for value in (case.base, case.head)), "s")
    return [_line(case, scale, limit) for case in found.cases]


def _line(case: CaseComparison, scale: Scale, limit: float) -> Line:
    regression = case.is_regression(limit)
    ratio = NONE
    if (interval := case.times_as_long) is not None:
        ends = ends_text(interval.low, interval.high, case.head_launches, "{:.3f}".format)
        ratio = f"{interval.value:.3f} ({ends})"
    word = case.verdict or one_line(f"{case.change}: {case.reason}")
    return Line(
        case=case.case_id,
        before=NONE if case.base is None else scale.text(case.base),
        now=NONE if case.head is None else scale.text(case.head),
        ratio=ratio,
        verdict=f"REGRESSION, {'slower' if case.times_as_long else word}" if regression else word,
        regression=regression,
    )


def headline(judged: Judged) -> str:
    """What was compared with what."""
    runs = [run.run.run_id or run.folder.name for run in judged.baseline.runs]
    names = f" ({runs[-1]} to {runs[0]})" if len(runs) > 1 else ""
    if len(runs) == 1 and runs[0] not in judged.baseline.words:
        names = f" ({runs[0]})"
    return f"{judged.head.folder.resolve().name} against {judged.baseline.words}{names}"


def conclusion(judged: Judged) -> list[str]:
    """What it comes to, in sentences; the regressions by name."""
    found = judged.found
    if found is None or judged.refusal:
        return [f"Not compared: {judged.refusal}."]
    if found.same_run:
        return ["This is the same run on both sides: nothing can be slower."]
    said = [", ".join(f"{count} {word}" for word, count in counted(found).items()) + "."]
    regressions = found.regressions(judged.limit)
    if regressions:
        said.append(f"Regressions (slower by more than {100 * judged.limit:g} % with the whole interval, or broken):")
        said += [f"  {case.case_id}" for case in regressions]
    undecided = [case for case in found.compared if _undecided(case, judged.limit)]
    if not regressions:
        sure = f"no case is slower by more than {100 * judged.limit:g} % with its whole interval"
        known = "No regression" if len(undecided) < len(found.compared) else "Nothing is decided"
        said.append(f"{known}: {sure}.")
    gone = [case for case in found.cases if case.change == "gone"]
    if gone:
        said.append(f"Not judged: {len(gone)} cases of the baseline are not in this run.")
    if undecided:
        said.append(f"Not decided for {len(undecided)} of {len(found.compared)} cases: {_more_launches(undecided)}")
    if found.shift is not None and abs(found.shift - 1) > judged.limit:
        said.append(
            f"The median case takes {found.shift:.3f} times as long: rather the machine or the software than one case."
        )
    return said


def _undecided(case: CaseComparison, limit: float) -> bool:
    """Whether the interval holds both what is below the limit and what is beyond."""
    found = case.times_as_long
    if found is None or found.low is None or found.high is None:
        return True
    return found.low <= 1 + limit < found.high


def _more_launches(cases: Sequence[CaseComparison]) -> str:
    widths = [
        math.log(case.times_as_long.high / case.times_as_long.low) / 2
        for case in cases
        if case.times_as_long and case.times_as_long.low and case.times_as_long.high
    ]
    widest = math.exp(max(widths)) - 1 if widths else 0.0
    if widest > TELLS_NOTHING:
        return "intervals beyond a factor of 10; measure with --launches 6 or more."
    wide = f"intervals up to +-{widest:.1%}; " if widths else ""
    return f"{wide}measure with more --launches (four times as many halve an interval), or against 3 runs or more."


def _told(judged: Judged, data: RunData) -> Iterator[tuple[str, list[str]]]:
    """The doubts about the comparison, the checks of the judged run and of the baseline, with what was seen."""
    if judged.baseline.left_out:
        yield "Left out of the baseline", list(judged.baseline.left_out)
    doubts: dict[str, list[str]] = {}
    for case in judged.found.cases if judged.found else ():
        for doubt in case.doubts:
            doubts.setdefault(doubt, []).append(case.case_id)
    if doubts:
        seen = [f"{_several(cases)}: {doubt}" for doubt, cases in doubts.items()]
        yield "Doubts about the comparison", seen
    for title, check in [*((check.title, check) for check in _checks(data)), *_of_baseline(judged)]:
        shown = len(check.seen) if check.title in REASONS else MOST_CHECKED
        rest = [f"and {len(check.seen) - shown} more; the report lists all"] if len(check.seen) > shown else []
        remedy = [f"-> {check.remedy}"] if check.remedy else []
        yield title, [*check.seen[:shown], *rest, *remedy]


def _of_baseline(judged: Judged) -> Iterator[tuple[str, Check]]:
    """The checks of the newest run of the baseline; its cases without a figure stand in the table."""
    if judged.found is None or judged.found.same_run:
        return
    newest = judged.baseline.runs[0]
    for check in _checks(read_run(newest.folder)):
        if check.title not in REASONS:
            yield one_line(f"In the baseline ({newest.run.run_id or newest.folder.name}): {check.title}"), check


def _checks(data: RunData) -> tuple[Check, ...]:
    return checks(data, summarise(data))


def _several(cases: Sequence[str]) -> str:
    return cases[0] if len(cases) == 1 else f"{len(cases)} cases, first {cases[0]}"


def _differences(judged: Judged) -> tuple[Difference, ...]:
    """How the newest run of the baseline was made in another environment."""
    return differences(judged.baseline.runs[0].run, judged.head.run) if judged.baseline.runs else ()


def _difference(item: Difference) -> str:
    return f"{item.name}: {item.base or 'none'} -> {item.head or 'none'}"


def _text(judged: Judged, data: RunData) -> str:
    parts = [headline(judged)]
    if notice := banner(data):
        parts.append(notice)
    if judged.found:
        parts += ["", *_aligned([HEADINGS, *(line.cells for line in lines(judged.found, judged.limit))]), ""]
    parts += conclusion(judged)
    if found := _differences(judged):
        parts += ["", "The environments differ (the newest of the baseline -> now):"]
        parts += [f"  {_difference(item)}" for item in found]
    for title, seen in _told(judged, data):
        parts += ["", f"! {title}", *(f"    {one_line(item)}" for item in seen)]
    return "\n".join(parts)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _markdown(judged: Judged, data: RunData) -> str:
    parts = [f"### {escaped(headline(judged))}", ""]
    if notice := banner(data):
        parts += [f"> {escaped(notice)}", ""]
    if judged.found:
        parts += [row(HEADINGS), row(["---", "--:", "--:", "--:", "---"])]
        for line in lines(judged.found, judged.limit):
            cells = [escaped(cell) for cell in line.cells]
            parts.append(row([*cells[:4], f"**{cells[4]}**" if line.regression else cells[4]]))
        parts.append("")
    listed = False
    for sentence in conclusion(judged):
        if listed and not sentence.startswith("  "):
            parts.append("")  # or it would belong to the last item
        listed = sentence.startswith("  ")
        parts.append(f"- {escaped(sentence)}" if listed else escaped(sentence))
    if found := _differences(judged):
        parts += _folded("The environments differ", [_difference(item) for item in found])
    for title, seen in _told(judged, data):
        parts += _folded(title, seen)
    return "\n".join(parts)


def _folded(title: str, seen: Sequence[str]) -> list[str]:
    summary = f"<details><summary>{html.escape(title)} ({len(seen)})</summary>"
    return ["", summary, "", *(f"- {code(item)}" for item in seen), "", "</details>"]


def _json(judged: Judged, data: RunData) -> str:
    found = judged.found
    document = {
        "head": judged.head.run.run_id,
        "base": [run.run.run_id for run in judged.baseline.runs],
        "baseline": judged.baseline.words,
        "metric": judged.metric,
        "fail_on_slower": judged.limit,
        "exit_status": judged.status,
        "same_run": bool(found and found.same_run),
        "not_compared": judged.refusal,
        "conclusion": [sentence.strip() for sentence in conclusion(judged)],
        "cases": [_case(case, judged.limit) for case in found.cases] if found else [],
        "all_cases_times_as_long": found.shift if found else None,
        "environment_differences": [
            {"name": item.name, "base": item.base, "head": item.head} for item in _differences(judged)
        ],
        "left_out": list(judged.baseline.left_out),
        "checks": [_as_json(check.title, check) for check in _checks(data)],
        "baseline_checks": [_as_json(title, check) for title, check in _of_baseline(judged)],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _as_json(title: str, check: Check) -> dict[str, object]:
    return {"title": title, "seen": list(check.seen), "remedy": check.remedy}


def _case(case: CaseComparison, limit: float) -> dict[str, object]:
    ratio = case.times_as_long
    return {
        "case_id": case.case_id,
        "change": case.change,
        "verdict": case.verdict,
        "regression": case.is_regression(limit),
        "base_seconds": case.base,
        "head_seconds": case.head,
        "times_as_long": ratio.value if ratio else None,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
        "machine_pace": case.pace,
        "base_runs": case.base_runs,
        "base_launches": case.base_launches,
        "head_launches": case.head_launches,
        "reason": case.reason,
        "doubts": list(case.doubts),
    }
