"""TF32's flags, as torch sees them afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench.levers import set_float32_precision


@pytest.fixture(autouse=True)
def torch_defaults() -> Iterator[None]:
    yield
    set_float32_precision("fp32")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "fp32"])
def test_tf32_is_on_for_tf32_only_and_every_flag_of_torch_agrees(precision: str) -> None:
    set_float32_precision(precision)
    on = precision == "tf32"
    # Reading any of these raises where older and newer flags were mixed.
    assert torch.get_float32_matmul_precision() == ("high" if on else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 is on
    assert torch.backends.cudnn.allow_tf32 is on
    mode = "tf32" if on else "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == mode
    assert torch.backends.cudnn.conv.fp32_precision == mode
    assert torch.backends.cudnn.rnn.fp32_precision == mode
