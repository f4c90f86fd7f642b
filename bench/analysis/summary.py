"""One run, workload by workload: which strategy was fastest, by how much, and how sure that is.

Pure functions from `RunData` to plain data; the page and the terminal only dress it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.analysis.cases import FAILED, LOST, CaseResult, Parity, case_results
from bench.analysis.estimates import launch_values
from bench.analysis.plausibility import beyond_its_peak
from bench.analysis.spreads import Ratio, Spread, surely_above, versus
from bench.recording.reader import RunData
from bench.schema import Estimate, NameValue

STRATEGY_ORDER = ("single", "dp", "balanced_dp", "ddp", "zero1", "fsdp", "fsdp1")
THROUGHPUT = "samples_per_second"
STEP = "step_seconds"
SAME_BATCH = "same global batch"
SAME_PER_DEVICE = "same batch per device"
SAME_DEVICES = "same devices and batch"
EMULATED = "emulated dp"
"""Only host replicas stood in for dp: shown for completeness, no ground for a conclusion."""
PARITY_UNKNOWN = "parity unknown"
"""Its check was made and did not come to an answer. Without any check a case is ranked, with a doubt."""
IMPOSSIBLE = "impossible"
"""It reached more FLOP/s than its devices have."""
OWN_LARGEST = "own largest batch"
"""It ran at the largest batch of its own strategy, so that nothing else here is at its batch: see `largest`."""
MEMORY = {"cuda": "peak_allocated_bytes", "cpu": "host_peak_rss_bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One timed case.

    label: the strategy with its settings; title: label with every axis on which the
    workload's rows differ; excluded: why it is not ranked, None if it is;
    memory: bytes of the metric `memory_metric`, device by device.
    """

    result: CaseResult
    label: str
    title: str
    throughput: Spread | None = None
    step: Spread | None = None
    memory_metric: str
    memory: tuple[float | None, ...] = ()
    versus_single: Ratio | None = None
    versus_dp: Ratio | None = None
    excluded: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def parity(self) -> Parity:
        return self.result.parity


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """All cases of one workload at one size and from one source of data. `ranked`: the fastest first."""

    workload: str
    size: str
    size_text: str
    data: str
    data_source: str
    rows: tuple[Row, ...]
    ranked: tuple[Row, ...]

    @property
    def fastest(self) -> Row | None:
        return self.ranked[0] if self.ranked else None

    @property
    def swept(self) -> bool:
        """Whether it holds a sweep of GPU 0's share, whose strategies are its own."""
        launches = [row.result.axes for row in self.rows if row.result.axes.strategy == "balanced_dp"]
        splits = {(axes.devices, axes.chunk_sizes) for axes in launches if axes.chunk_sizes}
        return len(splits) > len({(devices, sum(sizes)) for devices, sizes in splits})

    @property
    def compared(self) -> tuple[Row, ...]:
        """The ranked rows that the fastest is held against, itself the first: those at its global batch.

        All of them where it alone has that batch. A sweep adds cases at other batches, which are no rivals.
        """
        batches = [row.result.axes.global_batch_size for row in self.ranked]
        if batches.count(batches[0] if batches else 0) < 2:
            return self.ranked
        return tuple(row for row, batch in zip(self.ranked, batches, strict=True) if batch == batches[0])

    @property
    def rivals(self) -> tuple[Row, ...]:
        """Compared rows that cannot be told from the fastest: the interval of the ratio holds 1, or there is none."""
        best, *others = self.compared or (None,)
        return tuple(row for row in others if best and not surely_above(best.throughput, row.throughput))


