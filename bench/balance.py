"""How samples are shared when GPU 0 holds more than the others: the split, a model of the memory, a choice.

The model of the allocator's peak of device i, with n_i samples of a micro-batch of B samples:

    peak_i = fixed_i + slope * n_i                     on every device but the first
    peak_0 = fixed_0 + slope * n_0 + gathered * B      on the first, which also holds what is gathered

`fixed` is what a device holds with no samples (parameters; on GPU 0 gradients and optimizer
state too), `slope` what a sample needs where it is computed, `gathered` what it leaves on GPU 0
wherever it was computed. Bytes throughout, as DataParallel's memory behaves to first order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


class CannotTell(ValueError):
    """The probes do not determine what was asked for; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One launch: samples of a micro-batch on each device, and each device's peak (bytes, None where unknown)."""

    chunk_sizes: tuple[int, ...]
    peak_bytes: tuple[float | None, ...]

    @property
    def text(self) -> str:
        return f"[{', '.join(map(str, self.chunk_sizes))}] peaked at {sizes_text(self.peak_bytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Peaks per device as a function of the split (module docstring), in bytes.

    gathered_bytes: None where it could not be told from the first device's fixed part, which
    holds it then; worst_error_bytes: how far the model is at most from a peak it was fitted to.
    """

    fixed_bytes: tuple[float, ...]
    slope_bytes: float
    gathered_bytes: float | None
    worst_error_bytes: float

    def peaks(self, chunk_sizes: Sequence[int]) -> tuple[float, ...]:
        """The predicted peak of each device (bytes) for samples per device, the first one first."""
        first, *others = (
            fixed + self.slope_bytes * size for fixed, size in zip(self.fixed_bytes, chunk_sizes, strict=True)
        )
        return (first + (self.gathered_bytes or 0.0) * sum(chunk_sizes), *others)

    @property
    def text(self) -> str:
        gathered = (
            "what GPU 0 gathers is part of its fixed part"
            if self.gathered_bytes is None
            else f"GPU 0 gathers {size_text(self.gathered_bytes)} a sample of the micro-batch"
        )
        return (
            f"fixed {sizes_text(self.fixed_bytes)}, {size_text(self.slope_bytes)} a sample, {gathered}; "
            f"at most {size_text(self.worst_error_bytes)} off a measured peak"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A share for GPU 0, the split that it leads to, and the predicted peak of each device (bytes)."""

    gpu0_bsz: int
    chunk_sizes: tuple[int, ...]
    predicted_peak_bytes: tuple[float, ...]
    text: str


