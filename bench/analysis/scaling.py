"""How the strategies of one run scale: speed-up and efficiency against `single`, and Amdahl's law.

Strong scaling, at one global batch B: the speed-up S(n) = T(1, B) / T(n, B), the efficiency S(n) / n. Weak scaling, at
one batch b per device: the efficiency T(1, b) / T(n, n x b). Both efficiencies are the throughput over n times that of
`single`, at B or at b. T(1) is `single`'s, so that what a strategy costs even on one device counts; beside that
stands its efficiency against itself on one device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bench.analysis.amdahl import LEAST_COUNTS, Fit, Point, fit_amdahl, serial_fraction
from bench.analysis.curves import Curve, CurvePoint, Kind, sentences, too_few_counts
from bench.analysis.intervals import Interval
from bench.analysis.spreads import versus
from bench.analysis.summary import Row, WorkloadSummary, single_at, summarise
from bench.recording.reader import RunData

BASELINE = "single"
_Setting: TypeAlias = tuple[Kind, int, str, int]
"""kind, batch, precision, micro-batches: what the curves of one chart share"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSummary:
    """The curves of one workload at one batch: global (strong) or per device (weak).

    baselines: `single`'s cases, the references and those that are none; sentences: the findings in words.
    """

    workload: str
    size_text: str
    device_type: str
    kind: Kind
    batch: int
    precision: str
    accumulation_steps: int
    baselines: tuple[Row, ...]
    curves: tuple[Curve, ...]
    sentences: tuple[str, ...]

    @property
    def setting(self) -> str:
        """What stays the same over all numbers of devices, e.g. `global batch 512, fp32`."""
        batch = f"global batch {self.batch}" if self.kind == "strong" else f"{self.batch} samples per device"
        steps = f" in {self.accumulation_steps} micro-batches" if self.accumulation_steps > 1 else ""
        return f"{batch}{steps}, {self.precision}"

    @property
    def most_devices(self) -> int:
        return max(point.count for curve in self.curves for point in curve.points)


def scaling_summaries(data: RunData, summaries: Sequence[WorkloadSummary] | None = None) -> tuple[ScalingSummary, ...]:
    """One summary per workload and batch at which a strategy ran on two or more numbers of devices, beside `single`.

    Strong before weak. Empty where the run holds no such cases. Never raises for figures that are missing: the
    sentences and rows say so. `summaries`: of the same run, where they are at hand.
    """
    found = []
    for summary in summarise(data) if summaries is None else summaries:
        groups: dict[_Setting, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
        for row in summary.rows:
            if row.result.axes.strategy != BASELINE:
                for setting in _settings(row):
                    groups[setting][row.label].setdefault(row.result.axes.num_devices, row)
        for setting, labels in sorted(groups.items()):
            curves = [curve for rows in labels.values() if (curve := _curve(setting, rows, summary.rows))]
            if curves:
                found.append(_summary(summary, setting, curves))
    return tuple(found)


def _settings(row: Row) -> list[_Setting]:
    """The charts to which a case belongs: that of its global batch, and that of its batch per device if all are equal.

    The latter by the batch alone: balanced_dp splits the same total unevenly, which is its way to scale.
    """
    axes = row.result.axes
    shared = (axes.arithmetic, axes.accumulation_steps)
    strong: _Setting = ("strong", axes.global_batch_size, *shared)
    per_device, rest = divmod(axes.global_batch_size, axes.num_devices)
    return [strong] if rest else [strong, ("weak", per_device, *shared)]


def _summary(summary: WorkloadSummary, setting: _Setting, curves: Sequence[Curve]) -> ScalingSummary:
    kind, batch, precision, steps = setting
    singles = [single_at(batch, curve.points[0].row, summary.rows) for curve in curves]
    return ScalingSummary(
        workload=summary.workload,
        size_text=summary.size_text,
        device_type=curves[0].points[0].row.result.axes.device_type,
        kind=kind,
        batch=batch,
        precision=precision,
        accumulation_steps=steps,
        baselines=tuple({row.title: row for row in singles if row is not None}.values()),
        curves=tuple(curves),
        sentences=tuple(sentences(kind, curves)),
    )


def _curve(setting: _Setting, rows: dict[int, Row], everything: Sequence[Row]) -> Curve | None:
    """The curve of one strategy; None with one number of devices, or where `single` was not even tried."""
    kind, batch, *_ = setting
    of = [rows[count] for count in sorted(rows)]
    tried = single_at(batch, of[0], everything)
    if len(of) < 2 or tried is None:
        return None
    base = single_at(batch, of[0], [row for row in everything if row.excluded is None])
    points = [_point(kind, row, base, rows.get(1)) for row in of]
    fit, no_fit = _fit(points, base) if kind == "strong" else (None, None)
    return Curve(
        label=of[0].label,
        strategy=of[0].result.axes.strategy,
        points=tuple(points),
        baseline=base,
        unknown=None if base else _no_reference(tried),
        fit=fit,
        no_fit=no_fit,
    )


def _no_reference(row: Row) -> str:
    if row.result.status != "ok":
        return f"{row.title} ended as {row.result.status}, {row.result.reason or 'no reason recorded'}"
    return f"{row.title} is no reference: {row.excluded}"


def _point(kind: Kind, row: Row, base: Row | None, alone: Row | None) -> CurvePoint:
    count = row.result.axes.num_devices
    speedup = versus(row.throughput, base.throughput) if base else None
    own = versus(row.throughput, alone.throughput) if alone and alone is not row else None
    return CurvePoint(
        row=row,
        speedup=speedup,
        efficiency=_per_device(speedup, count),
        own=_per_device(own, count),
        serial=serial_fraction(speedup, count) if speedup and kind == "strong" and count > 1 else None,
    )


def _per_device(ratio: Interval | None, count: int) -> Interval | None:
    if ratio is None:
        return None
    low, high = (None if end is None else end / count for end in (ratio.low, ratio.high))
    return Interval(value=ratio.value / count, low=low, high=high)


def _fit(points: Sequence[CurvePoint], base: Row | None) -> tuple[Fit | None, str | None]:
    """Amdahl's law through `single` as T(1) and the strategy on several devices; or why there is none."""
    if base is None or base.step is None or base.step.smallest <= 0:
        return None, "there is no T(1)"
    judged = [(point.count, point.row.step) for point in points if point.judged and point.count > 1]
    steps = [(1, base.step), *((count, step) for count, step in judged if step is not None and step.smallest > 0)]
    if len(steps) < LEAST_COUNTS:
        return None, too_few_counts([count for count, _ in steps])
    return fit_amdahl([Point(count=count, seconds=step.launches) for count, step in steps]), None
