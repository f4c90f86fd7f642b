"""What `python -m bench compare` says of launches that `tests.benchmarks.false_alarms` measured.

The turns are cut into runs of so many launches a case. Each run is judged against the one before it, the one before
that, and the ten before it, by the code of the command: how many comparisons of identical code are called slower by
more than 3 %, and how many find the case that was slowed. Beside it stand the same estimate without an interval, the
interval without the machine's pace, and what pytest-benchmark's own check (that of
`--benchmark-compare-fail=mean:3%`) says of the same rounds. Shares come with a 95 % interval by Wilson (1927), taking
comparisons for independent, which those that share a run are not quite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TypeAlias

import pyarrow.parquet as pq
from pytest_benchmark.utils import parse_compare_fail

from bench.analysis.comparing import compare
from bench.analysis.history import CaseRecord, RunRecord
from bench.analysis.intervals import Reading, log_mean, ratio_in_turns
from bench.series import percentile_10
from tests.recording.made_up import made_run

LIMIT, WINDOW = 0.03, 10
SLOWED, SHARES = ("single-b16", "ddp-b16"), (0.03, 0.05, 0.10)
TWINS = {name: f"{name} again" for name in SLOWED}
STRATEGIES = {"single-b16": "single", "ddp-b16": "ddp", "fsdp-b16": "fsdp"}
IDENTICAL = STRATEGIES | {twin: STRATEGIES[name] for name, twin in TWINS.items()}
"""The strategy of each case of identical code, all at a global batch of 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launch: its case, its turn, the seconds a step of each of its rounds, the machine's pace (s)."""

    case: str
    turn: int
    steps: tuple[float, ...]
    pace: float


Run: TypeAlias = Mapping[str, Sequence[Launched]]
"""The launches of one run by case."""
Rule: TypeAlias = Callable[[Run, Sequence[Run]], "set[str]"]
"""Which cases of a run are called slower than those of earlier ones, the newest of them first."""


def slowed_name(case: str, share: float) -> str:
    return f"{case}, {share:.0%} slower"


def read(file: Path) -> list[Launched]:
    return [
        Launched(case=row["case"], turn=row["turn"], steps=tuple(row["step_seconds"]), pace=row["pace_seconds"])
        for row in pq.read_table(file).to_pylist()
    ]


