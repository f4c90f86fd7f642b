"""The search for the largest batch that fits, on numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.running.bisection import Bisection


def tried(
    limit: int, *, unit: int = 2, start: int = 8, least: int = 2, most: int = 1000
) -> tuple[Bisection, list[int]]:
    """Everything up to `limit` fits."""
    made, batches = Bisection(unit=unit, start=start, least=least, most=most), []
    while (batch := made.next()) is not None:
        batches.append(batch)
        made.add(batch, fits=batch <= limit)
    return made, batches


def test_doubles_then_bisects_then_confirms() -> None:
    made, batches = tried(26)
    assert batches == [8, 16, 32, 24, 28, 26, 26]
    assert (made.fits, made.too_large, made.confirmed, made.settled) == (26, 28, True, True)


def test_halves_where_the_start_does_not_fit() -> None:
    made, batches = tried(3)
    assert batches == [8, 4, 2, 2] and (made.fits, made.too_large) == (2, 4)


def test_nothing_fits() -> None:
    made, batches = tried(1)
    assert batches == [8, 4, 2] and made.fits is None and made.settled and not made.confirmed


def test_the_data_end_first() -> None:
    made, batches = tried(10**6, most=20)
    assert batches == [8, 16, 20, 20] and made.too_large is None and made.fits == made.most


def test_what_fits_by_luck_is_stepped_down_from() -> None:
    made = Bisection(unit=2, start=8, least=2, most=1000)
    for batch, fits in ((8, True), (16, False), (12, True), (14, True)):
        assert made.next() == batch
        made.add(batch, fits=fits)
    assert made.next() == 14
    made.add(14, fits=False)  # the second time it does not
    assert made.next() == 12 and not made.confirmed
    made.add(12, fits=True)
    assert made.settled and (made.fits, made.too_large) == (12, 14)


@given(st.integers(1, 8), st.integers(1, 60), st.integers(1, 60), st.integers(0, 3000), st.integers(60, 400))
def test_finds_the_limit_of_any_card(unit: int, least: int, above: int, limit: int, most: int) -> None:
    start = min(least + above, most)
    made, batches = tried(limit, unit=unit, start=start * unit, least=least * unit, most=most * unit)
    expected = min(limit // unit, most) * unit
    assert made.fits == (expected if expected >= least * unit else None)
    assert len(batches) <= 24 and all(batch % unit == 0 and least <= batch // unit <= most for batch in batches)


@pytest.mark.parametrize("wrong", [{"start": 9}, {"least": 10}, {"most": 6}, {"least": 0}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no growing multiples of 2"):
        Bisection(**({"unit": 2, "start": 8, "least": 2, "most": 100} | wrong))
