"""What the intervals promise, by simulation: rounds within launches within runs, each with noise of its own.

Noise as on a shared machine: rounds spread by 7 %, always upwards, launches by 5 %, runs by 2 %.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from bench.analysis.comparing import compare
from bench.analysis.history import CaseRecord, RunRecord
from bench.analysis.intervals import (
    Reading,
    log_mean,
    mean_interval,
    ratio_at_equal_pace,
    ratio_in_turns,
    ratio_interval,
    ratio_to_runs,
)
from bench.series import percentile_10
from tests.recording.made_up import made_run

ROUNDS, OF_ROUNDS, OF_LAUNCHES, OF_RUNS = 10, 0.07, 0.05, 0.02
SIMULATED = 3000
# So many simulations tell 95 % to +-0.8 % (two standard errors).
ALLOWED = (0.94, 0.96)


def launches(noise: np.random.Generator, count: int, *, middle: float = 1.0, rounds: int = ROUNDS) -> list[float]:
    """What each of `count` launches says: the 10th percentile of its rounds."""
    levels = middle * noise.lognormal(0, OF_LAUNCHES, size=count)
    rows = levels[:, None] * np.exp(np.abs(noise.normal(0, OF_ROUNDS, size=(count, rounds))))
    return [percentile_10(row.tolist()) for row in rows]


def true_value() -> float:
    return math.exp(np.mean(np.log(launches(np.random.default_rng(99), 200_000))))


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_an_estimate_covers_what_more_launches_would_say(count: int) -> None:
    noise, target = np.random.default_rng(count), true_value()
    inside = sum(mean_interval(launches(noise, count)).contains(target) is True for _ in range(SIMULATED))
    assert ALLOWED[0] <= inside / SIMULATED <= ALLOWED[1]


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_an_interval_over_rounds_would_not(count: int) -> None:
    """Rounds of one launch share its level: taken for independent they promise what does not hold."""
    noise, inside = np.random.default_rng(count), 0
    for _ in range(SIMULATED):
        levels = noise.lognormal(0, OF_LAUNCHES, size=count)
        rounds = (levels[:, None] * noise.lognormal(0, OF_ROUNDS, size=(count, ROUNDS))).ravel()
        inside += mean_interval(rounds.tolist()).contains(1.0) is True
    assert inside / SIMULATED < 0.85


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_a_ratio_covers(count: int) -> None:
    """At 2 launches Welch's degrees of freedom, rounded down, promise a little more than they need."""
    noise, inside = np.random.default_rng(count), 0
    for _ in range(SIMULATED):
        ratio = ratio_interval(launches(noise, count, middle=1.1), launches(noise, count))
        inside += ratio.contains(1.1) is True
    assert inside / SIMULATED >= ALLOWED[0]


@pytest.mark.parametrize("count", [4, 6, 12])
def test_interleaved_launches_cover_under_drift_and_blocks_do_not(count: int) -> None:
    """The machine becomes 20 % slower over the run. All launches of one case after those of the other measure that."""
    noise, turns, blocks = np.random.default_rng(count), 0, 0
    drift = np.exp(np.linspace(0, math.log(1.2), 2 * count))
    for _ in range(SIMULATED):
        values = noise.lognormal(0, 0.01, size=2 * count) * drift
        swapped = noise.random(count) < 0.5  # the seeded random order of a turn
        first, second = values[0::2], values[1::2]
        above, below = np.where(swapped, second, first), np.where(swapped, first, second)
        turns += ratio_in_turns((1.1 * above).tolist(), below.tolist()).contains(1.1) is True
        blocks += ratio_interval((1.1 * values[:count]).tolist(), values[count:].tolist()).contains(1.1) is True
    assert turns / SIMULATED >= ALLOWED[0]
    assert blocks / SIMULATED < 0.8


