"""The load-balance sweep of one run: which share of GPU 0 is most even, what it costs, what it buys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from bench.analysis.intervals import Interval
from bench.analysis.summary import Row, Spread, WorkloadSummary, summarise
from bench.balance import CannotTell, Model, Probe, fit, largest_batch
from bench.recording.reader import RunData
from bench.schema import Launch


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
    samples_per_second: Interval | None
    versus_dp: Interval | None
    peak_bytes: tuple[float | None, ...]
    predicted_peak_bytes: tuple[float | None, ...]
    imbalance: float | None
    largest_batch: int | None
    balance: str | None
    excluded: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSummary:
    """The shares of one workload at one batch: balanced_dp by growing share, then auto, dp and ddp.

    reference: title of dp's better placement, None where dp was not measured;
    model: the memory model fitted to the sweep's peaks as text, None where there are none;
    sentences: the answers in words, or why they cannot be given.
    """

    workload: str
    size_text: str
    device_type: str
    num_devices: int
    global_batch_size: int
    micro_batch_size: int
    precision: str
    rows: tuple[ShareRow, ...]
    reference: str | None
    model: str | None
    sentences: tuple[str, ...]


SWEPT, PLAIN = "balanced_dp", ("dp", "ddp")
PEAK, PREDICTED = "peak_allocated_bytes", "predicted_peak_bytes"
SHARE, PLACEMENT = "gpu0_bsz", "loss_on"

EMULATED_ROW = "emulated"
NO_SPEED = "What a share costs in speed cannot be told: host replicas stand in for devices."

_Key: TypeAlias = tuple[object, ...]


def balance_summaries(data: RunData) -> tuple[BalanceSummary, ...]:
    """One summary per workload and batch at which balanced_dp ran with two or more different splits.

    Empty where the run holds no such sweep. Never raises for figures that are missing: the sentences say so.
    """
    found = []
    for summary in summarise(data):
        sweeps: dict[_Key, list[Row]] = defaultdict(list)
        for row in summary.rows:
            if row.result.axes.strategy == SWEPT and row.result.axes.chunk_sizes:
                sweeps[_key(row, batch=True)].append(row)
        for swept in sweeps.values():
            if len({row.result.axes.chunk_sizes for row in swept}) > 1:
                found.append(_summary(data, summary, swept))
    return tuple(found)


def _key(row: Row, *, batch: bool, placement: bool = True) -> _Key:
    """What the rows of one sweep share: all but the split, and the batch or where the loss is computed if asked."""
    axes = row.result.axes
    free = {SHARE} if placement else {SHARE, PLACEMENT}
    settings = frozenset(item for item in axes.settings if item.name not in free)
    return (axes.devices, axes.precision, axes.accumulation_steps, settings, axes.global_batch_size if batch else None)


def _summary(data: RunData, summary: WorkloadSummary, swept: Sequence[Row]) -> BalanceSummary:
    axes = swept[0].result.axes
    key, wide = _key(swept[0], batch=False), _key(swept[0], batch=True, placement=False)
    others = [
        row
        for row in summary.rows
        if row.result.axes.strategy in PLAIN and _key(row, batch=True, placement=False) == wide
    ]
    same_model = [row for row in summary.rows if row.result.axes.strategy == SWEPT and _key(row, batch=False) == key]
    model, unknown = _model(same_model)
    capacity = _capacity(data, axes)
    rows = [_share_row(row, model, capacity) for row in [*sorted(swept, key=_by_share), *others]]
    against = next((row.versus_dp.against for row in swept if row.versus_dp), None)
    reference = next((row.label for row in others if row.title == against), None)
    return BalanceSummary(
        workload=summary.workload,
        size_text=summary.size_text,
        device_type=axes.device_type,
        num_devices=axes.num_devices,
        global_batch_size=axes.global_batch_size,
        micro_batch_size=axes.global_batch_size // axes.accumulation_steps,
        precision=axes.precision,
        rows=tuple(rows),
        reference=reference,
        model=model.text if model else None,
        sentences=tuple(_sentences(rows, reference, model, unknown, capacity)),
    )


def _by_share(row: Row) -> tuple[object, ...]:
    chosen = _setting(row.result.axes)
    return (chosen == "auto", chosen is None, row.result.axes.chunk_sizes[0])


def _setting(launch: Launch) -> str | None:
    return next((item.value for item in launch.settings if item.name == SHARE), None)


def _model(rows: Sequence[Row]) -> tuple[Model | None, str | None]:
    """The memory model of all launches of balanced_dp that train alike, at any batch, or why there is none."""
    if rows[0].result.axes.device_type == "cpu":
        return None, "on CPU there is no device memory to read; measure on GPUs"
    peaks = {row.result.axes.chunk_sizes: tuple(row.result.per_device(PEAK)) for row in rows}
    probes = [
        Probe(chunk_sizes=sizes, peak_bytes=found) for sizes, found in peaks.items() if found and None not in found
    ]
    try:
        return fit(probes), None
    except CannotTell as error:
        twice = "; a device is listed more than once" if rows[0].result.oversubscribed else ""
        return None, f"{error}{twice}"


def _capacity(data: RunData, launch: Launch) -> tuple[int | None, ...]:
    """Bytes of each device that are free for the launch: all, less what was in use before the first."""
    known = {device.index: device for device in data.run.devices or ()}
    found = []
    for ordinal in launch.devices:
        device = known.get(ordinal)
        memory = device.memory_bytes if device else None
        found.append(None if device is None or memory is None else memory - (device.idle_memory_used_bytes or 0))
    return tuple(found)


def _share_row(row: Row, model: Model | None, capacity: tuple[int | None, ...]) -> ShareRow:
    axes = row.result.axes
    swept = axes.strategy == SWEPT
    gpu0 = axes.chunk_sizes[0] if axes.chunk_sizes else None
    micro = sum(axes.chunk_sizes)
    share = gpu0 / micro if gpu0 is not None and micro else None
    peaks = tuple(row.result.per_device(PEAK))
    texts = [launch.balance for launch in row.result.launches if launch.balance]
    return ShareRow(
        case_id=axes.case_id,
        label=_label(row) if swept else row.label,
        strategy=axes.strategy,
        chunk_sizes=axes.chunk_sizes,
        gpu0_samples=gpu0,
        share=share,
        even=_is_even(axes),
        status=row.result.status,
        reason=row.result.reason,
        samples_per_second=_interval(row.throughput),
        versus_dp=row.versus_dp.interval if row.versus_dp else None,
        peak_bytes=peaks,
        predicted_peak_bytes=tuple(row.result.per_device(PREDICTED)),
        imbalance=imbalance(peaks),
        largest_batch=_largest(model, share, capacity) if swept else None,
        balance=texts[0] if texts else None,
        excluded=row.excluded,
    )


def _label(row: Row) -> str:
    axes = row.result.axes
    text = f"{SHARE} {axes.chunk_sizes[0]}" + (" (even)" if _is_even(axes) else "")
    chosen = _setting(axes)
    return f"auto: {text}" if chosen == "auto" else f"default: {text}" if chosen is None else text


def _is_even(launch: Launch) -> bool:
    sizes = launch.chunk_sizes
    return bool(sizes) and sizes[0] == sum(sizes) // len(sizes)


def _interval(spread: Spread | None) -> Interval | None:
    return None if spread is None else Interval(value=spread.value, low=spread.low, high=spread.high)


def imbalance(peaks: Sequence[float | None]) -> float | None:
    """Largest peak over the mean one, less 1: 0 is even. None where a peak is missing."""
    known = [peak for peak in peaks if peak is not None]
    if not known or len(known) < len(peaks) or sum(known) <= 0:
        return None
    return max(known) / fmean(known) - 1


def _largest(model: Model | None, share: float | None, capacity: Sequence[int | None]) -> int | None:
    known = [value for value in capacity if value is not None]
    if model is None or model.gathered_bytes is None or share is None or len(known) < len(capacity):
        return None
    return largest_batch(model, share, known)


def _sentences(
    rows: Sequence[ShareRow],
    reference: str | None,
    model: Model | None,
    unknown: str | None,
    capacity: Sequence[int | None],
) -> Iterator[str]:
    """Which share is most even, what it costs in speed, how much larger the largest batch becomes."""
    swept = [row for row in rows if row.strategy == SWEPT]
    measured = [row for row in swept if row.imbalance is not None]
    if not measured:
        why = unknown or "no launch has a peak on every device"
        yield f"Which share is most even, and how much larger the largest batch becomes, cannot be told: {why}."
        if swept[0].excluded == EMULATED_ROW:
            yield NO_SPEED
        return
    best = min(measured, key=lambda row: (row.imbalance or 0.0, -(row.gpu0_samples or 0)))
    even = next((row for row in measured if row.even), None)
    beside = f", with the even share {even.imbalance:.1%}" if even and even is not best else ""
    yield f"Most even is {best.label}: its fullest device lies {best.imbalance:.1%} above the mean{beside}."
    yield _cost(best, reference)
    yield _growth(best, swept, model, unknown, capacity)
    yield from (_prediction(row) for row in measured if row.predicted_peak_bytes)


def _cost(row: ShareRow, reference: str | None) -> str:
    if row.versus_dp is None or reference is None:
        return "What it costs in speed cannot be told: there is no pair of a share and dp to compare."
    ends = row.versus_dp
    doubt = (
        "too few launches for an interval" if ends.low is None else f"95 % interval {ends.low:.3f} to {ends.high:.3f}"
    )
    return f"It runs at {ends.value:.3f} times the throughput of {reference} ({doubt})."


def _growth(
    best: ShareRow, swept: Sequence[ShareRow], model: Model | None, unknown: str | None, capacity: Sequence[int | None]
) -> str:
    even = next((row for row in swept if row.even and row.largest_batch is not None), None)
    if best.largest_batch is not None and even is not None and even.largest_batch:
        ratio = best.largest_batch / even.largest_batch
        return (
            f"By a model of these peaks the largest micro-batch is about {best.largest_batch} samples, {ratio:.2f} "
            f"times the {even.largest_batch} of the even share, which is dp's; the CUDA context and fragmentation take "
            "some of both."
        )
    if model is None:
        why = unknown or "there is no model of the peaks"
    elif model.gathered_bytes is None:
        why = "all launches had one micro-batch, so what GPU 0 gathers of a larger one is not known; add another batch"
    elif None in capacity:
        why = "the memory of a device is not known"
    else:
        why = "the even share was not measured, or fits no sample"
    return f"How much larger the largest batch becomes cannot be told: {why}."


def _prediction(row: ShareRow) -> str:
    pairs = zip(row.predicted_peak_bytes, row.peak_bytes, strict=True)
    errors = [abs(predicted / peak - 1) for predicted, peak in pairs if predicted is not None and peak]
    return f"{row.label}: the prediction was at most {max(errors, default=0.0):.1%} off the measured peaks."
