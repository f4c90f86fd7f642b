"""What a reader of the whole run is told, and how times are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.running.machinery import run_notes
from bench.running.progress import clock_text
from tests.planning.made_up_machines import cpu, gpus, plan_of
from tests.running.made_up_launches import mnist


def test_data_root_that_nobody_reads_is_said(tmp_path: Path) -> None:
    _, unused = run_notes(plan_of(cpu(), workloads="mnist_cnn,resnet50", data_root=tmp_path), [], {})
    assert "--data-root is not used by resnet50:" in unused and "--data real" in unused
    assert len(run_notes(plan_of(cpu(), workloads="mnist_cnn", data_root=tmp_path), [], {})) == 1


def test_notes_say_why_the_gpus_have_no_gauges() -> None:
    machine = replace(gpus(1), notes=("no gauges of the GPUs: no library",))
    assert "no gauges of the GPUs: no library" in run_notes(plan_of(machine), [], {})


def test_notes_say_what_a_figure_cannot_mean() -> None:
    plan, cases = mnist("single,dp,dp:loss_on=replica,ddp", cpu())
    (note,) = run_notes(plan, cases, {})
    assert note.endswith("not GPU speed; dp: host replicas (emulated), not ranked")
    (note,) = run_notes(plan, cases[:1], {})
    assert note.endswith("not GPU speed")
    (note,) = run_notes(plan_of(gpus(1), devices="0,0"), [], {})
    assert "more than once" in note
    assert run_notes(plan_of(gpus(2)), [], {}) == ()


def test_notes_say_which_scenario_does_not_hear_strategies() -> None:
    hears = {"mnist_cnn": True, "load_balance": False}
    assert run_notes(plan_of(gpus(2)), [], hears) == ()
    (note,) = run_notes(plan_of(gpus(2), strategies="ddp"), [], hears)
    assert note == "load_balance has strategies of its own, not those of --strategies"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (125, "2:05"), (3725, "1:02:05"), (-3, "0:00")]
)
def test_clock_text(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text
