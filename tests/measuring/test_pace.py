"""The fixed piece of work: what it leaves alone, and how ranks' readings become one."""

import torch

from bench.measuring.pace import pace_of, slowest


def test_a_reading_leaves_the_random_numbers_as_they_are() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    reading = pace_of([torch.device("cpu")])
    assert torch.equal(torch.get_rng_state(), before)
    seconds = reading["seconds"]
    assert isinstance(seconds, float) and seconds > 0


def test_replicas_of_one_process_share_a_device_once() -> None:
    assert set(pace_of([torch.device("cpu")] * 2)) == {"seconds"}


def test_a_reading_that_fails_is_none_and_costs_nothing() -> None:
    assert pace_of([torch.device("cuda", 99)]) == {}


def test_the_slowest_rank_is_the_pace() -> None:
    assert slowest([{"seconds": 0.1}, {"seconds": 0.3}]) == 0.3
    assert slowest([{"seconds": 0.1}, {}]) is None
