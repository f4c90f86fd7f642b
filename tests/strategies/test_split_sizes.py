"""Who takes how many samples: split_sizes, torch.chunk's sizes, chunk_sizes of every strategy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.schema import Case, NameValue
from bench.strategies import registry
from bench.strategies.balanced_dp import split_sizes
from bench.strategies.dp import torch_chunks

BATCHES = st.integers(0, 2000)
DEVICES = st.integers(1, 16)
SHARES = st.integers(0, 300)


def make_case(strategy: str, batch: int, num_devices: int, steps: int = 1, **settings: str) -> Case:
    return Case(
        workload="mnist_cnn",
        strategy=strategy,
        device_type="cpu",
        devices=tuple(range(num_devices)),
        global_batch_size=batch,
        size="quick",
        accumulation_steps=steps,
        settings=tuple(NameValue(name=name, value=value) for name, value in settings.items()),
    )


def chunk_sizes(strategy: str, batch: int, num_devices: int, steps: int = 1, **settings: str) -> tuple[int, ...]:
    return registry.get(strategy).chunk_sizes(make_case(strategy, batch, num_devices, steps, **settings))


@pytest.mark.parametrize(
    ("batch", "num_devices", "gpu0_bsz", "expected"),
    [
        (22, 4, 4, [4, 6, 6, 6]),  # 18 over 3
        (60, 4, 4, [4, 19, 19, 18]),  # 56 = 3 * 18 + 2
        (158, 6, 1, [1, 32, 32, 31, 31, 31]),  # 157 = 5 * 31 + 2
        (5, 4, 1, [1, 2, 1, 1]),  # 4 = 3 * 1 + 1
        (2, 4, 0, [0, 1, 1, 0]),
        (3, 4, 4, [0, 1, 1, 1]),  # 3 // 4 = 0 for the first
        (8, 1, 4, [8]),  # one device takes all
        (8, 2, 8, [4, 4]),  # never above the even share
        (0, 3, 2, [0, 0, 0]),
    ],
)
def test_split_sizes_checked_by_hand(batch: int, num_devices: int, gpu0_bsz: int, expected: list[int]) -> None:
    assert split_sizes(batch, num_devices, gpu0_bsz) == expected


@given(BATCHES, DEVICES, SHARES)
def test_split_sizes_hands_out_every_sample_to_the_given_devices(batch: int, num_devices: int, gpu0_bsz: int) -> None:
    sizes = split_sizes(batch, num_devices, gpu0_bsz)
    assert sum(sizes) == batch
    assert len(sizes) == num_devices
    assert min(sizes) >= 0


@given(BATCHES, st.integers(2, 16), SHARES)
def test_first_device_gets_its_share_but_never_more_than_an_even_one(
    batch: int, num_devices: int, gpu0_bsz: int
) -> None:
    first, *others = split_sizes(batch, num_devices, gpu0_bsz)
    assert first == min(gpu0_bsz, batch // num_devices)
    assert all(first <= size for size in others) or batch < num_devices


@given(BATCHES, st.integers(2, 16), SHARES)
def test_others_are_even_and_the_remainder_goes_to_the_first_of_them(
    batch: int, num_devices: int, gpu0_bsz: int
) -> None:
    _, *others = split_sizes(batch, num_devices, gpu0_bsz)
    assert max(others) - min(others) <= 1
    assert others == sorted(others, reverse=True)


@pytest.mark.parametrize(("batch", "num_devices", "gpu0_bsz"), [(-1, 2, 0), (4, 0, 0), (4, -2, 0), (4, 2, -1)])
def test_split_sizes_refuses_what_means_nothing(batch: int, num_devices: int, gpu0_bsz: int) -> None:
    with pytest.raises(ValueError, match="or more"):
        split_sizes(batch, num_devices, gpu0_bsz)


@given(st.integers(1, 500), DEVICES)
def test_torch_chunks_are_those_of_torch(batch: int, num_devices: int) -> None:
    assert torch_chunks(batch, num_devices) == [len(chunk) for chunk in torch.arange(batch).chunk(num_devices)]


def test_nine_samples_over_four_devices_make_three_chunks() -> None:
    assert torch_chunks(9, 4) == [3, 3, 3]  # ceil(9 / 4) = 3 each
    assert chunk_sizes("dp", 9, 4) == (3, 3, 3, 0)
    assert torch_chunks(0, 4) == []


@pytest.mark.parametrize(
    ("strategy", "batch", "num_devices", "steps", "expected"),
    [
        ("single", 8, 1, 1, (8,)),
        ("single", 8, 1, 2, (4,)),
        ("dp", 10, 4, 1, (3, 3, 3, 1)),
        ("dp", 20, 4, 2, (3, 3, 3, 1)),  # 10 a micro-batch
        ("balanced_dp", 16, 4, 1, (2, 5, 5, 4)),  # 16 // (2 * 4) = 2; 14 = 3 * 4 + 2
        ("balanced_dp", 32, 4, 2, (2, 5, 5, 4)),  # the default share counts per micro-batch
        ("balanced_dp", 8, 1, 1, (8,)),
        ("ddp", 8, 4, 1, (2, 2, 2, 2)),
        ("ddp", 16, 4, 2, (2, 2, 2, 2)),
        ("fsdp", 8, 2, 1, (4, 4)),
        ("fsdp1", 8, 2, 2, (2, 2)),
    ],
)
def test_chunk_sizes_of_every_strategy(
    strategy: str, batch: int, num_devices: int, steps: int, expected: tuple[int, ...]
) -> None:
    assert chunk_sizes(strategy, batch, num_devices, steps) == expected


def test_configured_gpu0_bsz_is_the_first_devices_share() -> None:
    assert chunk_sizes("balanced_dp", 22, 4, gpu0_bsz="4") == (4, 6, 6, 6)
    assert chunk_sizes("balanced_dp", 8, 4, gpu0_bsz="2") == (2, 2, 2, 2)  # the even share itself is allowed
    assert chunk_sizes("balanced_dp", 6, 3, gpu0_bsz="0") == (0, 3, 3)


def test_configured_gpu0_bsz_counts_per_micro_batch() -> None:
    # 44 / 2 = 22 a micro-batch, 22 // 4 = 5 at the most
    assert chunk_sizes("balanced_dp", 44, 4, 2, gpu0_bsz="4") == (4, 6, 6, 6)
    with pytest.raises(ValueError, match="gpu0_bsz 6 is above the even share of 5"):
        chunk_sizes("balanced_dp", 44, 4, 2, gpu0_bsz="6")


@pytest.mark.parametrize(("batch", "num_devices", "gpu0_bsz", "even"), [(22, 4, 6, 5), (3, 4, 1, 0), (8, 2, 5, 4)])
def test_gpu0_bsz_above_the_even_share_is_refused(batch: int, num_devices: int, gpu0_bsz: int, even: int) -> None:
    with pytest.raises(ValueError, match=rf"gpu0_bsz {gpu0_bsz} .*even share of {even}\b"):
        chunk_sizes("balanced_dp", batch, num_devices, gpu0_bsz=str(gpu0_bsz))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp1"])
def test_batch_that_does_not_divide_names_the_nearest(strategy: str) -> None:
    with pytest.raises(ValueError, match="^global_batch_size 250 does not divide over 4 devices; use 248 or 252$"):
        chunk_sizes(strategy, 250, 4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp1"])
def test_nearest_batches_count_the_accumulation_steps(strategy: str) -> None:
    # 4 devices x 3 steps: 250 lies between 240 and 252
    with pytest.raises(ValueError, match="250 does not divide over 4 devices x 3 accumulation steps; use 240 or 252"):
        chunk_sizes(strategy, 250, 4, 3)


@pytest.mark.parametrize("strategy", ["single", "dp", "balanced_dp"])
def test_one_process_strategies_split_any_batch_but_not_any_micro_batch(strategy: str) -> None:
    num_devices = 1 if strategy == "single" else 4
    assert sum(chunk_sizes(strategy, 250, num_devices)) == 250
    with pytest.raises(ValueError, match="250 does not divide over 3 accumulation steps; use 249 or 252"):
        chunk_sizes(strategy, 250, num_devices, 3)


@pytest.mark.parametrize(("strategy", "num_devices"), [("ddp", 4), ("single", 1), ("dp", 4)])
def test_batch_below_the_smallest_names_only_that_one(strategy: str, num_devices: int) -> None:
    smallest = 4 * (num_devices if strategy == "ddp" else 1)
    with pytest.raises(ValueError, match=rf"global_batch_size 1 .*; use {smallest}$"):
        chunk_sizes(strategy, 1, num_devices, 4)


@given(st.sampled_from(["dp", "balanced_dp", "ddp", "fsdp", "fsdp1"]), BATCHES.filter(bool), DEVICES, st.integers(1, 4))
def test_chunks_add_up_to_the_micro_batch_or_the_named_batches_do(
    strategy: str, batch: int, num_devices: int, steps: int
) -> None:
    try:
        sizes = chunk_sizes(strategy, batch, num_devices, steps)
    except ValueError as error:
        named = [int(word) for word in str(error).rpartition("; use ")[2].split(" or ")]
        sizes, batch = chunk_sizes(strategy, named[-1], num_devices, steps), named[-1]
        for other in named[:-1]:
            chunk_sizes(strategy, other, num_devices, steps)
    assert len(sizes) == num_devices
    assert sum(sizes) * steps == batch


def test_single_takes_one_device_only() -> None:
    single = registry.get("single")
    assert single.unsupported(make_case("single", 8, 1)) is None
    reason = single.unsupported(make_case("single", 8, 3))
    assert reason is not None and "3" in reason


@pytest.mark.parametrize(
    ("strategy", "expected"), [("single", 1), ("dp", 1), ("balanced_dp", 1), ("ddp", 4), ("fsdp", 4)]
)
def test_world_size(strategy: str, expected: int) -> None:
    assert registry.get(strategy).world_size(make_case(strategy, 8, 1 if strategy == "single" else 4)) == expected


def test_host_replicas_are_emulated_and_process_groups_are_not() -> None:
    emulated = {name: registry.get(name).emulated(make_case(name, 8, 2)) for name in registry.names()}
    assert emulated == {
        "single": False, "dp": True, "balanced_dp": True, "ddp": False, "fsdp": False, "fsdp1": False,
        "zero1": False,
    }  # fmt: skip
