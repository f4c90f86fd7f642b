"""Levers: settings that work with any strategy, each declared once.

Precision follows one rule: autocast is entered inside the wrapped module's forward, because
DataParallel's threads re-enter an outer autocast without its dtype (bf16 outside became fp16
inside).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from bench.errors import UsageError
from bench.schema import Case

AUTOCAST_DTYPES = {"bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A declared setting. `values` is empty for a whole number from 1; `put` writes it into a case."""

    name: str
    put: Callable[[Case, str], Case]
    default: str
    meaning: str
    values: tuple[str, ...] = ()

    def apply(self, case: Case, text: str) -> Case:
        """The case with this lever set; UsageError lists what it can take."""
        if self.values and text not in self.values:
            raise UsageError(f"{self.name} cannot be {text!r}; it is one of: {', '.join(self.values)}")
        if not self.values and (not (text.isascii() and text.isdecimal()) or int(text) < 1):
            raise UsageError(f"{self.name} cannot be {text!r}; it is a whole number from 1")
        return self.put(case, text)


PRECISION = Lever(
    name="precision",
    put=lambda case, text: replace(case, precision=text),
    default="fp32",
    values=("fp32", "tf32", "bf16"),
    meaning="fp32 (TF32 off for matmul and cuDNN), tf32 (on for both), bf16 (autocast inside the forward)",
)
ACCUMULATION_STEPS = Lever(
    name="accumulation_steps",
    put=lambda case, text: replace(case, accumulation_steps=int(text)),
    default="1",
    meaning="micro-batches per optimizer step; gradients are synchronised on the last only",
)
LEVERS = (ACCUMULATION_STEPS, PRECISION)


def unsupported(case: Case, bf16_supported: bool) -> str | None:
    """Why a device cannot honour the case's levers, None when it can."""
    if case.precision == "tf32" and case.device_type == "cpu":
        return "precision tf32 exists on NVIDIA GPUs since Ampere only; use fp32 or bf16"
    if case.precision == "bf16" and not bf16_supported:
        return "precision bf16 is not supported by this GPU (Ampere or later); use fp32"
    return None


def lossy(case: Case) -> bool:
    """The case's levers change the arithmetic, so that its parity error gets no verdict."""
    return case.precision != "fp32"


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