def summarise(data: RunData) -> tuple[WorkloadSummary, ...]:
    """The comparison per workload, in the run's order.

    Ranked are the cases whose every launch ended ok, on devices of their own, with no parity
    check that missed or did not end ok; the others say why not. Ratios are formed with ranked references only,
    but for dp on a machine that has none but host replicas (`EMULATED`).
    """
    values = {
        (case_id, metric): tuple(item.value for item in found if item.value is not None)
        for (case_id, metric, device), found in launch_values(data.samples, data.launches).items()
        if device is None
    }
    groups: dict[tuple[str, str, str], list[CaseResult]] = defaultdict(list)
    for result in case_results(data):
        groups[result.axes.workload, result.axes.size, result.axes.data].append(result)
    return tuple(_workload(results, values) for results in groups.values())


_Values = Mapping[tuple[str, str], tuple[float, ...]]


def _workload(results: Sequence[CaseResult], values: _Values) -> WorkloadSummary:
    results = sorted(results, key=_order)
    varying = _varying(results)
    rows = [_row(result, varying, values) for result in results]
    trusted = [row for row in rows if row.excluded is None]
    rows = [
        row if row.throughput is None
        else replace(row, versus_single=_versus_single(row, trusted), versus_dp=_versus_dp(row, rows))
        for row in rows
    ]  # fmt: skip
    axes = results[0].axes
    ranked = [row for row in rows if row.excluded is None and row.throughput is not None]
    return WorkloadSummary(
        workload=axes.workload,
        size=axes.size,
        size_text=axes.size_text,
        data=axes.data,
        data_source=axes.data_source,
        rows=tuple(rows),
        ranked=tuple(sorted(ranked, key=lambda row: -row.throughput.value if row.throughput else 0.0)),
    )


def _order(result: CaseResult) -> tuple[object, ...]:
    axes = result.axes
    known = STRATEGY_ORDER.index(axes.strategy) if axes.strategy in STRATEGY_ORDER else len(STRATEGY_ORDER)
    return (
        axes.num_devices, axes.global_batch_size, axes.precision, axes.accumulation_steps, known, axes.strategy,
        tuple(map(_by_value, axes.settings)), axes.devices,
    )  # fmt: skip


def _by_value(setting: NameValue) -> tuple[str, float, str]:
    """Settings in the order of their numbers: 6 comes before 13."""
    return setting.name, float(setting.value) if setting.value.isdecimal() else math.inf, setting.value


def strategy_label(strategy: str, settings: Sequence[NameValue]) -> str:
    """The strategy with its settings, e.g. `dp (loss on replica)`."""
    listed = ", ".join(f"{item.name.replace('_', ' ')} {item.value}" for item in sorted(settings))
    return f"{strategy} ({listed})" if listed else strategy


def _axis_texts(result: CaseResult) -> dict[str, str]:
    axes = result.axes
    devices = "1 device" if axes.num_devices == 1 else f"{axes.num_devices} devices"
    if axes.devices != tuple(range(axes.num_devices)):
        devices += f" ({', '.join(map(str, axes.devices))})"
    return {
        "devices": devices,
        "batch": f"batch {axes.global_batch_size}",
        "precision": axes.precision,
        "accumulation": f"{axes.accumulation_steps} micro-batches",
    }


def _varying(results: Sequence[CaseResult]) -> tuple[str, ...]:
    texts = [_axis_texts(result) for result in results]
    return tuple(name for name in texts[0] if len({text[name] for text in texts}) > 1)


def _row(result: CaseResult, varying: Sequence[str], values: _Values) -> Row:
    label = strategy_label(result.axes.strategy, result.axes.settings)
    texts = _axis_texts(result)
    memory = MEMORY["cuda" if result.axes.device_type == "cuda" else "cpu"]
    throughput = _spread(result, THROUGHPUT, values)
    return Row(
        result=result,
        label=label,
        title=", ".join([label, *(texts[name] for name in varying)]),
        throughput=throughput,
        step=_spread(result, STEP, values),
        memory_metric=memory,
        memory=tuple(result.per_device(memory)),
        excluded=_excluded(result, throughput),
        notes=_notes(result),
    )


