"""All launches of one case, seen as one thing: status, estimates, parity."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.analysis.estimates import estimate, estimates_of
from bench.recording.reader import RunData
from bench.schema import MAX_BATCH, PARITY_LIMIT, UNTIMED, Estimate, Launch

FAILED = ("error", "timeout", "oom")
WORST_FIRST = (*FAILED, "skipped")
LOST = "lost"
"""Of a parity whose launch ended ok, and whose value is not among what could be read."""
UNDECIDED = ("lossy", "no verdict")
"""A parity sample whose note begins so has no verdict: the lever rounds on purpose, or the forward is random."""
DOUBLE = "in float64"
"""A parity sample whose note holds this was checked in float64."""
UNTRAINED = re.compile(r"no gradient on one device either for \d+.*")
"""How a parity sample's note ends where parts of the model are not trained at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Does the strategy train what one device trains?

    status: `ok`, `missed`, `no verdict` (a lossy lever, a random forward), `lost`, how its launch ended if not ok, None
    if there was none.
    `reduced_precision_error` is the error at the case's own precision, None where that is fp32 or unknown.
    double: the check was made in float64 (own models), not in fp32. untrained: which parameters get no gradient on
    one device either, None without any.
    """

    error: float | None = None
    status: str | None = None
    reason: str | None = None
    reduced_precision_error: float | None = None
    double: bool = False
    untrained: str | None = None

    @property
    def known(self) -> bool:
        return self.status in ("ok", "missed", "no verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case of one run. `status` is ok if every launch is, else the worst one, with its `reason`."""

    launches: tuple[Launch, ...]
    status: str
    reason: str | None
    estimates: Mapping[tuple[str, int | None], Estimate] = field(default_factory=dict)
    parity: Parity = field(default_factory=Parity)

    @property
    def axes(self) -> Launch:
        """The first launch: all launches of a case share the axes."""
        return self.launches[0]

    @property
    def launches_ok(self) -> int:
        return sum(launch.status == "ok" for launch in self.launches)

    @property
    def emulated(self) -> bool:
        return any(launch.emulated for launch in self.launches)

    @property
    def oversubscribed(self) -> bool:
        return any(launch.oversubscribed for launch in self.launches)

    @property
    def at_own_largest(self) -> bool:
        """Whether only a search for the largest batch asked for it: no other strategy is at its batch."""
        return all((launch.search or "").startswith(MAX_BATCH) for launch in self.launches)

    def of(self, metric: str) -> Estimate | None:
        """The estimate of the whole case, if there is one with a value."""
        found = self.estimates.get((metric, None))
        return found if found is not None and found.value is not None else None

    def per_device(self, metric: str) -> list[float | None]:
        """The metric on each device, in order; empty where no device has a value."""
        values = []
        for index in range(self.axes.num_devices or 0):
            found = self.estimates.get((metric, index))
            values.append(found.value if found else None)
        return values if any(value is not None for value in values) else []


def settings_text(launch: Launch) -> str:
    """Settings as text: `name:value name:value`, sorted."""
    return " ".join(f"{item.name}:{item.value}" for item in sorted(launch.settings))


def run_estimates(data: RunData) -> list[Estimate]:
    """The stored estimates; computed from the samples where the run did not come to store them."""
    if len(data.estimates):
        return estimates_of(data.estimates)
    return estimate(data.samples, data.launches, data.metrics.values())


def case_results(data: RunData) -> list[CaseResult]:
    """Every timed case of the run, in order of its first launch, with the parity that belongs to it."""
    estimates: dict[str, dict[tuple[str, int | None], Estimate]] = defaultdict(dict)
    for item in run_estimates(data):
        estimates[item.case_id][item.metric, item.device_index] = item
    checked = _results((launch for launch in data.launches if launch.purpose == "parity"), estimates, {})
    by_key = {(*_training(result.axes), result.axes.precision): result for result in checked}
    return _results((launch for launch in data.launches if launch.purpose not in UNTIMED), estimates, by_key)


_Checked = Mapping[tuple[object, ...], CaseResult]


def _results(
    launches: Iterable[Launch],
    estimates: Mapping[str, Mapping[tuple[str, int | None], Estimate]],
    checked: _Checked,
) -> list[CaseResult]:
    cases: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        cases[launch.case_id].append(launch)
    found = []
    for case_id, of_case in cases.items():
        status, reason = worst([(launch.status, launch.reason) for launch in of_case])
        found.append(
            CaseResult(
                launches=tuple(sorted(of_case, key=lambda launch: launch.launch)),
                status=status,
                reason=reason,
                estimates=estimates.get(case_id, {}),
                parity=_parity(of_case[0], checked),
            )
        )
    return found


def worst(ends: Sequence[tuple[str | None, str | None]]) -> tuple[str, str | None]:
    """Status and reason of a case out of those of its launches: ok if every launch is, else the worst."""
    failed = [end for end in ends if end[0] != "ok"]
    if not failed:
        return "ok", None
    ranks = {status: rank for rank, status in enumerate(WORST_FIRST)}
    status, reason = min(failed, key=lambda end: ranks.get(end[0] or "", -1))
    return status or "unknown", reason


def _training(launch: Launch) -> tuple[object, ...]:
    """What decides how the weights move: the batch of a parity launch is its own, its size may be."""
    return (
        launch.workload, launch.strategy, launch.device_type, launch.devices, launch.accumulation_steps,
        tuple(sorted(launch.settings)),
    )  # fmt: skip


def _parity(timed: Launch, checked: _Checked) -> Parity:
    reduced, own = None, checked.get((*_training(timed), timed.precision))
    if timed.precision != "fp32" and own:
        found = own.of("parity_error")
        reduced = found.value if found else None
    # With an option that rounds, too, the check without loss is of another case: this one has no verdict.
    # So has one whose levers do not exist in fp32, as a kernel of halves: its check in fp32 was skipped.
    result = checked.get((*_training(timed), "fp32")) or own
    if own is not None and result is not None and result.status == "skipped":
        result = own
    if result is None:
        return Parity(reduced_precision_error=reduced)
    found = result.estimates.get(("parity_error", None))
    if result.status != "ok" and found is None:
        return Parity(status=result.status, reason=result.reason, reduced_precision_error=reduced)
    if found is None:
        return Parity(status=LOST, reason="its launch left no value", reduced_precision_error=reduced)
    error, note = found.value, found.note or ""
    untrained = UNTRAINED.search(note)
    made = Parity(
        error=error,
        reduced_precision_error=reduced,
        double=DOUBLE in note,
        untrained=untrained[0].replace(" on one device either", "") if untrained else None,
    )
    if error is None or not math.isfinite(error):
        return replace(made, error=None, status="missed", reason=result.reason or note or "no finite value")
    if note.startswith(UNDECIDED):
        return replace(made, status="no verdict", reason=note)
    missed = error > PARITY_LIMIT or result.status != "ok"
    reason = result.reason or f"parity error {error:.1e} is above the limit of {PARITY_LIMIT:.0e}" if missed else None
    return replace(made, status="missed" if missed else "ok", reason=reason)
