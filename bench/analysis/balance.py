"""The load-balance sweep of one run: which share of GPU 0 is most even, what it costs, what it buys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from bench.analysis.shares import SWEPT, Memory, ShareRow, sentences
from bench.analysis.summary import Row, WorkloadSummary, summarise
from bench.balance import CannotTell, Model, Probe, fit, largest_batch
from bench.recording.reader import RunData
from bench.schema import Launch


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


PLAIN = ("dp", "ddp")
PEAK, PREDICTED = "peak_allocated_bytes", "predicted_peak_bytes"
SHARE, PLACEMENT = "gpu0_bsz", "loss_on"

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
    memory = Memory(model=model, unknown=unknown, capacity=capacity, more_batches=more_batches(axes))
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
        sentences=tuple(sentences(rows, reference, memory)),
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


def more_batches(launch: Launch) -> str:
    """The option for this batch and half of it, that every strategy can split; twice of it where half is too small."""
    batch, unit = launch.global_batch_size, launch.num_devices * launch.accumulation_steps
    half = batch // 2 // unit * unit
    return f"--global-batch-size {batch},{half or 2 * batch}"


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
        samples_per_second=row.throughput,
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
