"""Options written as arguments and read back: nothing that was asked for may be lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from bench.errors import UsageError
from bench.planning.arguments import NOT_ASKED, Asked, arguments, listed, read_arguments, resolved
from bench.planning.options import RunOptions
from tests.planning.made_up_machines import cpu, gpus, plan_of

ROOT = Path(__file__).resolve().parents[2]
SAMPLES: Mapping[Any, Any] = {
    str: "a b=1,c", int: 7, float: 2.5, Path: Path("a folder/x"), bool: True, tuple[str, ...]: ("m.py:A", "n:B?k=[1]"),
}  # fmt: skip


def sample(kind: Any) -> Any:
    """Some value of a field's type, never its default."""
    return next(value for known, value in SAMPLES.items() if kind in (known, known | None))


KINDS = get_type_hints(RunOptions)
EVERY = RunOptions(**{field.name: sample(KINDS[field.name]) for field in fields(RunOptions)})


def read(*given: str) -> Asked:
    return read_arguments(given, ROOT)


@pytest.mark.parametrize("name", [field.name for field in fields(RunOptions) if field.name not in NOT_ASKED])
def test_every_option_survives_being_written_and_read(name: str) -> None:
    """A field of RunOptions that cli.py does not declare or read fails here."""
    options = RunOptions(**{name: getattr(EVERY, name)})
    assert options != RunOptions()
    assert read(*arguments(options)).options == options


def test_all_options_together_survive_but_those_that_say_where_things_go() -> None:
    written = arguments(EVERY)
    usual = RunOptions()
    assert read(*written).options == replace(EVERY, **{name: getattr(usual, name) for name in NOT_ASKED})
    assert not [text for text in written if text.startswith(("--run-id", "--results", "--reports", "--dry-run"))]
    assert read(*written).left_out == ()


def test_value_that_begins_with_a_dash_stays_a_value() -> None:
    assert read(*arguments(RunOptions(strategies="-x"))).options.strategies == "-x"


def test_what_was_left_to_the_machine_and_the_preset_is_named() -> None:
    assert arguments(resolved(plan_of(cpu(2), workloads="mnist_cnn"))) == (
        "--preset=quick", "--device-type=cpu", "--devices=0,1", "--workloads=mnist_cnn", "--launches=3", "--seed=0"
    )  # fmt: skip
    assert arguments(resolved(plan_of(gpus(4), devices="3", rounds=5, seed=9))) == (
        "--preset=standard", "--device-type=cuda", "--devices=0,1,2", "--launches=6", "--rounds=5", "--seed=9"
    )  # fmt: skip


@pytest.mark.parametrize("typed", [None, "1", "0,", "1,0", "1,1"])
def test_named_devices_are_the_same_plan(typed: str | None) -> None:
    plan = plan_of(cpu(2), devices=typed)
    assert plan_of(cpu(8), devices=resolved(plan).devices).devices == plan.devices


def test_one_device_is_a_list_and_no_number() -> None:
    assert (listed((3,)), listed((0, 2))) == ("3,", "0,2")


def test_typed_line_is_split_into_scenarios_selection_and_options() -> None:
    test = "scenarios/test_mnist_cnn.py::test_parity"
    asked = read(
        "scenarios", "--seed", "3", "-k", "not parity", test, "--deselect", "x::y", "-q", "--results", "r", "--run-id=i"
    )  # fmt: skip
    assert (asked.scenarios, asked.selection) == (("scenarios", test), ("-k", "not parity", "--deselect=x::y"))
    assert asked.options == RunOptions(seed=3)
    assert asked.left_out == ("-q",)
    assert asked.arguments() == (*asked.scenarios, *asked.selection, "--device-type=auto", "--seed=3")


def test_what_is_no_scenario_here_is_left_out() -> None:
    assert read("scenarios/test_gone.py", "--benchmark-json", "out.json").left_out == (
        "scenarios/test_gone.py", "--benchmark-json", "out.json"
    )  # fmt: skip


def test_bad_value_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--launches: 'many' is not a whole number"):
        read("--launches", "many")
