"""gpu0_bsz=auto as a value of the option, before a launch puts a number in its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.errors import UsageError
from bench.measuring.parity import parity_case
from bench.planning.plan import reason_to_skip
from bench.schema import Case, NameValue
from bench.strategies.balanced_dp import GPU0_BSZ, BalancedDP
from tests.planning.made_up_machines import cpu, ids, plan_of

AUTO = NameValue(name="gpu0_bsz", value="auto")
CASE = Case(
    workload="mnist_cnn", strategy="balanced_dp", device_type="cpu", devices=(0, 1, 2, 3), global_batch_size=64,
    size="quick", settings=(AUTO,),
)  # fmt: skip


def test_auto_can_be_asked_for_and_stays_in_the_case_id() -> None:
    plan = plan_of(cpu(), workloads="mnist_cnn", strategies="balanced_dp:gpu0_bsz=auto")
    assert ids(plan) == ["mnist_cnn-balanced_dp-2x-b128-fp32-gpu0_bsz:auto"]


@pytest.mark.parametrize("text", ["automatic", "-1", "1.5", "Auto", ""])
def test_other_words_are_refused_with_both_kinds_of_value(text: str) -> None:
    with pytest.raises(UsageError, match=f"gpu0_bsz cannot be '{text}'; it is a whole number from 0 or auto$"):
        GPU0_BSZ.check(text)


def test_numbers_are_still_numbers() -> None:
    assert [GPU0_BSZ.check(text) for text in ("auto", "007", "0")] == ["auto", "7", "0"]


def test_without_probes_auto_splits_as_the_default_does() -> None:
    strategy = BalancedDP()
    assert strategy.chunk_sizes(CASE) == strategy.chunk_sizes(replace(CASE, settings=())) == (8, 19, 19, 18)
    assert reason_to_skip(CASE, cpu(4), None) is None


def test_parity_of_auto_is_checked_at_the_default_share_of_its_small_batch() -> None:
    check = parity_case(CASE)
    assert str(check) == "mnist_cnn-balanced_dp-4x-b16-fp32-gpu0_bsz:auto-parity"
    # 16 // (2 * 4) = 2; 14 = 3 * 4 + 2
    assert BalancedDP().chunk_sizes(check) == (2, 5, 5, 4)
