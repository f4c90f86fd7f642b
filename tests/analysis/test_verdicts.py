import pytest

from bench.analysis.intervals import Interval
from bench.analysis.verdicts import inverse, verdict_of


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.02, 1.10, "faster"),
        (0.90, 0.98, "slower"),
        (0.995, 1.009, "same"),
        (1.001, 1.009, "same"),  # surely faster, by less than anybody cares for
        (1.001, 1.02, "faster"),
        (0.98, 1.05, "unclear"),
        (1.0, 1.05, "unclear"),
        (None, None, "unclear"),
    ],
)
def test_one_of_four_words(low: float | None, high: float | None, verdict: str) -> None:
    assert verdict_of(Interval(value=1.5, low=low, high=high)) == verdict


def test_the_value_alone_decides_nothing() -> None:
    assert verdict_of(Interval(value=3.0)) == "unclear"
    assert verdict_of(Interval(value=3.0, low=0.9, high=10.0)) == "unclear"


def test_times_as_long_turned_into_times_as_fast() -> None:
    assert inverse(Interval(value=2.0, low=1.25, high=4.0)) == Interval(value=0.5, low=0.25, high=0.8)
    assert inverse(Interval(value=2.0)) == Interval(value=0.5)
