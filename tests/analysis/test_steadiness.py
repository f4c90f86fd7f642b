"""Checks of how steady figures are: each with its number, none for a quiet run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.checks import Check, checks
from bench.analysis.summary import summarise
from bench.recording.reader import read_run
from bench.recording.writer import RunWriter
from bench.schema import Run
from tests.recording.made_up import METRICS, made_case, made_launch, made_run, sample

QUIET = [0.1, 0.1001, 0.0999, 0.1002, 0.1, 0.0998, 0.1001, 0.1]


def found(
    results: Path, launches: Sequence[Sequence[float]], *, run: Run | None = None, **changes: Any
) -> dict[str, Check]:
    """Checks of one case: for each launch the seconds of its rounds."""
    writer = RunWriter(results, run or made_run(), METRICS)
    for index, rounds in enumerate(launches):
        launch = made_launch(made_case("single", 1, 64), index, index, rounds=len(rounds), **changes)
        rows = [sample(launch, "step_seconds", value, round_index=at) for at, value in enumerate(rounds)]
        rows += [
            sample(launch, "samples_per_second", 64 / value, round_index=at) for at, value in enumerate(rounds) if value
        ]
        writer.add(launch, rows)
    data = read_run(writer.folder)
    return {check.title: check for check in checks(data, summarise(data))}


def seen(results: Path, title: str, launches: Sequence[Sequence[float]], **changes: Any) -> str:
    (only,) = [check for name, check in found(results, launches, **changes).items() if name.startswith(title)]
    assert only.remedy, "each says what to do"
    return only.seen[0]


NAME = "resnet50: single"


def test_quiet_launches_raise_no_doubt_about_their_steadiness(tmp_path: Path) -> None:
    titles = set(found(tmp_path, [QUIET] * 6, steady=True))
    assert not [
        t for t in titles if t.startswith(("Warm-up", "Measured", "Fewer", "Some", "Too few", "Wide", "Launches"))
    ]


@pytest.mark.parametrize(
    ("title", "launches", "changes", "line"),
    [
        ("Warm-up that did not", [QUIET] * 3, {"steady": False, "warmup_end": "not steady within 6 rounds"},
         f"{NAME}, launches 0, 1, 2; launch 0: not steady within 6 rounds"),
        ("Measured rounds that still moved", [[0.1 * 0.98**at for at in range(10)]] * 3, {},
         # 0.98 to the 9th is 0.834: -16.6 % of the first, -18 % of the median (0.914)
         f"{NAME}: by -18% from first round to last in 3 of 3 launches"),
        ("Fewer than 5 rounds", [QUIET[:3]] * 3, {}, f"{NAME}, launches 0, 1, 2; launch 0: 3 rounds"),
        ("Some rounds took much longer", [QUIET, [*QUIET[:6], 0.3, 0.3], QUIET], {},
         f"{NAME}, launch 1: mean of the rounds 50% above their median"),
        ("Too few launches", [QUIET] * 2, {}, f"{NAME}: 2 launches"),
        ("Wide interval", [[value * factor for value in QUIET] for factor in (1.0, 1.1, 0.9)], {},
         f"{NAME}: +-28% over 3 launches"),
        ("Launches of one case lie far apart", [[value * factor for value in QUIET] for factor in (1.0, 1.5)], {},
         f"{NAME}: slowest launch 1.50 times as long as the fastest"),
    ],
)  # fmt: skip
def test_each_doubt_has_its_number(
    tmp_path: Path, title: str, launches: Sequence[Sequence[float]], changes: dict[str, Any], line: str
) -> None:
    assert seen(tmp_path, title, launches, **changes) == line


def test_a_target_that_was_asked_for_and_not_reached(tmp_path: Path) -> None:
    spent = "budget of 30 rounds spent at 4.2 % after 30 rounds (target 1 %)"
    run = made_run(arguments=("scenarios/test_mnist_cnn.py", "--interval-target=1%"))
    line = seen(tmp_path / "asked", "The target of", [QUIET] * 3, run=run, rounds_end=spent)
    assert line == f"{NAME}, launches 0, 1, 2; launch 0: {spent}"
    assert not [t for t in found(tmp_path / "not asked", [QUIET] * 3, rounds_end=spent) if t.startswith("The target")]


def test_one_round_is_one_round(tmp_path: Path) -> None:
    assert seen(tmp_path, "Fewer than 5 rounds", [QUIET[:1]] * 3).endswith("launch 0: 1 round")


def test_one_launch_that_moves_may_do_so_by_chance(tmp_path: Path) -> None:
    moving = [0.1 * 0.98**at for at in range(10)]
    assert not [title for title in found(tmp_path, [moving, QUIET, QUIET]) if title.startswith("Measured")]


def test_rounds_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    found(tmp_path, [[0.0] * 8, [0.1] * 8])


def test_many_rounds_are_looked_at_in_part(tmp_path: Path) -> None:
    line = seen(tmp_path, "Measured rounds", [[0.1 * 0.9998**at for at in range(1500)]] * 2)
    assert line.endswith("in 2 of 2 launches")
