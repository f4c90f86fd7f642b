"""The report: one HTML file that needs nothing else, rebuilt from parquet at any time."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bench.analysis.balance import balance_summaries
from bench.analysis.checks import checks
from bench.analysis.largest import largest_summaries
from bench.analysis.scaling import scaling_summaries
from bench.analysis.summary import summarise
from bench.analysis.timelines import watched_launches
from bench.analysis.wording import banner, cpu_share
from bench.recording.files import write_atomically
from bench.recording.reader import RunData, read_run, read_timeline
from bench.reporting.cells import USE
from bench.reporting.largest import HOW as HOW_LARGEST
from bench.reporting.largest import largest_section
from bench.reporting.scaling import HOW as SCALING_HOW
from bench.reporting.scaling import scaling_section
from bench.reporting.sections import memory_metric, workload_section
from bench.reporting.shares import HOW, share_section
from bench.reporting.units import scale_of
from bench.schema import Device, NameValue, Run

_TO_COPY = re.compile(r"(--|[a-z_0-9]+:|[a-z_0-9]+=)\S{1,60}")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


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
    page = render_page(read_run(folder), read_timeline(folder)).encode("utf-8", "replace")
    path = out / f"{folder.name}.html"
    with contextlib.suppress(OSError):  # the write below says what is wrong
        out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(page))
    return path


def render_page(data: RunData, timeline: pd.DataFrame) -> str:
    """The whole page as text. The same data give the same page."""
    data = replace(data, problems=(*data.problems, *timeline.attrs.get("problems", ())))
    summaries = summarise(data)
    watched = watched_launches(timeline, [row for summary in summaries for row in summary.rows])
    environment = Environment(
        loader=PackageLoader("bench.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_readable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["copyable"] = _copyable
    return environment.get_template("report.html.j2").render(
        title=_title(data.run),
        run=data.run,
        started=_text(data.run.started_at),
        version=_version(data.run),
        banner=banner(data),
        sections=[workload_section(*item, data.run, watched) for item in enumerate(summaries)],
        largest=[largest_section(*item) for item in enumerate(largest_summaries(data, summaries))],
        no_largest=HOW_LARGEST,
        shares=[share_section(*item) for item in enumerate(balance_summaries(data))],
        no_shares=HOW,
        scalings=[scaling_section(*item) for item in enumerate(scaling_summaries(data, summaries))],
        no_scalings=SCALING_HOW,
        checks=checks(data, summaries),
        facts=_facts(data.run),
        launches=data.launches,
        # That a probe runs out of memory is what a search is after.
        failures=[of for of in data.launches if of.traceback and (of.purpose, of.status) != ("search", "oom")],
        memory=data.metrics.get(memory_metric(data.run.device_type)),
        use=data.metrics.get(USE["cuda" if data.run.device_type == "cuda" else "cpu"]),
        cpu_share=cpu_share(data),
    )


def _readable(value: object) -> object:
    """Text without control characters, which HTML must not hold; what is markup already stays as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _CONTROLS.sub("\ufffd", value)


def _copyable(text: str) -> Markup:
    """The text with options and settings (`--strategies`, `ddp:static_graph=on`) kept whole: they are there to copy."""
    words = re.split(r"(\s+)", _CONTROLS.sub("\ufffd", text))
    return Markup("").join(
        Markup('<span class="whole">{}</span>').format(word) if _TO_COPY.fullmatch(word) else word for word in words
    )


def _title(run: Run) -> str:
    names = list(dict.fromkeys(device.name for device in run.devices))
    what = f"{len(run.devices)} CPU workers of" if run.device_type == "cpu" else f"{len(run.devices)} ×"
    where = f"{what} {', '.join(names)}" if names else run.device_type or "an unknown machine"
    return f"Data-parallel strategies on {where}"


def _version(run: Run) -> str:
    """The version, or where the suite is not installed the commit of its checkout, cut to ten characters."""
    if run.dpbench_version and not run.dpbench_version.endswith("unknown"):
        return run.dpbench_version
    return f"at commit {run.git_commit[:10]}" if run.git_commit else ""


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
