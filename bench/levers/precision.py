"""The type that matrix products and convolutions compute in.

Autocast is entered inside the wrapped module's forward, because DataParallel's threads re-enter an outer
autocast without its dtype (bf16 outside became fp16 inside).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from bench.levers.base import Abilities, Lever, register
from bench.schema import Case

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@register
class Precision(Lever):
    name = "precision"
    meaning = (
        "fp32: TF32 off for matmul and cuDNN; tf32: on for both; bf16, fp16: autocast inside the forward, fp16 with a "
        "GradScaler"
    )
    changes = "step time and activation memory; not the bytes that gradients take, which stay float32"
    default = "fp32"
    values = ("fp32", "tf32", "bf16", "fp16")
    needs = "tf32, and bf16 on a GPU: Ampere or later"
    lossy = frozenset({"tf32", "bf16", "fp16"})

    def of(self, case: Case) -> str:
        return case.precision

    def apply(self, case: Case, text: str) -> Case:
        return replace(case, precision=self.check(text))

    def unsupported(self, case: Case, abilities: Abilities) -> str | None:
        if case.precision == "tf32" and case.device_type == "cpu":
            return "precision tf32 exists on NVIDIA GPUs since Ampere only; use fp32 or bf16"
        if case.precision == "bf16" and not abilities.bf16:
            return "precision bf16 is not supported by this GPU (Ampere or later); use fp32 or fp16"
        return None

    def set_process(self, case: Case) -> None:
        set_float32_precision(case.precision)


def autocast(precision: str, device_type: str) -> AbstractContextManager[object]:
    """The autocast context of a precision, to be entered inside a module's forward."""
    dtype = AUTOCAST_DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype=dtype)


def set_float32_precision(precision: str) -> None:
    """Switch TF32 for matmul and cuDNN together; cuDNN's default is on, which fp32 must not inherit.

    The older flags are set first, then the newer ones: with the newer alone torch raises when
    any library reads the older, with the older alone the newer ones say `none`.
    """
    on = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on
    mode = "tf32" if on else "ieee"
    torch.backends.cuda.matmul.fp32_precision = mode
    torch.backends.cudnn.conv.fp32_precision = mode  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = mode  # type: ignore[attr-defined]