def test_turns_are_sharper_than_launches_taken_alone_where_the_machine_drifts() -> None:
    noise = np.random.default_rng(0)
    turns = noise.lognormal(0, 0.05, size=6)
    above, below = (1.1 * turns).tolist(), (turns * noise.lognormal(0, 0.005, size=6)).tolist()
    paired, alone = ratio_in_turns(above, below), ratio_interval(above, below)
    assert paired.low is not None and alone.low is not None and paired.low > 1.08 > alone.low


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_one_more_run_of_the_same_code_lies_inside(runs: int) -> None:
    noise, inside = np.random.default_rng(runs), 0
    for _ in range(SIMULATED):
        levels = noise.lognormal(0, OF_RUNS, size=runs + 1)
        means = [log_mean(launches(noise, 6, middle=level)) for level in levels]
        inside += ratio_to_runs(means[0], means[1:]).contains(1.0) is True
    assert inside / SIMULATED >= ALLOWED[0]


def at_a_pace(noise: np.random.Generator, pace: float, *, middle: float = 1.0, count: int = 6) -> list[Reading]:
    """Launches on a machine whose pace drifts by 8 % around `pace`; their time goes with it, by 0.7 for 1."""
    paces = np.log(pace) + noise.normal(0, 0.08, size=count)
    values = np.log(middle) + 0.7 * paces + noise.normal(0, OF_LAUNCHES, size=count)
    return [Reading(value=math.exp(y), pace=math.exp(x)) for y, x in zip(values, paces, strict=True)]


@pytest.mark.parametrize("count", [2, 3, 6, 12])
@pytest.mark.parametrize("slower", [1.0, 1.1, 1.3])
def test_a_machine_that_became_slower_is_allowed_for(count: int, slower: float) -> None:
    """The same code on a machine at another pace. Without the pace beside it the interval misses what it promises."""
    noise, paced, blind = np.random.default_rng(count), 0, 0
    for _ in range(SIMULATED):
        head, base = at_a_pace(noise, slower, count=count), at_a_pace(noise, 1.0, count=count)
        found = ratio_at_equal_pace(head, [base])
        assert found is not None
        paced += found.contains(1.0) is True
        blind += ratio_interval([item.value for item in head], [item.value for item in base]).contains(1.0) is True
    assert paced / SIMULATED >= ALLOWED[0]
    if slower == 1.3 and count >= 6:
        assert blind / SIMULATED < 0.5


@pytest.mark.parametrize("runs", [3, 10])
def test_one_more_run_at_another_pace_lies_inside(runs: int) -> None:
    noise, inside = np.random.default_rng(runs), 0
    for _ in range(SIMULATED):
        paces = noise.lognormal(0, 0.1, size=runs + 1)
        groups = [at_a_pace(noise, float(pace)) for pace in paces]
        found = ratio_at_equal_pace(groups[0], groups[1:])
        assert found is not None
        inside += found.contains(1.0) is True
    assert inside / SIMULATED >= ALLOWED[0]


def record(noise: np.random.Generator, name: str, middle: float = 1.0, count: int = 6) -> RunRecord:
    case = CaseRecord(case_id="ddp", status="ok", reason=None, trusted=True, data_source="noise", chunk_sizes=(),
                      value=log_mean(launches(noise, count, middle=middle)))  # fmt: skip
    return RunRecord(folder=Path(name), run=made_run(), cases={"ddp": case})


def test_the_gate_rests_on_the_interval_and_not_on_the_value() -> None:
    """Identical code, 6 launches a side: `3 % slower` by the value alone cries wolf in one of seven comparisons."""
    noise, gate, value = np.random.default_rng(0), 0, 0
    for _ in range(1000):
        (case,) = compare(record(noise, "head"), [record(noise, "base")]).cases
        assert case.times_as_long is not None
        gate += case.is_regression(0.03)
        value += case.times_as_long.value > 1.03
    assert value / 1000 > 0.10
    assert gate / 1000 <= 0.01


def test_the_gate_finds_what_is_much_slower() -> None:
    noise = np.random.default_rng(1)
    slow = [compare(record(noise, "head", 1.2, 12), [record(noise, "base", 1.0, 12)]) for _ in range(300)]
    assert sum(bool(found.regressions(0.03)) for found in slow) / 300 > 0.95
