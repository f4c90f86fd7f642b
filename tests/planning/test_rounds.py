"""How many rounds a launch measures: `--rounds`, `--interval-target`, and what the presets allow."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from bench.errors import UsageError
from bench.planning.cli import add_options, read_options
from bench.planning.presets import PRESETS
from tests.planning.made_up_machines import cpu, gpus, plan_of


def test_default_is_one_percent_within_the_presets_budget() -> None:
    for machine, preset in ((cpu(), "quick"), (gpus(), "standard")):
        assert plan_of(machine).preset == PRESETS[preset]
    for name in PRESETS:
        plan = PRESETS[name].plan
        assert plan.stopping is not None and plan.stopping.target == 0.01
        assert plan.rounds <= plan.stopping.max_rounds
        # A warm-up can be found steady at all, also where the steps have to be counted anew (4 rounds).
        assert plan.warmup.least_rounds + 4 <= plan.warmup.max_rounds


def test_rounds_fix_the_number() -> None:
    plan = plan_of(cpu(), rounds=7).preset.plan
    assert (plan.rounds, plan.stopping) == (7, None)
    assert plan.warmup == PRESETS["quick"].plan.warmup


@pytest.mark.parametrize(
    ("text", "target"), [("1%", 0.01), ("0.5%", 0.005), (" 2 % ", 0.02), ("3", 0.03), ("0.01%", 0.0001), ("50%", 0.5)]
)
def test_interval_target_is_a_percentage(text: str, target: float) -> None:
    plan, default = plan_of(gpus(), interval_target=text).preset.plan, PRESETS["standard"].plan
    assert plan.stopping is not None and default.stopping is not None
    assert plan.stopping.target == pytest.approx(target)
    assert (plan.rounds, plan.stopping.max_seconds) == (default.rounds, default.stopping.max_seconds)


@pytest.mark.parametrize("text", ["", "%", "much", "0", "0%", "-1%", "100%", "nan", "inf", "1%%", "0.001%"])
def test_interval_target_that_means_nothing_is_refused_with_what_would(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan_of(cpu(), interval_target=text)
    assert str(raised.value) == f"--interval-target {text!r} is no percentage from 0.01 to 50; write e.g. 1% or 0.5%"


def test_fixed_number_and_a_target_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="--rounds 5 fixes .* --interval-target 2% would choose; give one of them"):
        plan_of(cpu(), rounds=5, interval_target="2%")


def test_target_arrives_and_help_shows_it(capsys: Any) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert read_options(parser.parse_args(["--interval-target", "0.5%"])).interval_target == "0.5%"
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "95% interval" in capsys.readouterr().out
