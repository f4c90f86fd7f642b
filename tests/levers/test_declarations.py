"""Every lever: what it can be, where it lands in a case, and where it cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import levers, strategies
from bench.analysis.overhead import STRATEGY_OPTIONS
from bench.errors import UsageError
from bench.levers import Abilities, Lever
from bench.schema import Case, NameValue

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "levers.md"
ALL = list(levers.registry)
OPTIONS = [option for strategy in strategies.registry for option in strategy.options]


def make(strategy: str = "ddp", **rest: Any) -> Case:
    given = {"device_type": "cuda", "devices": (0, 1), "global_batch_size": 8, "size": "quick"}
    return Case(workload="mnist_cnn", strategy=strategy, **(given | rest))


def test_the_levers_of_the_design_are_there() -> None:
    assert set(levers.registry.names()) == {
        "accumulation_steps", "accumulation_sync", "attention", "channels_last", "checkpoint_every", "compile",
        "cudnn_benchmark", "data_placement", "optimizer_kernel", "precision", "sync_batch_norm",
    }  # fmt: skip


@pytest.mark.parametrize("lever", ALL, ids=lambda lever: lever.name)
def test_every_lever_says_what_it_means_changes_and_takes(lever: Lever) -> None:
    assert lever.meaning and lever.changes and lever.check(lever.default) == lever.default
    assert lever.lossy <= set(lever.values) - {lever.default}
    assert set(lever.not_on) <= {"cpu", "cuda"} and set(lever.not_with) <= set(strategies.registry.names())
    with pytest.raises(UsageError, match=lever.name):
        lever.check("nonsense")


@pytest.mark.parametrize("lever", ALL, ids=lambda lever: lever.name)
def test_a_value_lands_in_the_case_and_the_default_leaves_no_trace(lever: Lever) -> None:
    other = lever.values[-1] if lever.values else str(lever.least + 1)
    changed = lever.apply(make(), other)
    assert lever.of(changed) == other and lever.is_set(changed) and other in str(changed).replace("acc2", "2")
    assert lever.apply(changed, lever.default) == make() and not lever.is_set(make())


def test_the_last_value_of_a_lever_holds_and_settings_are_in_order() -> None:
    case = make(settings=(NameValue(name="bucket_cap_mb", value="1"),))
    for name, value in (("compile", "model"), ("attention", "math"), ("compile", "blocks")):
        case = levers.registry.get(name).apply(case, value)
    assert [(item.name, item.value) for item in case.settings] == [
        ("attention", "math"), ("bucket_cap_mb", "1"), ("compile", "blocks"),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "usual"), [("1", "1"), ("016", "16")])
def test_a_number_is_written_in_one_way(text: str, usual: str) -> None:
    assert levers.registry.get("accumulation_steps").check(text) == usual


@pytest.mark.parametrize(("name", "text"), [("accumulation_steps", "0"), ("accumulation_steps", "-1"),
                                            ("checkpoint_every", "1.5"), ("checkpoint_every", "²")])  # fmt: skip
def test_what_is_no_number_of_it_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="a whole number from"):
        levers.registry.get(name).check(text)


def test_no_option_of_a_strategy_has_the_name_of_a_lever() -> None:
    assert not {option.name for option in OPTIONS} & set(levers.registry.names())


def test_analysis_knows_which_settings_are_options_of_a_strategy() -> None:
    assert {option.name for option in OPTIONS} == STRATEGY_OPTIONS


@pytest.mark.parametrize(
    ("strategy", "name", "value", "rest", "reason"),
    [
        ("ddp", "precision", "tf32", {"device_type": "cpu"}, "NVIDIA"),
        ("ddp", "attention", "efficient", {"device_type": "cpu"}, "no memory-efficient kernel for CPUs"),
        ("ddp", "attention", "flash", {}, "add --precision bf16"),
        ("ddp", "cudnn_benchmark", "on", {"device_type": "cpu"}, "cuDNN"),
        ("ddp", "sync_batch_norm", "on", {"device_type": "cpu"}, "GPUs only"),
        ("ddp", "sync_batch_norm", "on", {"devices": (0,)}, "1 device"),
        ("dp", "sync_batch_norm", "on", {}, "one"),
        ("dp", "compile", "model", {}, "replicas"),
        ("balanced_dp", "compile", "blocks", {}, "replicas"),
        ("fsdp", "channels_last", "on", {}, "contiguous"),
        ("dp", "channels_last", "on", {}, "broadcasts"),
        ("ddp", "accumulation_sync", "every", {}, "add accumulation_steps=2"),
        ("dp", "accumulation_sync", "every", {"accumulation_steps": 2}, "no other ranks"),
    ],
)
def test_what_cannot_be_honoured_has_its_reason(
    strategy: str, name: str, value: str, rest: dict[str, Any], reason: str
) -> None:
    case = levers.registry.get(name).apply(make(strategy, **rest), value)
    found = levers.unsupported(case, Abilities())
    assert found is not None and reason in found
    assert (
        levers.unsupported(levers.registry.get(name).apply(case, levers.registry.get(name).default), Abilities())
        is None
    )


def test_abilities_of_the_machine_decide_too() -> None:
    bf16, compiled = make(precision="bf16"), levers.registry.get("compile").apply(make(), "model")
    assert "Ampere" in str(levers.unsupported(bf16, Abilities(bf16=False)))
    assert levers.unsupported(bf16, Abilities()) is None
    found = levers.unsupported(compiled, Abilities(cannot_compile="no C++ compiler was found; install g++"))
    assert found == "compile=model: no C++ compiler was found; install g++"


def test_lossy_values_go_and_the_others_stay() -> None:
    case = levers.registry.get("compile").apply(make(precision="fp16"), "model")
    assert levers.is_lossy(case) and not levers.is_lossy(levers.without_loss(case))
    assert levers.without_loss(case) == levers.registry.get("compile").apply(make(), "model")


def test_the_guide_names_every_lever_value_and_option() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for lever in ALL:
        assert all(f"`{word}`" in text for word in (lever.name, *lever.values)), lever.name
    for strategy in strategies.registry:
        for option in strategy.options:
            sharing = [other.name for other in strategies.registry if option in other.options]
            assert any(f"`{name}:{option.name}`" in text for name in sharing), option.name
