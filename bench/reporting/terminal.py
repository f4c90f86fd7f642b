"""The comparison on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.analysis.balance import balance_summaries
from bench.analysis.checks import REASONS, checks
from bench.analysis.largest import LargestSummary, largest_summaries
from bench.analysis.scaling import scaling_summaries
from bench.analysis.summary import WorkloadSummary, summarise
from bench.analysis.wording import banner, cpu_share, verdict
from bench.recording.reader import RunData
from bench.reporting.cells import Cell, Line, lines
from bench.reporting.largest import largest_lines, setting

_SHOWN = 5
_WIDE = 110
_WIDE_ALONE = (4, 6)
"""Columns that a narrower terminal has no room for: the step and the ratio to dp."""


def print_summary(data: RunData, console: Console) -> None:
    """Per workload one table with every case and one sentence on the fastest, what a sweep answers, then the doubts.

    Names are printed as they are, never read as markup.
    """
    if notice := banner(data):
        console.print(Text(notice, style="bold yellow"))
    summaries = summarise(data)
    if not summaries:
        console.print(Text(f"run {data.run.run_id} holds no timed case"))
    for summary in summaries:
        narrow = console.width < _WIDE
        console.print(_table(summary, data.run.device_type, narrow))
        if narrow:
            console.print(Text(f"step time and the ratio to dp: in the report, or on a terminal of {_WIDE} columns"))
        console.print(Text(verdict(summary), style="bold"))
        console.print()
    for largest in largest_summaries(data, summaries):
        _print_largest(largest, console)
    for sweep in balance_summaries(data):
        batch = f"batch {sweep.global_batch_size} on {sweep.num_devices} devices"
        console.print(Text(f"{sweep.workload}: GPU 0's share of {batch}"))
        for sentence in sweep.sentences:
            # No line breaks of ours: it may hold an option to copy.
            console.print(Text(f"  {sentence}", style="bold"), soft_wrap=True)
        console.print()
    for scaling in scaling_summaries(data, summaries):
        console.print(Text(f"{scaling.workload}: {scaling.kind} scaling at {scaling.setting}"))
        for sentence in scaling.sentences:
            console.print(Text(f"  {sentence}", style="bold"), soft_wrap=True)
        console.print()
    if summaries and (share := cpu_share(data)):
        console.print(Text(share))
        console.print()
    for check in checks(data, summaries):
        console.print(Text(f"! {check.title}", style="yellow"))
        shown = len(check.seen) if check.title in REASONS else _SHOWN
        for item in check.seen[:shown]:
            # No line breaks of ours: a reason may hold an option to copy.
            console.print(Text(f"    {item}"), soft_wrap=True)
        if len(check.seen) > shown:
            console.print(Text(f"    and {len(check.seen) - shown} more; the report lists all"))
        if check.remedy:
            console.print(Text(f"    -> {check.remedy}"), soft_wrap=True)


def _print_largest(largest: LargestSummary, console: Console) -> None:
    title = Text(f"{largest.workload}: the largest batch of each strategy ({setting(largest)})")
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("strategy", overflow="fold", min_width=8)
    for name in ("devices", "largest batch", "a device", "vs dp", "vs ddp", "samples/s there\n(95 %)"):
        table.add_column(name, justify="right")
    table.add_column("timed")
    for line in largest_lines(largest):
        table.add_row(
            line.label, line.devices, line.largest.value, line.per_device, line.versus_dp, line.versus_ddp,
            _lines(line.throughput.value, line.throughput.detail), _lines(line.status.value, line.status.detail),
            style="" if line.ranked else "dim",
        )  # fmt: skip
    console.print(table)
    for sentence in largest.sentences:
        console.print(Text(f"  {sentence}", style="bold"), soft_wrap=True)
    console.print()


def _table(summary: WorkloadSummary, device_type: str, narrow: bool) -> Table:
    title = f"{summary.workload}: {summary.size_text}, {summary.data} data"
    table = Table(
        title=Text(title), title_justify="left", show_edge=False, pad_edge=False, padding=(0, int(not narrow))
    )
    memory = "memory a device" if device_type == "cuda" else "process memory"
    table.add_column("strategy", overflow="fold", min_width=8)
    for name in ("devices", "batch", "samples/s\n(95 %)", "step", "vs single\n(95 %)", "vs dp\n(95 %)", memory):
        table.add_column(name, justify="right")
    table.add_column("parity")
    table.add_column("status", min_width=7)
    for line in lines(summary):
        table.add_row(*_cells(line), style="" if line.ranked else "dim")
    if narrow:
        table.columns = [column for place, column in enumerate(table.columns) if place not in _WIDE_ALONE]
    return table


def _cells(line: Line) -> list[Text]:
    name = Text(line.label)
    if line.marks:
        name.append(f" [{', '.join(line.marks)}]", style="green" if line.marks[0].startswith("fastest") else "yellow")
    failed = line.status.value != "ok"
    return [
        name,
        Text(line.devices),
        Text(f"{line.batch} {line.precision}"),
        _lines(line.throughput.value, _interval_or_launches(line.throughput)),
        Text(line.step.value),
        _lines(line.versus_single.value, line.versus_single.detail, line.versus_single.extra),
        _lines(line.versus_dp.value, line.versus_dp.detail, line.versus_dp.extra),
        _lines(line.memory.value, line.memory.detail),
        Text(str(line.parity), style="red" if "missed" in line.parity.detail else ""),
        Text(line.status.value, style="red" if failed else ""),
    ]


def _interval_or_launches(cell: Cell) -> str:
    """The interval as on the page; where it says nothing, what the launches said."""
    return cell.extra if cell.hint and cell.extra else cell.detail


def _lines(*parts: str) -> Text:
    """The figure, and what qualifies it below."""
    return Text("\n".join(filter(None, parts)))
