"""How one strategy scales, and what all of them say in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bench.analysis.amdahl import LEAST_COUNTS, Fit
from bench.analysis.checks.base import listed
from bench.analysis.estimates import TOO_FEW
from bench.analysis.intervals import Interval
from bench.analysis.spreads import surely_above
from bench.analysis.summary import Row
from bench.analysis.wording import ends_text, is_wide, times

CLOSE = 0.05
"""A law whose curve lies this near to every point describes them, however little their launches differ."""
Kind: TypeAlias = Literal["strong", "weak"]
"""Strong: the global batch stays; weak: the batch per device stays (Gustafson, CACM 31(5), 1988)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One case of a curve. Every figure is None where a case that it needs has no throughput.

    speedup: throughput over that of `single`, at the same global batch (strong) or the same batch per device (weak);
    efficiency: the same, per device; own: efficiency against the strategy itself on one device;
    serial: Karp and Flatt's serial fraction, of strong scaling on two or more devices.
    """

    row: Row
    speedup: Interval | None
    efficiency: Interval | None
    own: Interval | None
    serial: Interval | None

    @property
    def count(self) -> int:
        return self.row.result.axes.num_devices

    @property
    def launches(self) -> int:
        return len(self.row.throughput.launches) if self.row.throughput else 0

    @property
    def judged(self) -> bool:
        """Whether it is a ground for a claim: ranked, with a figure."""
        return self.row.excluded is None and self.efficiency is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A strategy with its settings over growing numbers of devices.

    baseline: `single`'s case, None where it is no reference: `unknown` says why. fit: Amdahl's law through
    `single` and the judged points of strong scaling, or `no_fit` says why there is none.
    """

    label: str
    strategy: str
    points: tuple[CurvePoint, ...]
    baseline: Row | None
    unknown: str | None
    fit: Fit | None
    no_fit: str | None

    @property
    def last(self) -> CurvePoint | None:
        """The judged point on most devices, where these are several."""
        return next((point for point in reversed(self.points) if point.judged and point.count > 1), None)


def percent(value: float) -> str:
    """A part of 1 as text, without its sign of percent."""
    return f"{100 * value:.1f}"


def fraction_ends(fraction: Interval, launches: int) -> str:
    """The interval of a serial fraction as text, or why it says nothing: one wider than 0 to 1 does not."""
    if fraction.low is None or fraction.high is None:
        return TOO_FEW
    if fraction.high - fraction.low > 1:
        return _unknown(launches)
    return f"{percent(fraction.low)} to {percent(fraction.high)}"


def _unknown(launches: int) -> str:
    return f"interval unknown, {launches} launches"


def sentences(kind: Kind, curves: Sequence[Curve]) -> Iterator[str]:
    """What each judged strategy reaches on most devices, its serial fraction, which is best, and what is not judged."""
    for why, of in _by_reason((curve.label, curve.unknown) for curve in curves).items():
        yield f"Against single nothing can be told of {listed(of)}: {why}."
    for curve in curves:
        if (last := curve.last) is not None:
            yield f"{curve.label}, {_devices(last.count)}: {_reached(kind, last)}{_serial(kind, curve, last)}."
    unfitted = ((curve.label, curve.no_fit) for curve in curves if curve.last is not None)
    for why, of in _by_reason(unfitted).items():
        yield f"No fit of Amdahl's law for {listed(of)}: {why}."
    yield from _best(curves)
    if left := [text for curve in curves for text in _not_judged(curve)]:
        yield f"Shown and not judged: {listed(left)}."


