"""The split, the memory model and the choice, against figures worked out by hand and made-up peaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.balance import (
    CannotTell,
    Model,
    Probe,
    choose,
    fit,
    largest_batch,
    share_samples,
    size_text,
    sizes_text,
    split_sizes,
)
from bench.strategies import balanced_dp

MIB, GIB = 2**20, 2**30

# Two devices: fixed 100 and 60, 10 a sample, GPU 0 gathers 5 a sample of the micro-batch.
BY_HAND = (
    Probe(chunk_sizes=(4, 12), peak_bytes=(220, 180)),  # 100 + 40 + 80; 60 + 120
    Probe(chunk_sizes=(4, 4), peak_bytes=(180, 100)),  # 100 + 40 + 40; 60 + 40
)


def probe(sizes: list[int], *peaks: float | None) -> Probe:
    return Probe(chunk_sizes=tuple(sizes), peak_bytes=peaks)


def made(fixed: tuple[float, ...], slope: float, gathered: float | None) -> Model:
    return Model(fixed_bytes=fixed, slope_bytes=slope, gathered_bytes=gathered, worst_error_bytes=0.0)


def test_the_strategy_offers_the_same_split() -> None:
    assert balanced_dp.split_sizes is split_sizes


def test_model_worked_out_by_hand() -> None:
    model = fit(BY_HAND)
    assert model.fixed_bytes == pytest.approx((100, 60))
    assert (model.slope_bytes, model.gathered_bytes) == (pytest.approx(10), pytest.approx(5))
    assert model.worst_error_bytes == pytest.approx(0, abs=1e-9)
    assert model.peaks((2, 14)) == pytest.approx((200, 200))  # 100 + 20 + 80; 60 + 140
    assert model.text == (
        "fixed 100 bytes / 60 bytes, 10 bytes a sample, GPU 0 gathers 5 bytes a sample of the micro-batch; "
        "at most 0 bytes off a measured peak"
    )


def test_what_is_gathered_is_part_of_the_fixed_one_where_all_micro_batches_are_equal() -> None:
    same = (BY_HAND[0], probe([8, 8], 260, 140))
    model = fit(same)
    assert model.gathered_bytes is None and "is part of its fixed part" in model.text
    assert model.fixed_bytes == pytest.approx((180, 60))  # 100 + 5 * 16
    assert model.peaks((2, 14)) == pytest.approx((200, 200))  # right at that micro-batch
    assert choose(model, 16).gpu0_bsz == 2
    with pytest.raises(CannotTell, match="all launches had the same micro-batch"):
        largest_batch(model, 0.5, (200, 200))


def test_more_probes_than_unknowns_are_fitted_and_the_distance_is_told() -> None:
    # Slope 10 and fixed 0 exactly; the last probe is 4 too large on the second device.
    probes = [probe([0, 4], 0, 40), probe([2, 2], 20, 20), probe([1, 3], 10, 34)]
    model = fit(probes)
    assert 9 < model.slope_bytes < 11
    assert 1 < model.worst_error_bytes < 4


@pytest.mark.parametrize(
    ("probes", "reason"),
    [
        ([], "no launch has a peak"),
        ([probe([4, 12], 220, 180)], r"splits \[4, 12\] do not tell"),
        ([probe([4, 12], 220, 180)] * 2, r"splits \[4, 12\] do not tell"),
        ([probe([4, 12], 220, 180), probe([4, 4], 180, None)], r"\[4, 4\] has no peak on device 1"),
        ([probe([4, 12], 220), probe([4, 4], 180, 100)], r"\[4, 12\] has no peak on some device"),
        # Only GPU 0 has two numbers of samples, and they grow with the micro-batch: two unknowns, one equation.
        ([probe([4, 4], 180, 100), probe([8, 4], 240, 100)], "do not tell"),
        ([probe([4, 12], 220, 180), probe([4, 4], 180, 180)], r"do not grow with the samples \(0 bytes"),
        ([probe([4, 12], 220, 100), probe([4, 4], 180, 180)], r"do not grow with the samples \(-10 bytes"),
        ([probe([4, 12], 220, 180), probe([2, 3, 3], 1, 2, 3)], "different numbers of devices"),
    ],
)
def test_probes_that_cannot_tell_say_why(probes: list[Probe], reason: str) -> None:
    with pytest.raises(CannotTell, match=reason):
        fit(probes)


def test_choice_worked_out_by_hand() -> None:
    choice = choose(fit(BY_HAND), 16)
    assert (choice.gpu0_bsz, choice.chunk_sizes) == (2, (2, 14))
    assert choice.predicted_peak_bytes == pytest.approx((200, 200))
    # The even share: 100 + 80 + 80 and 60 + 80.
    assert choice.text.endswith(
        "chosen gpu0_bsz 2 of 16, [2, 14]: predicted 200 bytes / 200 bytes, "
        "against 260 bytes / 140 bytes with the even share of 8"
    )


def test_equal_peaks_go_to_the_larger_share() -> None:
    # 13 samples over 4: the fullest other device has 4 for shares 1 to 3 ([1, 4, 4, 4], [2, 4, 4, 3], [3, 4, 3, 3]).
    assert choose(made((0, 0, 0, 0), 10, 0), 13).chunk_sizes == (3, 4, 3, 3)


def test_devices_that_hold_the_same_get_the_even_share() -> None:
    assert choose(made((50, 50), 10, 0), 16).chunk_sizes == (8, 8)


def test_fixed_part_that_no_split_evens_out_takes_no_sample_and_says_so() -> None:
    # GPU 0 alone: 12 GiB + 16 * 0.125 GiB = 14 GiB; the other with all 16 samples: 1 + 16 * 0.5 = 9 GiB.
    choice = choose(made((12 * GIB, 1 * GIB), 0.5 * GIB, 0.125 * GIB), 16)
    assert choice.chunk_sizes == (0, 16)
    assert choice.predicted_peak_bytes == (14 * GIB, 9 * GIB)
    assert "with no sample of its own GPU 0 holds 14 GiB, more than the 9 GiB of the fullest other" in choice.text
    assert choice.text.endswith("moving samples cannot even that out, so it takes 0")
    # The even share would need 12 + 4 + 2 = 18 GiB and 5 GiB.
    assert "against 18 GiB / 5 GiB" in choice.text


def test_share_0_that_is_chosen_for_evenness_is_not_called_hopeless() -> None:
    choice = choose(made((220, 60), 10, 0), 16)  # 220 and 60 + 160 = 220: even at 0
    assert choice.gpu0_bsz == 0 and "cannot even" not in choice.text


def test_largest_batch_worked_out_by_hand() -> None:
    model = fit(BY_HAND)
    # 100 / (1.25 + 5) = 16 and 140 / 8.75 = 16
    assert largest_batch(model, 1 / 8, (200, 200)) == 16
    # 100 / (5 + 5) = 10 and 140 / 5 = 28
    assert largest_batch(model, 1 / 2, (200, 200)) == 10
    # At 0 only what is gathered counts on GPU 0: 100 / 5 = 20; 140 / 10 = 14
    assert largest_batch(model, 0.0, (200, 200)) == 14
    assert largest_batch(model, 1 / 2, (200, 80)) == 4  # 20 / 5 samples on the second: [2, 2]
    assert largest_batch(model, 1 / 2, (99, 200)) == 0  # the fixed part alone is too much


SIZES = st.integers(2, 8)


@given(SIZES, st.floats(0, 0.5), st.integers(20, 4000), st.floats(0.5, 20), st.floats(0, 5))
def test_largest_batch_fits_and_a_few_more_do_not(
    num_devices: int, share: float, room: int, slope: float, gathered: float
) -> None:
    model = made((30.0, *[10.0] * (num_devices - 1)), slope, gathered)
    share = min(share, 1 / num_devices)
    capacity = [float(room + 30)] * num_devices
    batch = largest_batch(model, share, capacity)

    def fits(size: int) -> bool:
        split = split_sizes(size, num_devices, share_samples(size, num_devices, share))
        return all(peak <= limit + 1e-6 for peak, limit in zip(model.peaks(split), capacity, strict=True))

    assert batch == 0 or fits(batch)
    assert not any(fits(batch + more) for more in range(1, 2 * num_devices + 3))


@st.composite
def true_models(draw: st.DrawFn, granularity: int) -> tuple[Model, int]:
    """A memory model and a micro-batch; a sample needs far more than the allocator's granularity."""
    num_devices = draw(st.sampled_from([2, 3, 4, 8]))
    micro_batch = draw(st.integers(2 * num_devices, 600))
    slope = draw(st.integers(16 * granularity, 400 * granularity))
    others = draw(st.lists(st.integers(0, 20 * slope), min_size=num_devices - 1, max_size=num_devices - 1))
    first = draw(st.integers(0, 2 * slope * micro_batch // num_devices))
    return made((float(first), *map(float, others)), float(slope), draw(st.integers(0, slope)) * 1.0), micro_batch


def as_the_driver_probes(model: Model, micro_batch: int, noise: list[float]) -> list[Probe]:
    num_devices, half = len(model.fixed_bytes), micro_batch // 2
    splits = [
        split_sizes(micro_batch, num_devices, micro_batch // (2 * num_devices)),
        split_sizes(half, num_devices, half // num_devices),
    ]
    errors = iter(noise)
    return [probe(sizes, *(peak + next(errors) for peak in model.peaks(sizes))) for sizes in splits]


@pytest.mark.parametrize("granularity", [512, 2 * MIB])
@given(data=st.data())
def test_known_split_is_found_within_one_sample_despite_the_allocators_granularity(
    granularity: int, data: st.DataObject
) -> None:
    true, micro_batch = data.draw(true_models(granularity))
    noise = data.draw(st.lists(st.floats(0, granularity), min_size=16, max_size=16))
    found = choose(fit(as_the_driver_probes(true, micro_batch, noise)), micro_batch)
    best = choose(true, micro_batch)
    assert abs(found.gpu0_bsz - best.gpu0_bsz) <= 1
    assert max(true.peaks(found.chunk_sizes)) <= max(best.predicted_peak_bytes) + true.slope_bytes


@pytest.mark.parametrize(
    ("num_devices", "micro_batch", "first", "share"),
    [
        # Others hold 1 GiB, a sample 64 MiB, nothing gathered: even where first + 64 a = 1024 + 64 (B - a) / (N - 1).
        (2, 64, 2 * GIB, 24),  # 2048 + 64 * 24 = 1024 + 64 * 40 = 3584 MiB
        (3, 48, 2 * GIB, 6),  # a tie at 2432 MiB: [5, 22, 21] on the second, [6, 21, 21] on the first
        (4, 64, 2 * GIB, 4),  # 2048 + 256 = 1024 + 64 * 20 = 2304
        (8, 256, 3 * GIB, 4),  # 3072 + 256 = 1024 + 64 * 36 = 3328
    ],
)
def test_splits_worked_out_by_hand(num_devices: int, micro_batch: int, first: int, share: int) -> None:
    true = made((first, *[1 * GIB] * (num_devices - 1)), 64 * MIB, 0)
    found = choose(fit(as_the_driver_probes(true, micro_batch, [0.0] * 16)), micro_batch)
    # Rounding in the fit may fall on either side of the tie.
    assert found.gpu0_bsz in ((share - 1, share) if num_devices == 3 else (share,))


def test_share_in_samples_is_rounded_half_up_and_never_above_the_even_one() -> None:
    assert [share_samples(128, 4, share) for share in (0.0, 0.05, 0.10, 0.15, 0.5)] == [0, 6, 13, 19, 32]
    assert share_samples(10, 2, 0.05) == 1  # 0.5


def test_sizes_have_a_unit_and_about_three_digits() -> None:
    assert [size_text(value) for value in (0, 512, 1536, 1023 * MIB, 1.25 * GIB, 139.8 * GIB, None)] == [
        "0 bytes", "512 bytes", "1.5 KiB", "1023 MiB", "1.25 GiB", "140 GiB", "unknown",
    ]  # fmt: skip
    assert sizes_text((GIB, None)) == "1 GiB / unknown"