def runs_of(launched: Sequence[Launched], launches: int) -> list[Run]:
    """Whole runs of `launches` launches a case, in order."""
    found: dict[int, dict[str, list[Launched]]] = {}
    for item in launched:
        found.setdefault(item.turn // launches, {}).setdefault(item.case, []).append(item)
    return [run for run in found.values() if all(len(of) == launches for of in run.values())]


def as_measured(run: Run, share: float | None = None) -> Run:
    """The five cases of a run; with a share those that were slowed by so much in the place of their like."""
    cases = {name: run[name] for name in IDENTICAL}
    return cases if share is None else cases | {name: run[slowed_name(name, share)] for name in SLOWED}


def gate(value: Callable[[Sequence[float]], float], *, paced: bool = True, limit: float = LIMIT) -> Rule:
    """The gate of `compare` on `value` of each launch's rounds, with the machine's pace beside them or without."""

    def rule(head: Run, base: Sequence[Run]) -> set[str]:
        records = [_record(run, f"run{number}", value, paced) for number, run in enumerate([head, *base])]
        return {case.case_id for case in compare(records[0], records[1:]).regressions(limit)}

    return rule


def _record(run: Run, name: str, value: Callable[[Sequence[float]], float], paced: bool) -> RunRecord:
    cases = {
        case: CaseRecord(
            case_id=case, status="ok", reason=None, trusted=True, data_source="", chunk_sizes=(),
            value=log_mean([value(item.steps) for item in of]),
            readings=tuple(Reading(value=value(item.steps), pace=item.pace) for item in of) if paced else (),
        )
        for case, of in run.items()
    }  # fmt: skip
    return RunRecord(folder=Path(name), run=made_run(), cases=cases)


def by_value(head: Run, base: Sequence[Run]) -> set[str]:
    """The same estimate as the gate's, without its interval."""
    found = set()
    for case in head:
        means = [fmean(math.log(percentile_10(item.steps)) for item in run[case]) for run in (head, *base)]
        if math.exp(means[0] - fmean(means[1:])) > 1 + LIMIT:
            found.add(case)
    return found


def plain_mean(head: Run, base: Sequence[Run]) -> set[str]:
    """pytest-benchmark's own check of the mean over all rounds, against the newest run before."""
    (check,) = [parse_compare_fail(f"mean:{LIMIT * 100:.0f}%")]
    means = [
        {case: fmean(step for item in of for step in item.steps) for case, of in run.items()} for run in (head, base[0])
    ]
    return {case for case in head if check.fails({"mean": means[0][case]}, {"mean": means[1][case]})}


RULES: Mapping[str, Rule] = {
    "compare": gate(percentile_10),
    "compare --metric step_seconds": gate(median),
    "compare --fail-on-slower 0%": gate(percentile_10, limit=0.0),
    "compare without the machine's pace": gate(percentile_10, paced=False),
    "the estimate without an interval": by_value,
    "pytest-benchmark mean:3%": plain_mean,
}


def comparisons(runs: Sequence[Run], baselines: Sequence[Sequence[int]]) -> Iterator[tuple[Run, list[Run]]]:
    """Each run with each of its baselines: how many runs back, the newest first."""
    for number, run in enumerate(runs):
        for back in baselines:
            if number >= max(back):
                yield run, [as_measured(runs[number - distance]) for distance in back]


def share_text(hits: int, of: int) -> str:
    """A share with its interval by Wilson, e.g. `1.5 % (0.5 to 4.3), 3 of 200`."""
    z, p = 1.959963984540054, hits / of
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    low, high = ((middle + sign * half) / (1 + z * z / of) for sign in (-1, 1))
    return f"{100 * p:5.1f} % ({100 * max(low, 0):.1f} to {100 * high:.1f}), {hits} of {of}"


def judge(launched: Sequence[Launched], launch_counts: Sequence[int]) -> None:
    """Print the spread, then for each number of launches and each baseline how often each rule fires."""
    turns = len({item.turn for item in launched})
    rounds = fmean(len(item.steps) for item in launched)
    print(f"{len(launched)} launches in {turns} turns, rounds a launch {rounds:.1f}")
    _print_spread(launched)
    _print_paired(launched, launch_counts)
    baselines = {
        "one earlier run (1 and 2 back)": [[1], [2]],
        f"the {WINDOW} runs before": [list(range(1, WINDOW + 1))],
    }
    for launches in launch_counts:
        runs = runs_of(launched, launches)
        for words, back in baselines.items():
            pairs = list(comparisons(runs, back))
            if pairs:
                print(f"\n{launches} launches a case, {len(runs)} runs, against {words}")
                _print_rules(pairs)


def _print_rules(pairs: Sequence[tuple[Run, list[Run]]]) -> None:
    for name, rule in RULES.items():
        print(f"  {name}")
        alarms = sum(len(rule(as_measured(run), base)) for run, base in pairs)
        print(f"    identical code  {share_text(alarms, len(pairs) * len(IDENTICAL))}")
        for share in SHARES:
            called = [rule(as_measured(run, share), base) for run, base in pairs]
            for case in SLOWED:
                found = sum(case in slower for slower in called)
                print(f"    {case}, {share:4.0%} slower  {share_text(found, len(pairs))}")


def _print_paired(launched: Sequence[Launched], launch_counts: Sequence[int]) -> None:
    """Two cases of one run, turn by turn: as strategies are compared, and as two versions of a model can be."""
    print("\nTwo cases of one run, compared turn by turn (10th percentiles; limit 3 %)")
    for launches in launch_counts:
        runs = runs_of(launched, launches)
        print(f"  {launches} launches a case")
        for case, twin in TWINS.items():
            for name in (twin, *(slowed_name(case, share) for share in SHARES)):
                hits = sum(_slower_in_turns(run[name], run[case]) for run in runs)
                print(f"    {name:24s} {share_text(hits, len(runs))}")


def _slower_in_turns(case: Sequence[Launched], base: Sequence[Launched]) -> bool:
    found = ratio_in_turns([percentile_10(item.steps) for item in case], [percentile_10(item.steps) for item in base])
    return found.low is not None and found.low > 1 + LIMIT


def _print_spread(launched: Sequence[Launched]) -> None:
    for case in IDENTICAL:
        of = [item for item in launched if item.case == case]
        within = fmean(_spread([math.log(step) for step in item.steps]) for item in of)
        texts = [f"{case:16s} spread of rounds within a launch {within:.1%}"]
        for name, value in (("medians", median), ("10th percentiles", percentile_10)):
            texts.append(f"of launch {name} {_spread([math.log(value(item.steps)) for item in of]):.1%}")
        texts.append(f"of the machine's pace {_spread([math.log(item.pace) for item in of]):.1%}")
        paced = [math.log(percentile_10(item.steps) / item.pace) for item in of]
        print(", ".join(texts), f"of launches at an equal pace {_spread(paced):.1%}", sep=", ")
    for case in SLOWED:
        base = _mean_log(launched, case)
        for name in (TWINS[case], *(slowed_name(case, share) for share in SHARES)):
            print(f"{name}: measured over all launches {math.exp(_mean_log(launched, name) - base) - 1:+.1%}")


def _mean_log(launched: Sequence[Launched], case: str) -> float:
    return fmean(math.log(percentile_10(item.steps)) for item in launched if item.case == case)


def _spread(values: Sequence[float]) -> float:
    middle = fmean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))
