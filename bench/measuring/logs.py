"""What the workers of a launch print: kept in files, since the terminal belongs to the driver."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LOG_LINES = 30
CPP_MESSAGE = "what():"


@dataclass(frozen=True, slots=True)
class Logs:
    """Files that take what the workers of one launch print."""

    folder: str
    prefix: str

    def path(self, rank: int) -> Path:
        return Path(self.folder, f"{self.prefix}-{rank}.log")

    def take_output(self, rank: int) -> None:
        """Send this process's stdout and stderr, those of C libraries too, into the rank's file."""
        with open(self.path(rank), "ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)

    def lines(self, rank: int) -> list[str]:
        """The last lines that a rank printed."""
        return self._all(rank)[-LOG_LINES:]

    def last_words(self, rank: int) -> str | None:
        """What an uncaught C++ exception says, else the last line that is not empty; None without any."""
        lines = [line.strip() for line in self._all(rank) if line.strip()]
        said = [line.partition(CPP_MESSAGE)[2].strip() for line in lines if CPP_MESSAGE in line]
        return next(iter([*said[:1], *lines[-1:]]), None)

    def _all(self, rank: int) -> list[str]:
        try:
            return self.path(rank).read_text(errors="replace").splitlines()
        except OSError:
            return []

    def remove(self, world_size: int) -> None:
        for rank in range(world_size):
            self.path(rank).unlink(missing_ok=True)
