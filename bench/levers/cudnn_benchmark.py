"""cuDNN's autotuning: it tries its algorithms for a convolution's shapes, and keeps the fastest."""

from __future__ import annotations

import torch
from torch import nn

from bench.errors import RefusedError
from bench.levers.base import Blocks, Lever, register
from bench.schema import Case


@register
class CudnnBenchmark(Lever):
    name = "cudnn_benchmark"
    meaning = "on: cuDNN tries its algorithms for each new shape, in the warm-up, and keeps the fastest"
    changes = "the time of convolutions of unchanging shapes, and their workspace"
    default = "off"
    values = ("off", "on")
    needs = "a model with convolutions"
    not_on = {"cpu": "cuDNN runs on NVIDIA GPUs only"}

    def prepare_model(self, case: Case, model: nn.Module, blocks: Blocks) -> Blocks:
        if not any(isinstance(part, nn.modules.conv._ConvNd) for part in model.modules()):
            raise RefusedError("cudnn_benchmark=on tunes convolutions, and the model has none")
        return blocks

    def set_process(self, case: Case) -> None:
        torch.backends.cudnn.benchmark = self.is_set(case)
