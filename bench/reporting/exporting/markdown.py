"""The comparison as Markdown (GitHub's dialect), for a job summary or a comment: the words of the page and terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bench.analysis.checks import REASONS, Check, checks
from bench.analysis.summary import WorkloadSummary, summarise
from bench.analysis.wording import banner, verdict
from bench.recording.reader import RunData
from bench.reporting.cells import Cell, Line, lines
from bench.reporting.markdown import code, escaped, row

_SHOWN = 5


def text(data: RunData) -> str:
    """What must be read first, then per workload one table with every case and a sentence on the fastest, then doubts.

    Nothing that a run holds acts as markup: names are escaped, reasons and doubts are code.
    """
    summaries = summarise(data)
    parts = [f"## dpbench run {escaped(data.run.run_id)}"]
    if notice := banner(data):
        parts.append(f"> **{escaped(notice)}**")
    for summary in summaries:
        parts += [*_workload(summary, data.run.device_type)]
    doubts = [check for check in checks(data, summaries) if check.title not in REASONS]
    if doubts:
        parts.append("### Reasons to doubt figures")
        parts.append("\n".join(line for check in doubts for line in _doubt(check)))
    return "\n\n".join(parts) + "\n"


def _workload(summary: WorkloadSummary, device_type: str) -> Iterator[str]:
    memory = "memory a device" if device_type == "cuda" else "process memory"
    yield f"### {escaped(summary.workload)}: {escaped(summary.size_text)}, {escaped(summary.data)} data"
    rows: list[Sequence[str]] = [
        ("strategy", "devices", "batch", "samples/s (95 %)", "vs single (95 %)", memory, "parity", "status"),
        ("---", "---:", "---:", "---:", "---:", "---:", "---:", "---"),
        *map(_cells, lines(summary)),
    ]
    yield "\n".join(row(cells) for cells in rows)
    yield escaped(verdict(summary))


def _cells(line: Line) -> Sequence[str]:
    marks = f" *{escaped(', '.join(line.marks))}*" if line.marks else ""
    why = "; ".join(code(reason) for reason in line.why)
    # A table is cut at its pipes before anything else is read, code too.
    status = f"{escaped(str(line.status))}: {why}".replace("|", r"\|") if why else escaped(str(line.status))
    return (
        escaped(line.label) + marks,
        line.devices,
        escaped(f"{line.batch} {line.precision}"),
        escaped(str(line.throughput)),
        escaped(_with_basis(line.versus_single)),
        escaped(str(line.memory)),
        escaped(str(line.parity)),
        status,
    )


def _with_basis(ratio: Cell) -> str:
    return f"{ratio}, {ratio.extra}" if ratio.extra else str(ratio)


def _doubt(check: Check) -> Iterable[str]:
    yield f"- {escaped(check.title)}"
    yield from (f"  - {code(item)}" for item in check.seen[:_SHOWN])
    if len(check.seen) > _SHOWN:
        yield f"  - and {len(check.seen) - _SHOWN} more; the report lists all"
    if check.remedy:
        yield f"  - remedy: {code(check.remedy)}"
