"""How often the gate cries wolf over identical code, and how often it finds a real slowdown.

    python -m tests.benchmarks.false_alarms measure FILE.parquet [--turns 240]
    python -m tests.benchmarks.false_alarms judge FILE.parquet

`measure` takes launches as a run does: turn by turn, each turn every case once in a seeded random order, two CPU
workers, 10 rounds of 50 ms. Five cases are the same code throughout; three more are one of them with a busy-wait
of 3, 5 and 10 % of its step in the forward. Every launch's rounds go into FILE.

`judge` cuts the turns into runs of so many launches a case and judges each run against the one before it, and
against the ten before it, by the code of `python -m bench compare`: how many comparisons of identical code are
called slower by more than 3 %, and how many of the slowed ones. Beside it stands what pytest-benchmark's own check (the
class behind `--benchmark-compare-fail=mean:3%`) says of the same rounds. Shares come with a 95 % interval by Wilson
(1927), taking comparisons for independent, which neighbours that share a run are not quite.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import pyarrow as pa
import pyarrow.parquet as pq
from pytest_benchmark.utils import parse_compare_fail

from bench import strategies, workloads
from bench.analysis.comparing import compare
from bench.analysis.history import CaseRecord, RunRecord
from bench.analysis.intervals import log_mean, ratio_in_turns
from bench.host import cpu_cores
from bench.measuring.launch import RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.metrics.step_p10_seconds import percentile_10
from tests.benchmarks.launch_overhead import job_for
from tests.recording.made_up import made_run

LIMIT = 0.03
TWIN, SLOWED, SHARES = "ddp-b16 again", "ddp-b16", (0.03, 0.05, 0.10)
IDENTICAL = {"single-b16": ("single", 16), SLOWED: ("ddp", 16), TWIN: ("ddp", 16), "ddp-b32": ("ddp", 32),
             "fsdp-b16": ("fsdp", 16)}  # fmt: skip
# Shorter than the quick preset's, so that 250 turns take an hour: 10 rounds of 50 ms.
PLAN = RoundPlan(rounds=10, round_seconds=0.05, warmup=WarmupRule(least_rounds=4, max_rounds=8, max_seconds=1.0))
WINDOW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launch: its case, its turn and the seconds a step of each of its rounds."""

    case: str
    turn: int
    steps: tuple[float, ...]


def jobs(folder: Path, step_seconds: float) -> dict[str, Job]:
    """Every case by name; the slowed ones spin for a share of `step_seconds`."""
    found = {name: _job(strategy, batch) for name, (strategy, batch) in IDENTICAL.items()}
    lines = ["from tests.benchmarks.slowed import SlowedCnn"]
    for share in SHARES:
        lines += [
            f"class Slowed{share * 100:.0f}(SlowedCnn):",
            f"    '''slowed'''\n    spin_seconds = {share * step_seconds!r}",
        ]
    file = folder / "slowed_cases.py"
    file.write_text("\n".join(lines))
    for share in SHARES:
        address = f"{file}:Slowed{share * 100:.0f}"
        job = found[SLOWED]
        case = replace(job.case, workload=workloads.find(address).name)
        found[slowed_name(share)] = replace(job, case=case, address=address)
    return found


def slowed_name(share: float) -> str:
    return f"{SLOWED}, {share:.0%} slower"


def _job(strategy: str, batch: int) -> Job:
    job = job_for("mnist_cnn", strategy)
    return replace(
        job, case=replace(job.case, devices=(0,) if strategy == "single" else (0, 1), global_batch_size=batch)
    )


