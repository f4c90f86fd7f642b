"""One case of a sweep of GPU 0's share, and what all of them say in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.analysis.estimates import TOO_FEW
from bench.analysis.intervals import Interval
from bench.analysis.spreads import Spread, surely_above
from bench.analysis.wording import ends_text
from bench.balance import Model

SWEPT = "balanced_dp"
EMULATED_ROW = "emulated"
NO_SPEED = (
    "What a share costs in speed cannot be told: host replicas stand in for devices in balanced_dp and dp (emulated); "
    "ddp is the real thing."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """One case of the sweep.

    label: e.g. `gpu0_bsz 6`, `gpu0_bsz 64 (even)`, `auto: gpu0_bsz 22`, `dp (loss on replica)`, `ddp`;
    gpu0_samples: samples of a micro-batch on the first device, `share` the same as a part of 1,
    `even` whether no other device has more than a remainder above it;
    peak_bytes: peak_allocated_bytes device by device, empty where no device has one;
    predicted_peak_bytes: what auto predicted before it ran, empty for the others;
    imbalance: largest peak over the mean one, less 1; None where a peak is missing;
    versus_dp: throughput over that of dp's better loss placement; None without one, and for it itself;
    largest_batch: samples of the largest micro-batch that fits under this share by the sweep's model;
    balance: what auto chose, and why; excluded: why it is not ranked, None if it is.
    """

    case_id: str
    label: str
    strategy: str
    chunk_sizes: tuple[int, ...]
    gpu0_samples: int | None
    share: float | None
    even: bool
    status: str
    reason: str | None
    samples_per_second: Spread | None
    versus_dp: Interval | None
    peak_bytes: tuple[float | None, ...]
    predicted_peak_bytes: tuple[float | None, ...]
    imbalance: float | None
    largest_batch: int | None
    balance: str | None
    excluded: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is known of the devices' memory: the model of the sweep's peaks, or why there is none; what is free (bytes).

    more_batches: the option that measures what the model lacks, another batch, to copy.
    """

    model: Model | None
    unknown: str | None
    capacity: tuple[int | None, ...]
    more_batches: str


def sentences(rows: Sequence[ShareRow], reference: str | None, memory: Memory) -> Iterator[str]:
    """Which share is most even, what it costs in speed, how much larger the batch can become, whether ddp leads."""
    swept = [row for row in rows if row.strategy == SWEPT]
    measured = [row for row in swept if row.imbalance is not None]
    if not measured:
        why = memory.unknown or "no launch has a peak on every device"
        yield f"Which share is most even, and how much larger the largest batch becomes, cannot be told: {why}."
        if swept[0].excluded == EMULATED_ROW:
            yield NO_SPEED
    else:
        best = min(measured, key=lambda row: (row.imbalance or 0.0, -(row.gpu0_samples or 0)))
        even = next((row for row in measured if row.even), None)
        beside = f", with the even share {even.imbalance:.1%}" if even and even is not best else ""
        yield f"Most even is {best.label}: its fullest device lies {best.imbalance:.1%} above the mean{beside}."
        yield _cost(best, reference)
        yield _growth(best, swept, memory)
        yield from (_prediction(row) for row in measured if row.predicted_peak_bytes)
    yield from _ddp_leads(rows, reference)


def _cost(row: ShareRow, reference: str | None) -> str:
    if row.versus_dp is None or reference is None:
        return "What it costs in speed cannot be told: there is no pair of a share and dp to compare."
    doubt = _doubt(row.versus_dp, row.samples_per_second)
    return f"It runs at {row.versus_dp.value:.3f} times the throughput of {reference} ({doubt})."


def _doubt(ratio: Interval, spread: Spread | None) -> str:
    launches = len(spread.launches) if spread else 0
    if ratio.low is None or ratio.high is None:
        return f"{TOO_FEW} for an interval"
    return f"95 % interval {ends_text(ratio.low, ratio.high, launches, '{:.3f}'.format)}"


def _growth(best: ShareRow, swept: Sequence[ShareRow], memory: Memory) -> str:
    even = next((row for row in swept if row.even and row.largest_batch is not None), None)
    if best.largest_batch is not None and even is not None and even.largest_batch:
        ratio = best.largest_batch / even.largest_batch
        return (
            f"By a model of these peaks the largest micro-batch is about {best.largest_batch} samples, {ratio:.2f} "
            f"times the {even.largest_batch} of the even share, which is dp's; the CUDA context and fragmentation take "
            "some of both."
        )
    if memory.model is None:
        why = memory.unknown or "there is no model of the peaks"
    elif memory.model.gathered_bytes is None:
        why = (
            "all launches had one micro-batch, so what GPU 0 gathers of a larger one is not known; measure another "
            f"batch too: {memory.more_batches}"
        )
    elif None in memory.capacity:
        why = "the memory of a device is not known"
    else:
        why = "the even share was not measured, or fits no sample"
    return f"How much larger the largest batch becomes cannot be told: {why}."


def _prediction(row: ShareRow) -> str:
    pairs = zip(row.predicted_peak_bytes, row.peak_bytes, strict=True)
    errors = [abs(predicted / peak - 1) for predicted, peak in pairs if predicted is not None and peak]
    return f"{row.label}: the prediction was at most {max(errors, default=0.0):.1%} off the measured peaks."


def _ddp_leads(rows: Sequence[ShareRow], reference: str | None) -> Iterator[str]:
    """Only where it is sure, and only over rows that are ranked."""
    ranked = [row for row in rows if row.excluded is None and row.samples_per_second is not None]
    shares = [row.samples_per_second for row in ranked if row.strategy == SWEPT]
    for row in ranked if shares else ():
        if row.strategy == "ddp" and all(surely_above(row.samples_per_second, share) for share in shares):
            ratio = row.versus_dp
            runs = f"runs at {ratio.value:.2f} times the throughput of {reference}," if ratio else "is"
            yield f"{row.label} {runs} faster than every share: balance only where DDP cannot be used."
