"""The order of images in memory: channels innermost, as tensor cores and oneDNN like their convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import RefusedError, in_short, text_of
from bench.levers.base import Blocks, Lever, register
from bench.schema import Case
from bench.structure import map_tensors

IMAGES = 4
"""Dimensions of a batch of images, and of a convolution's weights."""
FSDP = "FSDP shards weights row by row and hands them out contiguous, so that the layout would be lost"

VIEWED = "view size is not compatible"
DATA_PARALLEL = "DataParallel broadcasts weights flattened: every device but the first would get them contiguous"


@register
class ChannelsLast(Lever):
    name = "channels_last"
    meaning = "on: images and the weights of 2-D convolutions are kept with channels innermost (NHWC)"
    changes = "the time of convolutions, mostly in bf16 or fp16"
    default = "off"
    values = ("off", "on")
    needs = "a model with 2-D convolutions"
    not_with = {**dict.fromkeys(("fsdp", "fsdp1"), FSDP), **dict.fromkeys(("dp", "balanced_dp"), DATA_PARALLEL)}

    def prepare_model(self, case: Case, model: nn.Module, blocks: Blocks) -> Blocks:
        if not any(weight.dim() == IMAGES for weight in model.parameters()):
            raise RefusedError("channels_last=on changes weights with 4 dimensions, and the model has none")
        model.to(memory_format=torch.channels_last)
        return blocks

    def refusal(self, case: Case, error: Exception) -> str | None:
        if isinstance(error, RuntimeError) and VIEWED in text_of(error):
            return f"channels_last=on: the model views its activations as if channels came first ({in_short(error)})"
        return None

    def prepare_batch(self, case: Case, batch: Any) -> Any:
        return map_tensors(_inner_channels, batch)


def _inner_channels(tensor: Tensor) -> Tensor:
    if tensor.dim() != IMAGES:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