def _spread(result: CaseResult, metric: str, values: _Values) -> Spread | None:
    found = result.of(metric)
    if found is None or found.value is None:
        return None
    ends = [end for end in (found.smallest, found.largest) if end is not None]
    launches = values.get((result.axes.case_id, metric)) or tuple(ends) or (found.value,)
    return Spread(value=found.value, low=found.low, high=found.high, launches=launches)


def _excluded(result: CaseResult, throughput: Spread | None) -> str | None:
    if result.status != "ok":
        return result.status
    if result.emulated:
        return "emulated"
    if result.oversubscribed:
        return "oversubscribed"
    if result.parity.status == "missed":
        return "parity missed"
    if result.parity.status in (*FAILED, LOST):
        return PARITY_UNKNOWN
    if beyond_its_peak(result):
        return IMPOSSIBLE
    if result.at_own_largest:
        return OWN_LARGEST
    return None if throughput else "no throughput measured"


def _notes(result: CaseResult) -> tuple[str, ...]:
    """Doubts about the case, each once."""
    headline: list[Estimate] = [found for name in (THROUGHPUT, STEP) if (found := result.of(name))]
    notes = [found.note for found in headline if found.note]
    if result.status != "ok" and result.launches_ok:
        notes.append(f"{result.launches_ok} of {len(result.launches)} launches ended ok")
    return tuple(dict.fromkeys(notes))


def _versus_single(row: Row, trusted: Sequence[Row]) -> Ratio | None:
    """Against one device at the same global batch, else at the same batch per device."""
    axes = row.result.axes
    per_device = axes.global_batch_size / axes.num_devices
    for batch, basis in ((axes.global_batch_size, SAME_BATCH), (per_device, SAME_PER_DEVICE)):
        if base := single_at(batch, row, trusted):
            return _ratio(row, base, basis)
    return None


def single_at(batch: float, row: Row, rows: Sequence[Row]) -> Row | None:
    """The case of `single` at a batch that trains as `row` does; of several the one that shares most levers."""
    found = [
        other for other in rows
        if other.result.axes.strategy == "single" and other.result.axes.global_batch_size == batch
        and _same_training(other, row)
    ]  # fmt: skip
    return _closest(found) if found else None


def _versus_dp(row: Row, rows: Sequence[Row]) -> Ratio | None:
    """Against DataParallel on the same devices at the same batch, wherever its loss is faster."""
    axes = row.result.axes
    candidates = [
        other for other in rows
        if other.result.axes.strategy == "dp" and _same_training(other, row)
        and other.result.axes.devices == axes.devices
        and other.result.axes.global_batch_size == axes.global_batch_size
    ]  # fmt: skip
    for reason, basis in ((None, SAME_DEVICES), ("emulated", EMULATED)):
        found = [other for other in candidates if other.excluded == reason]
        if found:
            return _ratio(row, _closest(found), basis)
    return None


def _same_training(other: Row, row: Row) -> bool:
    """Same arithmetic and accumulation, and no lever that the row has not."""
    a, b = other.result.axes, row.result.axes
    same = (a.arithmetic, a.accumulation_steps) == (b.arithmetic, b.accumulation_steps)
    return same and _levers(other) <= set(b.settings)


def _levers(row: Row) -> set[NameValue]:
    """Settings, but for where the loss is computed: DataParallel's own choice, not a lever of the comparison."""
    return {item for item in row.result.axes.settings if item.name != "loss_on"}


def _closest(found: Sequence[Row]) -> Row:
    """The reference that shares most levers; among equals the fastest."""
    return max(found, key=lambda row: (len(_levers(row)), row.throughput.value if row.throughput else 0.0))


def _ratio(row: Row, base: Row, basis: str) -> Ratio | None:
    if row is base or row.result is base.result or row.throughput is None or base.throughput is None:
        return None
    interval = versus(row.throughput, base.throughput)
    return None if interval is None else Ratio(interval=interval, basis=basis, against=base.title)
