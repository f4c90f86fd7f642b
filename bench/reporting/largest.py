"""What the page and the terminal show of a search for the largest batch: the answers, two charts, a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from bench.analysis.largest import Factor, LargestRow, LargestSummary
from bench.analysis.summary import OWN_LARGEST
from bench.analysis.wording import number
from bench.balance import size_text
from bench.reporting.cells import NONE, Cell, interval_cell
from bench.reporting.charts.bars import Bar, bar_chart
from bench.reporting.sections import Chart

HOW = (
    "No search for the largest batch in this run; --sweeps max_batch makes one (on CPU workers with --memory-limit, "
    "e.g. --memory-limit 1GiB)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestLine:
    """One row of the table as text."""

    label: str
    devices: str
    largest: Cell
    per_device: str
    versus_dp: str
    versus_ddp: str
    throughput: Cell
    status: Cell
    why: tuple[str, ...]
    ranked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSection:
    """The largest batches of one workload."""

    anchor: str
    summary: LargestSummary
    setting: str
    charts: tuple[Chart, ...]
    lines: tuple[LargestLine, ...]


def largest_section(index: int, summary: LargestSummary) -> LargestSection:
    """The search as charts and text. A chart without a figure is left out."""
    charts = (_batches(summary, f"m{index}-batch"), _speeds(summary, f"m{index}-rate"))
    return LargestSection(
        anchor=f"m{index}",
        summary=summary,
        setting=setting(summary),
        charts=tuple(chart for chart in charts if chart is not None),
        lines=tuple(largest_lines(summary)),
    )


def setting(summary: LargestSummary) -> str:
    """Under which memory it was found."""
    limit = summary.memory_limit_bytes
    memory = "all that the devices have" if limit is None else f"{size_text(limit)} a device (--memory-limit)"
    return f"{summary.size_text}, {summary.precision}, memory: {memory}"


def largest_lines(summary: LargestSummary) -> Iterator[LargestLine]:
    """Every strategy as text."""
    for row in summary.rows:
        rate = row.timed.throughput if row.timed else None
        yield LargestLine(
            label=row.label,
            devices=str(row.num_devices),
            largest=_largest(row),
            per_device=NONE if row.largest is None else f"{row.largest / row.num_devices:,g}",
            versus_dp=_factor(row.versus_dp),
            versus_ddp=_factor(row.versus_ddp),
            throughput=interval_cell(rate, len(rate.launches) if rate else 0, number),
            status=Cell(value=_timed_text(row), detail=_excluded(row)),
            why=(row.why,) if row.why else (),
            ranked=row.ranked,
        )


def _largest(row: LargestRow) -> Cell:
    tries = f"{row.probes} probe{'' if row.probes == 1 else 's'}"
    if row.largest is None:
        return Cell(detail=tries)
    if row.exact:
        return Cell(value=f"{row.largest:,}", detail=tries)
    bound = f"{row.largest:,} or more" if row.too_large is None else f"{row.largest:,} to {row.too_large:,}"
    return Cell(value=bound, detail=tries)


def _factor(factor: Factor | None) -> str:
    if factor is None:
        return NONE
    return f"{factor.value:.2f}×" + (" or more" if factor.at_least else "")


def _timed_text(row: LargestRow) -> str:
    if row.timed is None:
        return "not timed"
    batch = row.timed.result.axes.global_batch_size
    return row.timed.result.status if batch == row.largest else f"timed at {batch:,}"


def _excluded(row: LargestRow) -> str:
    excluded = row.timed.excluded if row.timed else None
    told = (None, OWN_LARGEST, row.timed.result.status if row.timed else None)
    return "" if excluded in told else f"not ranked: {excluded}"


def _remark(row: LargestRow) -> str:
    marks = {"emulated": row.emulated, "oversubscribed": row.oversubscribed, "or more": not row.exact}
    return ", ".join(mark for mark, holds in marks.items() if holds)


def _batches(summary: LargestSummary, prefix: str) -> Chart | None:
    bars = [
        Bar(label=row.label, strategy=row.strategy, value=float(row.largest), remark=_remark(row), faint=row.emulated)
        for row in summary.rows
        if row.largest is not None
    ]
    if not bars:
        return None
    title = "Largest global batch"
    svg = bar_chart(bars, unit="samples", title=f"{summary.workload}: {title}", prefix=prefix)
    caption = "Samples of an optimizer step that still train; longer is more. Found by doubling, then bisection."
    return Chart(title=title, caption=caption, drawings=(Markup(svg),))


def _speeds(summary: LargestSummary, prefix: str) -> Chart | None:
    bars = [
        Bar(
            label=f"{row.label}, batch {row.timed.result.axes.global_batch_size}", strategy=row.strategy,
            value=rate.value, low=rate.low, high=rate.high, points=rate.launches, remark=_remark(row),
            faint=not row.ranked,
        )
        for row in summary.rows
        if row.timed and (rate := row.timed.throughput)
    ]  # fmt: skip
    if not bars:
        return None
    title = "Throughput, each at its own largest batch"
    svg = bar_chart(bars, unit="samples/s", title=f"{summary.workload}: {title}", prefix=prefix)
    caption = (
        "Not at an equal batch: that comparison stands in the workload's own section. Bar: estimate (longer is "
        "faster); line: 95 % interval; dots: launches. Faint: not ranked."
    )
    return Chart(title=title, caption=caption, drawings=(Markup(svg),))
