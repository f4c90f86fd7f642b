"""The count of transformers' classes counts what it says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.transformers_classes import MOST_PARAMETERS, kind_of, look_at_all, overrides, small_ones, summary

TRAINED = {"outcome": "trained", "exact": True, "task": "next tokens", "alone": False}
REFUSED = {"outcome": "refused", "reason": "--workload: A needs boxes, which is not made here. Write"}
META = {"outcome": "meta", "task": "stand-in objective: x", "alone": True}


def test_counts() -> None:
    results: dict[str, dict[str, Any]] = {
        "A": TRAINED,
        "B": {**TRAINED, "exact": False},
        "C": REFUSED,
        "D": {**META, "problems": ["UsageError: x", "no small one: 9 parameters"]},
        "E": {**META, "problems": ["ValueError: the loss is nan", "no small one: 9 parameters"]},
    }
    text = summary(results)
    assert "adapt            4; 2 by the stand-in, 2 on text alone" in text
    assert "trained        2, of them exact 1" in text and "not exact: B" in text
    assert "refused, 1: needs an input that is not made here (C)" in text
    assert kind_of(results["D"]) == "no small configuration that fits"
    assert kind_of(results["E"]) == "a small one failed in its step"


def test_small_ones_are_typed_as_a_user_would() -> None:
    from bench.workloads._adapters.configs import model_class

    assert model_class("CLIPModel") is not None
    fields = {"num_hidden_layers": 2}
    assert "text_config.num_hidden_layers=2" in overrides("CLIPModel", fields)
    assert list(small_ones("CLIPModel"))[-1] == "transformers:CLIPModel"
    assert MOST_PARAMETERS < 2**30  # a step of four bytes each fits the memory of a child, gradients too


@pytest.mark.slow
def test_a_class_that_trains_and_one_that_is_refused() -> None:
    found = dict(look_at_all(["BertForMaskedLM", "Sam2VideoModel"], jobs=1, limit_seconds=300))
    assert found["BertForMaskedLM"]["outcome"] == "trained" and found["BertForMaskedLM"]["exact"]
    assert found["Sam2VideoModel"]["outcome"] == "refused"
