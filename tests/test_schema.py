"""A case's text is its identity: readable, and different for different cases."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.schema import TABLES, Case, NameValue

SETTINGS = {
    "loss_on": ["replica"],
    "gpu0_bsz": ["0", "1", "12"],
    "bucket_cap_mb": ["1", "2", "12"],
    "static_graph": ["on"],
    "sharding_strategy": ["shard_grad_op", "no_shard"],
}


def listed(chosen: dict[str, str]) -> tuple[NameValue, ...]:
    return tuple(NameValue(name=name, value=value) for name, value in sorted(chosen.items()))


# What differs within one run: all its cases share the device type.
CASES = st.builds(
    Case,
    workload=st.sampled_from(["mnist_cnn", "resnet50", "bert_small"]),
    strategy=st.sampled_from(["single", "dp", "balanced_dp", "ddp", "fsdp", "fsdp1"]),
    device_type=st.just("cuda"),
    devices=st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple),
    global_batch_size=st.integers(1, 130),
    size=st.sampled_from(["standard", "quick"]),
    precision=st.sampled_from(["fp32", "tf32", "bf16"]),
    accumulation_steps=st.integers(1, 12),
    data=st.sampled_from([None, "synthetic", "real"]),
    settings=st.dictionaries(st.sampled_from(list(SETTINGS)), st.none(), max_size=3).flatmap(
        lambda chosen: st.fixed_dictionaries({name: st.sampled_from(SETTINGS[name]) for name in chosen}).map(listed)
    ),
    purpose=st.sampled_from(["timing", "parity", "search"]),
)
PLAIN: dict[str, Any] = {
    "workload": "resnet50", "strategy": "ddp", "device_type": "cpu", "devices": (0, 1), "global_batch_size": 8,
    "size": "quick",
}  # fmt: skip


@given(st.lists(CASES, min_size=2, max_size=30))
def test_different_cases_have_different_texts(cases: list[Case]) -> None:
    texts = {str(case): case for case in cases}
    assert len(texts) == len(set(cases))


@given(CASES, st.data())
def test_every_axis_shows_in_the_text(case: Case, data: st.DataObject) -> None:
    other = data.draw(CASES)
    name = data.draw(st.sampled_from([field.name for field in fields(Case) if field.name != "device_type"]))
    changed = replace(case, **{name: getattr(other, name)})
    assert (str(changed) == str(case)) == (changed == case)


@given(CASES)
def test_text_is_one_word_that_pytest_can_take_as_an_id(case: Case) -> None:
    text = str(case)
    assert text.isascii() and text.isprintable()
    assert not set(text) & set(" []/\\\"'")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "resnet50-ddp-2x-b8-fp32"),
        ({"device_type": "cuda", "size": "standard"}, "resnet50-ddp-2x-b8-fp32"),
        ({"size": "standard"}, "resnet50-ddp-2x-b8-fp32-standard"),
        ({"devices": (0,), "strategy": "single"}, "resnet50-single-1x-b8-fp32"),
        ({"devices": (1, 0)}, "resnet50-ddp-2x1+0-b8-fp32"),
        ({"devices": (0, 0)}, "resnet50-ddp-2x0+0-b8-fp32"),
        ({"precision": "bf16", "accumulation_steps": 4}, "resnet50-ddp-2x-b8-bf16-acc4"),
        ({"data": "real"}, "resnet50-ddp-2x-b8-fp32-real"),
        ({"settings": listed({"static_graph": "on"})}, "resnet50-ddp-2x-b8-fp32-static_graph:on"),
        ({"purpose": "parity"}, "resnet50-ddp-2x-b8-fp32-parity"),
    ],
)
def test_text_leaves_out_what_is_at_its_default(changes: dict[str, Any], text: str) -> None:
    assert str(Case(**(PLAIN | changes))) == text


def test_case_is_frozen_and_hashable() -> None:
    case = Case(**PLAIN)
    assert {case, Case(**PLAIN)} == {case}
    with pytest.raises(FrozenInstanceError):
        case.size = "standard"  # type: ignore[misc]


def test_micro_batch_and_oversubscription() -> None:
    assert Case(**(PLAIN | {"accumulation_steps": 4})).micro_batch_size == 2
    assert Case(**(PLAIN | {"devices": (0, 1, 0)})).oversubscribed
    assert not Case(**(PLAIN | {"devices": (2, 1)})).oversubscribed


def test_setting_is_none_where_it_is_at_its_default() -> None:
    case = Case(**(PLAIN | {"settings": listed({"static_graph": "on", "bucket_cap_mb": "2"})}))
    assert (case.setting("bucket_cap_mb"), case.setting("loss_on")) == ("2", None)


def test_every_column_has_a_meaning_and_figures_have_a_unit() -> None:
    for table in TABLES.values():
        for field in fields(table):
            assert field.metadata.get("meaning"), f"{table.__name__}.{field.name}"
            for suffix, unit in (("_seconds", "s"), ("_bytes", "bytes")):
                if field.name.endswith(suffix):
                    assert field.metadata.get("unit") == unit, f"{table.__name__}.{field.name}"
