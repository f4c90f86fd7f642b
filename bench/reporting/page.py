"""The report: one HTML file that needs nothing else, rebuilt from parquet at any time."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bench.analysis.summary import MEMORY, Row, Spread, WorkloadSummary, summarise
from bench.analysis.wording import banner, checks, verdict
from bench.recording.files import write_atomically
from bench.recording.reader import RunData, read_run
from bench.reporting.cells import Line, lines
from bench.reporting.charts import Bar, bar_chart
from bench.reporting.units import scale_of
from bench.schema import Device, NameValue, Run

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with the words around it."""

    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the page shows of one workload."""

    anchor: str
    summary: WorkloadSummary
    verdict: str
    charts: tuple[Chart, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One column of the run: name, meaning, and its value line by line."""

    name: str
    meaning: str
    values: tuple[str, ...]


def render(run_folder: Path, out: Path) -> Path:
    """Write `out/<name of the run's folder>.html` and return its path.

    ResultsError where the run cannot be read or the file not be written.
    """
    # The folder's name, not the stored run_id: a file from elsewhere must not choose where we write.
    folder = run_folder.resolve()
    page = render_page(read_run(folder)).encode("utf-8", "replace")
    path = out / f"{folder.name}.html"
    with contextlib.suppress(OSError):  # the write below says what is wrong
        out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(page))
    return path


def render_page(data: RunData) -> str:
    """The whole page as text. The same data give the same page."""
    summaries = summarise(data)
    environment = Environment(
        loader=PackageLoader("bench.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_readable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        title=_title(data.run),
        run=data.run,
        started=_text(data.run.started_at),
        banner=banner(data),
        sections=[_section(index, summary, data.run.device_type) for index, summary in enumerate(summaries)],
        checks=checks(data, summaries),
        facts=_facts(data.run),
        launches=data.launches,
        failures=[launch for launch in data.launches if launch.traceback],
        memory=data.metrics.get(_memory_metric(data.run.device_type)),
    )


def _readable(value: object) -> object:
    """Text without control characters, which HTML must not hold; what is markup already stays as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _CONTROLS.sub("\ufffd", value)


def _title(run: Run) -> str:
    names = list(dict.fromkeys(device.name for device in run.devices))
    what = f"{len(run.devices)} CPU workers of" if run.device_type == "cpu" else f"{len(run.devices)} ×"
    where = f"{what} {', '.join(names)}" if names else run.device_type or "an unknown machine"
    return f"Data-parallel strategies on {where}"


def _memory_metric(device_type: str) -> str:
    return MEMORY["cuda" if device_type == "cuda" else "cpu"]


def _section(index: int, summary: WorkloadSummary, device_type: str) -> Section:
    prefix = f"w{index}"
    charts = [
        _spread_chart(summary, lambda row: row.throughput, "Throughput", "samples/s", f"{prefix}-rate"),
        _spread_chart(summary, lambda row: row.step, "Time of one step", "s", f"{prefix}-step"),
        _memory_chart(summary, device_type, f"{prefix}-memory"),
    ]
    return Section(
        anchor=prefix,
        summary=summary,
        verdict=verdict(summary),
        charts=tuple(chart for chart in charts if chart is not None),
        lines=tuple(lines(summary)),
    )


def _spread_chart(
    summary: WorkloadSummary, read: Callable[[Row], Spread | None], title: str, unit: str, prefix: str
) -> Chart | None:
    found = [(row, spread) for row in summary.rows if (spread := read(row)) is not None]
    bars = [
        Bar(
            label=row.title, strategy=row.result.axes.strategy, value=spread.value, low=spread.low, high=spread.high,
            points=spread.launches, remark=row.excluded or "", faint=row.excluded is not None,
        )
        for row, spread in found
    ]  # fmt: skip
    better = "longer is faster" if unit != "s" else "shorter is faster"
    line = "line: 95 % interval, with an arrow where it goes on"
    caption = f"Bar: estimate ({better}); {line}; dots: launches. Faint: not ranked."
    return _chart(bars, title, unit, caption, f"{summary.workload}: {title}", prefix)


def _memory_chart(summary: WorkloadSummary, device_type: str, prefix: str) -> Chart | None:
    bars = []
    for row in summary.rows:
        known = tuple(value for value in row.memory if value is not None)
        if known:
            bars.append(
                Bar(
                    label=row.title, strategy=row.result.axes.strategy, value=max(known), points=known,
                    remark=row.excluded or "", faint=row.excluded is not None,
                )
            )  # fmt: skip
    title = "Memory a device" if device_type == "cuda" else "Memory of the worker processes"
    each = "device" if device_type == "cuda" else "process"
    caption = f"Bar: the fullest {each}; dots: every {each}. {_memory_metric(device_type)}, largest launch."
    return _chart(bars, title, "bytes", caption, f"{summary.workload}: {title}", prefix)


def _chart(bars: Sequence[Bar], title: str, unit: str, caption: str, spoken: str, prefix: str) -> Chart | None:
    if not bars:
        return None
    svg = bar_chart(bars, unit=unit, title=spoken, prefix=prefix)
    return Chart(title=title, caption=caption, svg=Markup(svg))


def _facts(run: Run) -> list[Fact]:
    found = []
    for column in fields(Run):
        value = getattr(run, column.name)
        values = tuple(_text(item) for item in value) if isinstance(value, tuple) else (_text(value),)
        if column.metadata.get("unit") == "bytes" and value is not None:
            values = (scale_of([value], "bytes").text(value),)
        found.append(Fact(name=column.name, meaning=column.metadata["meaning"], values=values or ("none",)))
    return found


def _text(value: object) -> str:
    if value is None:
        return "none, or not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value, NameValue):
        return f"{value.name} {value.value}"
    if isinstance(value, Device):
        memory = "" if value.memory_bytes is None else scale_of([value.memory_bytes], "bytes").text(value.memory_bytes)
        capability = f"capability {value.capability}" if value.capability else ""
        listed = (f"{value.index}: {value.name}", memory, capability, value.uuid or "")
        return ", ".join(part for part in listed if part)
    return str(value)