def measure(file: Path, turns: int) -> None:
    """Write the rounds of `turns` launches of every case."""
    launcher = Launcher(threads_per_worker=max(1, cpu_cores() // 2))
    with tempfile.TemporaryDirectory(prefix="dpbench-alarms-") as folder:
        first = [_take(launcher, _job(*IDENTICAL[SLOWED])) for _ in range(5)]
        step = min(percentile_10(steps) for steps in first)
        cases = jobs(Path(folder), step)
        order, rows, started = random.Random(0), [], time.perf_counter()
        for turn in range(turns):
            names = list(cases)
            order.shuffle(names)
            for name in names:
                steps = _take(launcher, cases[name])
                rows.append(
                    {"case": name, "turn": turn, "elapsed": time.perf_counter() - started, "step_seconds": steps}
                )
            if turn % 10 == 9:
                print(f"turn {turn + 1} of {turns}, {time.perf_counter() - started:.0f} s", flush=True)
                pq.write_table(pa.Table.from_pylist(rows), file)
    pq.write_table(pa.Table.from_pylist(rows), file)
    print(f"a step of {SLOWED} took {1000 * step:.2f} ms; rounds of {PLAN.round_seconds} s or more")


def _take(launcher: Launcher, job: Job) -> list[float]:
    """Seconds a step, round by round, of one launch."""
    ranks = strategies.registry.get(job.case.strategy).world_size(job.case)
    result = time_case(launcher, job, ranks, PLAN)
    if result.trace is None:
        raise RuntimeError(f"{job.case}: {result.outcome}")
    return [seconds / result.trace.steps_per_round for seconds in result.trace.round_seconds]


def read(file: Path) -> list[Launched]:
    return [
        Launched(case=row["case"], turn=row["turn"], steps=tuple(row["step_seconds"]))
        for row in pq.read_table(file).to_pylist()
    ]


Runs = list[dict[str, list[Launched]]]
Rule = Callable[[Sequence[Launched], Sequence[Sequence[Launched]]], bool]


def runs_of(launched: Sequence[Launched], launches: int) -> Runs:
    """Whole runs of `launches` launches a case, in order."""
    found: Runs = []
    for item in launched:
        number = item.turn // launches
        while len(found) <= number:
            found.append({})
        found[number].setdefault(item.case, []).append(item)
    return [run for run in found if all(len(of) == launches for of in run.values())]


def gate(value: Callable[[Sequence[float]], float]) -> Rule:
    """The gate of `compare` on `value` of each launch's rounds."""

    def rule(head: Sequence[Launched], base: Sequence[Sequence[Launched]]) -> bool:
        before = [_record(run, f"base{number}", value) for number, run in enumerate(base)]
        return bool(compare(_record(head, "head", value), before).regressions(LIMIT))

    return rule


def _record(run: Sequence[Launched], name: str, value: Callable[[Sequence[float]], float]) -> RunRecord:
    mean = log_mean([value(item.steps) for item in run])
    case = CaseRecord(case_id="x", status="ok", reason=None, trusted=True, data_source="", chunk_sizes=(), value=mean)
    return RunRecord(folder=Path(name), run=made_run(), cases={"x": case})


def by_value(head: Sequence[Launched], base: Sequence[Sequence[Launched]]) -> bool:
    """The same estimate as the gate's, without its interval."""
    means = [fmean(math.log(percentile_10(item.steps)) for item in run) for run in (head, *base)]
    return math.exp(means[0] - fmean(means[1:])) > 1 + LIMIT


def plain_mean(head: Sequence[Launched], base: Sequence[Sequence[Launched]]) -> bool:
    """pytest-benchmark's own check of the mean over all rounds; with several runs before, against the last."""
    means = [{"mean": fmean(step for item in run for step in item.steps)} for run in (head, base[0])]
    return bool(parse_compare_fail(f"mean:{LIMIT * 100:.0f}%").fails(*means))


RULES: dict[str, Rule] = {
    "compare, step_p10_seconds": gate(percentile_10),
    "compare, step_seconds": gate(median),
    "p10 without an interval": by_value,
    "pytest-benchmark mean:3%": plain_mean,
}


def comparisons(
    runs: Runs, case: str, base_case: str, window: int
) -> Iterator[tuple[list[Launched], list[list[Launched]]]]:
    """A run's launches of `case` with those of `base_case` of the runs before it, the newest first."""
    for number in range(window, len(runs)):
        before = [runs[earlier][base_case] for earlier in range(number - 1, number - window - 1, -1)]
        yield runs[number][case], before


def share_text(hits: int, of: int) -> str:
    """A share with its interval by Wilson, e.g. `1.5 % (0.5 to 4.3), 3 of 200`."""
    z, p = 1.959963984540054, hits / of
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    low, high = ((middle + sign * half) / (1 + z * z / of) for sign in (-1, 1))
    return f"{100 * p:5.1f} % ({100 * max(low, 0):.1f} to {100 * high:.1f}), {hits} of {of}"


def judge(file: Path, launch_counts: Sequence[int]) -> None:
    """Print the spread, then for each number of launches and each baseline how often each rule fires."""
    launched = read(file)
    turns = max(item.turn for item in launched) + 1
    print(
        f"{len(launched)} launches in {turns} turns, rounds a launch {fmean(len(item.steps) for item in launched):.1f}"
    )
    _print_spread(launched)
    _print_paired(launched, launch_counts)
    for launches in launch_counts:
        runs = runs_of(launched, launches)
        for window in (1, WINDOW):
            if len(runs) <= window:
                continue
            before = "the run" if window == 1 else f"the {window} runs"
            print(f"\n{launches} launches a run, {len(runs)} runs, against {before} before")
            for name, rule in RULES.items():
                print(f"  {name}")
                pairs = [pair for case in IDENTICAL for pair in comparisons(runs, case, case, window)]
                print(f"    identical code      {share_text(sum(rule(*pair) for pair in pairs), len(pairs))}")
                for share in SHARES:
                    slow = list(comparisons(runs, slowed_name(share), SLOWED, window))
                    print(f"    {share:4.0%} slower         {share_text(sum(rule(*pair) for pair in slow), len(slow))}")


def _print_paired(launched: Sequence[Launched], launch_counts: Sequence[int]) -> None:
    """Two cases of one run, turn by turn: as strategies are compared, and as two versions of a model can be."""
    print("\nTwo cases of one run, compared turn by turn (10th percentiles; limit 3 %)")
    for launches in launch_counts:
        runs = runs_of(launched, launches)
        print(f"  {launches} launches a case")
        for name in (TWIN, *(slowed_name(share) for share in SHARES)):
            hits = sum(_slower_in_turns(run[name], run[SLOWED]) for run in runs)
            print(f"    {'identical code' if name == TWIN else name:22s} {share_text(hits, len(runs))}")


def _slower_in_turns(case: Sequence[Launched], base: Sequence[Launched]) -> bool:
    found = ratio_in_turns([percentile_10(item.steps) for item in case], [percentile_10(item.steps) for item in base])
    return found.low is not None and found.low > 1 + LIMIT


def _print_spread(launched: Sequence[Launched]) -> None:
    for case in IDENTICAL:
        of = [item for item in launched if item.case == case]
        within = fmean(_spread([math.log(step) for step in item.steps]) for item in of)
        texts = [f"{case:10s} rounds within a launch {within:.1%}"]
        for name, value in (("medians", median), ("10th percentiles", percentile_10)):
            texts.append(f"launch {name} {_spread([math.log(value(item.steps)) for item in of]):.1%}")
        print(", ".join(texts))
    base = fmean(math.log(percentile_10(item.steps)) for item in launched if item.case == SLOWED)
    for share in SHARES:
        slow = fmean(math.log(percentile_10(item.steps)) for item in launched if item.case == slowed_name(share))
        print(f"{slowed_name(share)}: measured over all launches {math.exp(slow - base) - 1:+.1%}")


def _spread(values: Sequence[float]) -> float:
    middle = fmean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "judge"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--turns", type=int, default=240, metavar="N")
    parser.add_argument("--launches", type=int, nargs="+", default=[6, 12, 24], metavar="N")
    options = parser.parse_args(arguments)
    if options.what == "measure":
        measure(options.file, options.turns)
    else:
        judge(options.file, options.launches)


if __name__ == "__main__":
    main()