def split_sizes(batch: int, num_devices: int, gpu0_bsz: int) -> list[int]:
    """Samples per device, the first one first; they add up to `batch`.

    One device takes all. Otherwise GPU 0 takes `min(gpu0_bsz, batch // num_devices)` and the
    rest is split as evenly as possible over the others, the remainder one each to the first
    of them. ValueError for a negative number or no device.
    """
    if batch < 0 or gpu0_bsz < 0 or num_devices < 1:
        raise ValueError(
            f"batch {batch} and gpu0_bsz {gpu0_bsz} must be 0 or more, num_devices {num_devices} 1 or more"
        )
    if num_devices == 1:
        return [batch]
    first = min(gpu0_bsz, batch // num_devices)
    share, remainder = divmod(batch - first, num_devices - 1)
    return [first] + [share + 1] * remainder + [share] * (num_devices - 1 - remainder)


def share_samples(micro_batch: int, num_devices: int, share: float) -> int:
    """Samples of GPU 0 for a share of the micro-batch (0 to 1): rounded half up, at most the even share."""
    return min(math.floor(share * micro_batch + 0.5), micro_batch // num_devices)


def fit(probes: Sequence[Probe]) -> Model:
    """The model whose peaks lie closest to those of the probes, by least squares.

    With N devices there are N fixed parts, the slope, and what GPU 0 gathers: N + 2 unknowns.
    The last is only told from GPU 0's fixed part by probes of different micro-batches; where
    all have the same, it is folded into that fixed part, and the model is for that micro-batch.

    Example, 2 devices: [4, 12] peaked at 220 and 180, [4, 4] at 180 and 100. The second device
    gives slope = (180 - 100) / (12 - 4) = 10 and fixed_1 = 180 - 120 = 60; the first, whose own
    samples are equal, gathered = (220 - 180) / (16 - 8) = 5 and fixed_0 = 220 - 40 - 80 = 100.

    Raises CannotTell where a peak is missing, where no device had two different numbers of
    samples, and where the peaks do not grow with the samples.
    """
    _check(probes)
    num_devices = len(probes[0].chunk_sizes)
    totals = {sum(probe.chunk_sizes) for probe in probes}
    rows, peaks = [], []
    for probe in probes:
        for device, (size, peak) in enumerate(zip(probe.chunk_sizes, probe.peak_bytes, strict=True)):
            own = [float(other == device) for other in range(num_devices)]
            gathered = [float(sum(probe.chunk_sizes)) if device == 0 else 0.0] if len(totals) > 1 else []
            rows.append([*own, float(size), *gathered])
            peaks.append(peak)
    matrix, measured = np.array(rows), np.array(peaks, dtype=float)
    found, _, rank, _ = np.linalg.lstsq(matrix, measured, rcond=None)
    if rank < matrix.shape[1]:
        splits = ", ".join(str(list(sizes)) for sizes in dict.fromkeys(probe.chunk_sizes for probe in probes))
        raise CannotTell(
            f"the splits {splits} do not tell what a sample needs from what a device holds anyway: probe with "
            "different numbers of samples on GPU 0 and on the others"
        )
    slope = float(found[num_devices])
    # What is 0 comes out as rounding of the peaks.
    if slope <= 1e-9 * float(measured.max()):
        raise CannotTell(f"the peaks do not grow with the samples ({size_text(slope)} a sample), so none can be moved")
    return Model(
        fixed_bytes=tuple(float(value) for value in found[:num_devices]),
        slope_bytes=slope,
        gathered_bytes=float(found[num_devices + 1]) if len(totals) > 1 else None,
        worst_error_bytes=float(np.abs(matrix @ found - measured).max()),
    )


def _check(probes: Sequence[Probe]) -> None:
    if not probes:
        raise CannotTell("no launch has a peak on every device")
    for probe in probes:
        missing = [device for device, peak in enumerate(probe.peak_bytes) if peak is None]
        if missing or len(probe.peak_bytes) != len(probe.chunk_sizes):
            where = f"on device {missing[0]}" if missing else "on some device"
            raise CannotTell(f"the split {list(probe.chunk_sizes)} has no peak {where}")
    if len({len(probe.chunk_sizes) for probe in probes}) > 1:
        raise CannotTell("the probes ran on different numbers of devices")


def choose(model: Model, micro_batch: int) -> Choice:
    """The share of GPU 0, from 0 to the even one, whose largest peak is the smallest.

    Of equal ones the largest share, which is the fastest. Example: the model of `fit` at 16
    samples predicts 180 + 10 a on GPU 0 and 60 + 10 (16 - a) on the other; both are 200 at a = 2.
    """
    num_devices = len(model.fixed_bytes)
    splits = [split_sizes(micro_batch, num_devices, share) for share in range(micro_batch // num_devices + 1)]
    gpu0_bsz = min(range(len(splits)), key=lambda share: (max(model.peaks(splits[share])), -share))
    predicted, even = model.peaks(splits[gpu0_bsz]), model.peaks(splits[-1])
    text = (
        f"{model.text}; chosen gpu0_bsz {gpu0_bsz} of {micro_batch}, [{', '.join(map(str, splits[gpu0_bsz]))}]: "
        f"predicted {sizes_text(predicted)}, against {sizes_text(even)} with the even share of {len(splits) - 1}"
    )
    first, *others = model.peaks(splits[0])
    if first > max(others):
        text += (
            f"; with no sample of its own GPU 0 holds {size_text(first)}, more than the {size_text(max(others))} of "
            "the fullest other device, which has all samples then: moving samples cannot even that out, so it takes 0"
        )
    return Choice(gpu0_bsz=gpu0_bsz, chunk_sizes=tuple(splits[gpu0_bsz]), predicted_peak_bytes=predicted, text=text)


def largest_batch(model: Model, share: float, capacity_bytes: Sequence[float]) -> int:
    """Samples of the largest micro-batch whose every predicted peak fits, with GPU 0 at `share` (0 to 1) of it.

    0 where nothing fits. Without rounding, B <= (capacity_0 - fixed_0) / (slope share + gathered) and
    B <= (capacity_i - fixed_i) / (slope (1 - share) / (N - 1)). Example: the model of `fit`, 200 a
    device. At a share of 1/8: 100 / (1.25 + 5) = 16 and 140 / 8.75 = 16, so 16; at the even share
    100 / (5 + 5) = 10 and 140 / 5 = 28, so 10.

    CannotTell where the model does not know what GPU 0 gathers. Peaks of the allocator leave out
    the CUDA context and fragmentation: a real limit lies somewhat lower.
    """
    if model.gathered_bytes is None:
        raise CannotTell("all launches had the same micro-batch, so what GPU 0 gathers of a larger one is not known")
    num_devices = len(model.fixed_bytes)
    rates = [model.slope_bytes * share + model.gathered_bytes]
    rates += [model.slope_bytes * (1 - share) / (num_devices - 1)] * (num_devices - 1)
    limits = [
        (capacity - fixed) / rate
        for capacity, fixed, rate in zip(capacity_bytes, model.fixed_bytes, rates, strict=True)
        if rate > 0
    ]
    # Rounding the share and the remainder moves the limit by less than a sample for each device.
    batch = max(0, math.floor(min(limits)) + num_devices)
    while batch and not _fits(model, batch, share, capacity_bytes):
        batch -= 1
    return batch


def _fits(model: Model, batch: int, share: float, capacity_bytes: Sequence[float]) -> bool:
    num_devices = len(model.fixed_bytes)
    sizes = split_sizes(batch, num_devices, share_samples(batch, num_devices, share))
    # A least-squares solution is exact to some 1e-12 of the peaks only.
    return all(p <= capacity * (1 + 1e-9) for p, capacity in zip(model.peaks(sizes), capacity_bytes, strict=True))


def size_text(value: float | None) -> str:
    """Bytes with a binary unit and three digits or so: 1.25 GiB."""
    if value is None:
        return "unknown"
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= unit:
            return f"{value / unit:.3g} {name}" if abs(value) < 999.5 * unit else f"{value / unit:.0f} {name}"
    return f"{value:.0f} bytes"


def sizes_text(values: Sequence[float | None]) -> str:
    """Sizes device by device: 1.25 GiB / 900 MiB."""
    return " / ".join(map(size_text, values))