def _by_reason(reasons: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """The labels of each reason."""
    found: dict[str, list[str]] = defaultdict(list)
    for label, why in reasons:
        if why is not None:
            found[why].append(label)
    return found


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _reached(kind: Kind, point: CurvePoint) -> str:
    assert point.speedup is not None and point.efficiency is not None
    low, high = point.efficiency.low, point.efficiency.high
    wide = low is not None and high is not None and is_wide(low, high)
    ends = _unknown(point.launches) if wide else ends_text(low, high, point.launches, percent)
    same = "global batch" if kind == "strong" else "batch per device"
    return (
        f"{times(point.speedup, point.launches)} single at the same {same}, an efficiency of "
        f"{percent(point.efficiency.value)} % ({ends})"
    )


def _serial(kind: Kind, curve: Curve, last: CurvePoint) -> str:
    if kind == "weak":
        return ""
    if curve.fit is not None:
        return f". {fit_text(curve.fit, last.launches)}"
    if last.serial is None:
        return ""
    ends = fraction_ends(last.serial, last.launches)
    return (
        f"; from these two follows a serial fraction of {percent(last.serial.value)} % ({ends}; Karp and Flatt)"
        f"{_outside(last.serial)}"
    )


def fit_text(fit: Fit, launches: int) -> str:
    """A fit of Amdahl's law in words, with what speaks against it."""
    count, off = fit.furthest
    counts = ", ".join(map(str, fit.counts))
    text = (
        f"Amdahl's law through {counts} devices has a serial fraction of {percent(fit.serial.value)} % "
        f"({fraction_ends(fit.serial, launches)}){_outside(fit.serial)}"
    )
    side = "longer" if off > 0 else "shorter"
    furthest = f"a step on {_devices(count)} is {percent(abs(off))} % {side} than that curve says"
    if fit.poor is None:
        return f"{text}; whether it describes the points cannot be told ({TOO_FEW}): {furthest}"
    if fit.poor and abs(off) > CLOSE:
        return f"{text}, but it does not describe the points: {furthest}, far more than launches differ"
    beyond = ", which is more than launches differ" if fit.poor else ""
    return f"{text}; furthest off, {furthest}{beyond}"


def _outside(fraction: Interval) -> str:
    """What a fraction below 0 or above 1 means, and whether it surely is."""
    if fraction.value < 0:
        sure = fraction.high is not None and fraction.high < 0
        text = ", below 0: faster than linear, for which the law has no room"
    elif fraction.value > 1:
        sure = fraction.low is not None and fraction.low > 1
        text = ", above 100 %: slower than one device"
    else:
        return ""
    return text if sure else f"{text} (not surely)"


def _best(curves: Sequence[Curve]) -> Iterator[str]:
    """The most efficient strategy on the most devices on which several are judged, and whether that is sure."""
    on: dict[int, list[tuple[str, CurvePoint]]] = defaultdict(list)
    for curve in curves:
        for point in curve.points:
            if point.judged and point.count > 1:
                on[point.count].append((curve.label, point))
    count = max((count for count, found in on.items() if len(found) > 1), default=None)
    if count is None:
        return
    ordered = sorted(on[count], key=lambda item: -item[1].efficiency.value if item[1].efficiency else 0.0)
    (label, best), *others = ordered
    rivals = [name for name, point in others if not surely_above(best.row.throughput, point.row.throughput)]
    if rivals:
        yield f"Which scales best to {count} devices is not clear: {label} leads, not surely before {listed(rivals)}."
    else:
        yield f"{label} scales best to {count} devices, surely."


def _not_judged(curve: Curve) -> Iterator[str]:
    """The cases that are no ground for a claim, those of one reason together."""
    reasons: dict[str, list[int]] = defaultdict(list)
    for point in curve.points:
        if point.row.excluded is not None:
            reasons[point.row.excluded].append(point.count)
    for reason, counts in reasons.items():
        where = "" if len(counts) == len(curve.points) else f" on {', '.join(map(str, counts))}"
        yield f"{curve.label}{where} ({reason})"


def too_few_counts(counts: Sequence[int]) -> str:
    """Why there is no fit through so many numbers of devices."""
    there = f"there are {len(counts)} ({', '.join(map(str, counts))})" if counts else "there is none"
    return f"it needs {LEAST_COUNTS} different numbers of devices, one included, and {there}"
