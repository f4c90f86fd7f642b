"""cuDNN's autotuning: it tries its algorithms for a convolution's shapes, and keeps the fastest."""

from __future__ import annotations

import torch

from bench.levers.base import Lever, register
from bench.schema import Case


@register
class CudnnBenchmark(Lever):
    name = "cudnn_benchmark"
    meaning = "on: cuDNN tries its algorithms for each new shape, in the warm-up, and keeps the fastest"
    changes = "the time of convolutions of unchanging shapes, and their workspace"
    default = "off"
    values = ("off", "on")
    not_on = {"cpu": "cuDNN runs on NVIDIA GPUs only"}

    def set_process(self, case: Case) -> None:
        torch.backends.cudnn.benchmark = self.is_set(case)
