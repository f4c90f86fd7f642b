"""What the watcher found that casts doubt on figures. No torch here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from bench.analysis.checks.base import Check, Seen
from bench.analysis.estimates import TOO_FEW
from bench.analysis.summary import Row
from bench.schema import Estimate, Launch

WATCHED = (
    "utilization_percent", "utilization_p95_percent", "sm_activity_percent", "power_watts", "joules_per_sample",
    "device_memory_used_bytes", "other_processes", "throttled_percent",
)  # fmt: skip
TOO_SHORT = "too short"


def of_watcher(seen: Seen) -> Iterator[Check]:
    """What was read of the devices while they worked."""
    gauges = [(name, item) for name, row in seen.rows for item in _device_estimates(row)]
    yield Check(
        title="Watcher: other processes were on the GPU",
        seen=tuple(
            f"{name}, device {item.device_index}: {item.value:.0f} at once"
            for name, item in gauges
            if item.metric == "other_processes" and item.value
        ),
        remedy="end them (nvidia-smi lists them), or leave that GPU out with --devices",
    )
    yield Check(
        title="Watcher: clocks were held back",
        seen=tuple(
            f"{name}, device {item.device_index}: at {item.value:.0f} % of the readings ({_note(item)})"
            for name, item in gauges
            if item.metric == "throttled_percent" and item.value
        ),
        remedy="power or heat: better cooling, a higher power limit, locked clocks; see python -m bench doctor",
    )
    yield Check(
        title="Watcher: averages over too short a time",
        seen=tuple(_too_short(gauges)),
        remedy="measure longer: more --rounds, or --preset standard",
    )
    yield Check(title="Watcher: gauges without a figure", seen=tuple(_absent(gauges)))
    yield Check(title="Watcher: what it could not read", seen=tuple(_problems(seen.data.launches)))


def _device_estimates(row: Row) -> list[Estimate]:
    return [item for (metric, device), item in row.result.estimates.items() if metric in WATCHED and device is not None]


def _note(item: Estimate) -> str:
    return "; ".join(part for part in (item.note or "").split("; ") if part != TOO_FEW)


def _too_short(gauges: Sequence[tuple[str, Estimate]]) -> list[str]:
    """A line a case: its gauges share the measured time."""
    found = {name: _note(item) for name, item in gauges if TOO_SHORT in (item.note or "")}
    return [f"{name}: {note}" for name, note in found.items()]


def _absent(gauges: Sequence[tuple[str, Estimate]]) -> list[str]:
    """A line a reason: what is not supported is so in every case."""
    metrics: Mapping[str, dict[str, None]] = defaultdict(dict)
    cases: Mapping[str, dict[str, None]] = defaultdict(dict)
    for name, item in gauges:
        if item.value is None and item.note:
            metrics[item.note][item.metric] = None
            cases[item.note][name] = None
    return [
        f"{', '.join(metrics[note])}: {note} (cases: {len(names)}, first {next(iter(names))})"
        for note, names in cases.items()
    ]


def _problems(launches: Sequence[Launch]) -> list[str]:
    """A line a problem, with how many launches had it."""
    seen: Mapping[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        for problem in launch.watch_problems:
            seen[problem].append(launch)
    return [
        f"{problem} (launches: {len(of)}, first {of[0].case_id}, launch {of[0].launch})" for problem, of in seen.items()
    ]
