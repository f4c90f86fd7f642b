"""The MNIST CNN with a busy-wait in its forward, for benchmarks of how slowdowns are found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from bench.workloads.mnist_cnn import MnistCnn


class Spinning(nn.Module):
    """A model that burns CPU time after each forward, as slower code would."""

    def __init__(self, inner: nn.Module, seconds: float) -> None:
        super().__init__()
        self.inner, self.seconds = inner, seconds

    def forward(self, images: Any) -> Any:
        output = self.inner(images)
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return output


class SlowedCnn(MnistCnn):
    """The MNIST CNN, some seconds slower a step."""

    spin_seconds: ClassVar[float] = 0.0

    def build(self) -> nn.Module:
        return Spinning(super().build(), self.spin_seconds)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        return super().blocks(model.inner)  # type: ignore[arg-type]
