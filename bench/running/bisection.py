"""The largest batch that fits, found by doubling and then by bisection. No launch, no case: numbers only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Bisection:
    """Which batch to try next, and what is known of the largest one that fits.

    All batches are multiples of `unit`. `least` is the smallest that can be tried at all, `most` the largest that there
    is data for, `start` where to begin. From there it doubles until a batch does not fit (or halves until one does),
    then halves the gap until it is one unit. Near the limit an end may be luck: what was found is tried a second time,
    and where that fails the search goes on below it.

    Example: unit 2, start 8, and 26 fits: 8, 16, 32 (no), 24, 28 (no), 26, then 26 again.
    """

    unit: int
    start: int
    least: int
    most: int
    confirmed: bool = False
    """The largest that fits did so twice."""
    _fitting: list[int] = field(default_factory=list)
    _failing: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.start <= self.most or any(
            batch % self.unit for batch in (self.least, self.start, self.most)
        ):
            raise ValueError(
                f"least {self.least}, start {self.start} and most {self.most} are no growing multiples of {self.unit}"
            )

    @property
    def fits(self) -> int | None:
        """The largest batch that fitted, below every one that did not."""
        return max(self._fitting, default=None)

    @property
    def too_large(self) -> int | None:
        """The smallest batch that did not fit."""
        return self._failing

    @property
    def settled(self) -> bool:
        """The largest batch is known, or that none fits; so nothing is left to try."""
        return self.next() is None

    def next(self) -> int | None:
        """The batch to try next; None where all is known."""
        fits, failing = self.fits, self._failing
        if fits is None:
            if failing is None:
                return self.start
            return max(self.least, self._multiple(failing // 2)) if failing > self.least else None
        if failing is None and fits < self.most:
            return min(2 * fits, self.most)
        if failing is not None and failing - fits > self.unit:
            return self._multiple((fits + failing) // 2)
        return None if self.confirmed else fits

    def add(self, batch: int, *, fits: bool) -> None:
        """How the try of a batch ended."""
        if fits:
            self.confirmed = batch == self.fits
            if batch not in self._fitting:
                self._fitting.append(batch)
        else:
            self.confirmed = False
            self._failing = batch if self._failing is None else min(batch, self._failing)
            self._fitting = [other for other in self._fitting if other < self._failing]

    def _multiple(self, batch: int) -> int:
        return batch // self.unit * self.unit
