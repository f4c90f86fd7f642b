"""One run against one or several others: case by case a ratio, its interval, a verdict, and every doubt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal, TypeAlias

from bench.analysis.cases import FAILED
from bench.analysis.history import CaseRecord, RunRecord
from bench.analysis.intervals import LEAST_RUNS, Interval, LogMean, pace_apart, ratio_at_equal_pace, ratio_to_runs
from bench.analysis.verdicts import Verdict, inverse, verdict_of

TELLS_NOTHING = 10**0.5 - 1
"""Half-width of an interval that spans a factor of 10."""
WIDE = 0.10
"""Half-width of an interval from which it is called wide."""

NO_PACE = "it was not taken beside every launch, or with too few launches"
PACE_APART = 0.03
"""How far the machine's paces may lie apart without a word."""

Change: TypeAlias = Literal["compared", "broken", "mended", "new", "gone", "not compared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseComparison:
    """One case in both. `base`, `head`: the compared metric (s); None where a side has none.

    change: `broken` ended ok in the base and does not now, or had parity and has it no more (missed, or its check
    failed); `mended` the other way round.
    times_as_long: `head` over `base` at an equal pace of the machine, above 1 is slower; pace: the machine's now
    over that before (s), None where it was not taken and not allowed for. doubts: each with its number and a remedy.
    """

    case_id: str
    change: Change
    base: float | None = None
    head: float | None = None
    base_runs: int = 0
    base_launches: int = 0
    head_launches: int = 0
    times_as_long: Interval | None = None
    pace: float | None = None
    reason: str | None = None
    doubts: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        return None if self.times_as_long is None else verdict_of(inverse(self.times_as_long))

    def is_regression(self, limit: float) -> bool:
        """Slower by more than `limit` (0.03: 3 %) with the near end of the interval, or broken."""
        found = self.times_as_long
        return self.change == "broken" or (found is not None and found.low is not None and found.low > 1 + limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All cases of one run against others. shift: the median ratio, None for fewer than 3."""

    head: RunRecord
    base: tuple[RunRecord, ...]
    cases: tuple[CaseComparison, ...]
    shift: float | None

    @property
    def same_run(self) -> bool:
        return is_same(self.head, self.base)

    def regressions(self, limit: float) -> tuple[CaseComparison, ...]:
        return tuple(case for case in self.cases if case.is_regression(limit))

    @property
    def compared(self) -> tuple[CaseComparison, ...]:
        return tuple(case for case in self.cases if case.times_as_long is not None)


def is_same(head: RunRecord, base: Sequence[RunRecord]) -> bool:
    """Whether a run would be compared with itself."""
    return [run.folder.resolve() for run in base] == [head.folder.resolve()]


def compare(head: RunRecord, base: Sequence[RunRecord], *, why_blind: str | None = None) -> Comparison:
    """Every case of either side, in the order of `head`. `base`: one or several runs, the newest first.

    why_blind: why the machine's pace must not be allowed for, None where it may.
    """
    if is_same(head, base):
        return Comparison(
            head=head, base=tuple(base), cases=tuple(_itself(case) for case in head.cases.values()), shift=None
        )
    before: dict[str, list[CaseRecord]] = {}
    for run in base:
        for case_id, record in run.cases.items():
            before.setdefault(case_id, []).append(record)
    cases = [_compared(case, before.get(case_id, []), why_blind) for case_id, case in head.cases.items()]
    cases += [
        CaseComparison(case_id=case_id, change="gone", base_runs=len(found), reason="not in this run")
        for case_id, found in before.items()
        if case_id not in head.cases
    ]
    moved = [math.log(case.times_as_long.value) for case in cases if case.times_as_long is not None]
    shift = math.exp(median(moved)) if len(moved) >= 3 else None
    return Comparison(head=head, base=tuple(base), cases=tuple(cases), shift=shift)


def _itself(case: CaseRecord) -> CaseComparison:
    """A run against itself: every ratio is 1, whatever the noise."""
    value = None if case.value is None else math.exp(case.value.mean)
    one = Interval(value=1.0, low=1.0, high=1.0) if value is not None else None
    launches = case.value.count if case.value else 0
    return CaseComparison(
        case_id=case.case_id, change="compared" if one else "not compared", base=value, head=value, base_runs=1,
        base_launches=launches, head_launches=launches, times_as_long=one, reason=None if one else _why_none(case),
    )  # fmt: skip


def _compared(head: CaseRecord, before: Sequence[CaseRecord], why_blind: str | None) -> CaseComparison:
    ok = [record for record in before if record.status == "ok"]
    if not before:
        return CaseComparison(case_id=head.case_id, change="new", reason="not in the baseline")
    if head.status != "ok" or not ok:
        return _changed(head, before, bool(ok))
    alike = [record for record in ok if record.data_source == head.data_source]
    if not alike:
        other = f"other data: {ok[0].data_source} before, {head.data_source} now"
        return CaseComparison(case_id=head.case_id, change="not compared", reason=other)
    alike, change = _of_parity(head, alike)
    if change is not None:
        return change
    if not head.trusted:
        what = "emulated or oversubscribed: its speed means nothing"
        return CaseComparison(case_id=head.case_id, change="not compared", reason=what)
    known = [(record, record.value) for record in alike if record.value is not None]
    if head.value is None or not known:
        side = "this run has" if head.value is None else "the baseline has"
        return CaseComparison(
            case_id=head.case_id, change="not compared", reason=f"{side} no figure of the compared metric"
        )
    return _ratio(head, head.value, [record for record, _ in known], [value for _, value in known], why_blind)


def _of_parity(head: CaseRecord, before: Sequence[CaseRecord]) -> tuple[list[CaseRecord], CaseComparison | None]:
    """The records that trained what `head` trains; a comparison where it no longer does, or none of them did.

    before: the newest first. What another training took is no measure of how fast this one is.
    """
    now, runs = head.parity, len(before)
    if now.status in ("missed", *FAILED) and any(record.parity.status == "ok" for record in before):
        said = "missed" if now.status == "missed" else f"check ended as {now.status}"
        reason = f"parity {said}: {now.reason or 'no reason recorded'} (before: ok)"
        return [], CaseComparison(case_id=head.case_id, change="broken", base_runs=runs, reason=reason)
    alike = [record for record in before if record.parity.status != "missed"]
    if now.status == "missed" or (now.status != "ok" and not alike):
        return list(before), None
    if alike:
        return alike, None
    reason = "parity ok now, missed before"
    return [], CaseComparison(case_id=head.case_id, change="mended", base_runs=runs, reason=reason)


def _ratio(
    head: CaseRecord, value: LogMean, records: Sequence[CaseRecord], base: Sequence[LogMean], why_blind: str | None
) -> CaseComparison:
    readings = [record.readings for record in records]
    paced = ratio_at_equal_pace(head.readings, readings) if why_blind is None else None
    ratio = paced or ratio_to_runs(value, base)
    pace = pace_apart(head.readings, readings)
    blind = None if paced else why_blind or NO_PACE
    taken_off = math.exp(value.mean - fmean(run.mean for run in base)) / ratio.value
    return CaseComparison(
        case_id=head.case_id, change="compared", base=math.exp(fmean(run.mean for run in base)),
        head=math.exp(value.mean), base_runs=len(base), base_launches=sum(run.count for run in base),
        head_launches=value.count, times_as_long=ratio, pace=pace,
        doubts=(*_doubts(head, value, records, base, ratio), *_pace_doubts(pace, blind, taken_off, len(base))),
    )  # fmt: skip


def _changed(head: CaseRecord, before: Sequence[CaseRecord], was_ok: bool) -> CaseComparison:
    """A case that one side has no figure of: its status is the finding. A skip is no fault."""
    now = f"{head.status}: {head.reason or 'no reason recorded'}" if head.status != "ok" else "ok"
    if head.status == "ok":
        reason = f"ok now, {before[0].status} before"
        return CaseComparison(case_id=head.case_id, change="mended", base_runs=len(before), reason=reason)
    broken = was_ok and head.status != "skipped"
    return CaseComparison(
        case_id=head.case_id, change="broken" if broken else "not compared", base_runs=len(before),
        reason=f"{now} (before: ok)" if was_ok else f"{now} (before: {before[0].status})",
    )  # fmt: skip


def _why_none(case: CaseRecord) -> str:
    return f"{case.status}: {case.reason}" if case.status != "ok" else "no figure of the compared metric"


def _doubts(
    head: CaseRecord,
    value: LogMean,
    records: Sequence[CaseRecord],
    base: Sequence[LogMean],
    ratio: Interval,
) -> Iterator[str]:
    if ratio.low is None or ratio.high is None:
        few = "this run" if value.count < 2 else "the baseline"
        yield f"too few launches for an interval: {few} has 1; measure with --launches 6 or more"
    elif (half := math.sqrt(ratio.high / ratio.low) - 1) > WIDE:
        text = f"+-{half:.0%}" if half <= TELLS_NOTHING else "beyond a factor of 10"
        yield f"wide interval: {text} over {value.count} launches; measure with more (--launches 6, or 12)"
    rounds = [record.rounds for record in (head, *records) if record.rounds]
    if rounds and max(rounds) > 1.5 * min(rounds):
        yield (
            f"rounds a launch differ, from {min(rounds):g} to {max(rounds):g}: low percentiles of few are higher; give "
            "both runs the same --rounds"
        )
    split = {record.chunk_sizes for record in records if record.chunk_sizes}
    if head.chunk_sizes and split - {head.chunk_sizes}:
        yield f"samples per device differ: {_sizes(next(iter(split)))} before, {_sizes(head.chunk_sizes)} now"


def _pace_doubts(pace: float | None, blind: str | None, taken_off: float, runs: int) -> Iterator[str]:
    """pace: the machine's, None where it was not taken; blind: why the ratio does not allow for it; taken_off: by how
    much that changed the ratio.
    """
    if runs < LEAST_RUNS:
        what = "1 run" if runs == 1 else f"{runs} runs"
        rest = "beyond the machine's pace " if blind is None else ""
        yield f"the baseline is {what}: what differs {rest}from run to run is not in the interval; give 3 or more"
    if pace is not None and abs(pace - 1) > PACE_APART:
        moved = f"the machine was {abs(pace - 1):.0%} {'slower' if pace > 1 else 'faster'} now by its pace"
        allowed = f"that took {taken_off - 1:+.1%} off the ratio, whose interval covers all of it"
        yield f"{moved}; {allowed}" if blind is None else f"{moved}; not allowed for: {blind}"


def _sizes(chunks: Sequence[int]) -> str:
    return "+".join(map(str, chunks))


def counted(comparison: Comparison) -> Mapping[str, int]:
    """How many cases have which verdict, or why they have none."""
    found: dict[str, int] = {}
    for case in comparison.cases:
        word = case.verdict or case.change
        found[word] = found.get(word, 0) + 1
    return found
