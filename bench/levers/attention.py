"""The kernel behind `torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bench.errors import in_short, text_of
from bench.levers.base import Abilities, Lever, Witness, register
from bench.schema import Case

SWITCHES: dict[str, Callable[[bool], None]] = {
    "math": torch.backends.cuda.enable_math_sdp,
    "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "flash": torch.backends.cuda.enable_flash_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
}
"""They hold for CPU kernels as well, which torch has for math and flash."""
NO_KERNEL = ("No available kernel", "No viable backend", "Invalid backend")
"""What torch says where none of the kernels that are switched on takes the inputs."""
ENABLED: dict[str, Callable[[], bool]] = {
    "math": torch.backends.cuda.math_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
}
HALF = ("bf16", "fp16")


@register
class Attention(Lever):
    name = "attention"
    meaning = (
        "default: torch chooses; math: plain products and a softmax; efficient: the memory-efficient kernel; flash: "
        "FlashAttention (Dao et al., 2022)"
    )
    changes = "the time of attention, and its memory, which math alone lets grow with the square of the length"
    default = "default"
    values = ("default", "math", "efficient", "flash")
    needs = "a model that calls it; efficient: a GPU; flash on a GPU: bf16 or fp16"

    def unsupported(self, case: Case, abilities: Abilities) -> str | None:
        value = self.of(case)
        if case.device_type == "cpu" and value == "efficient":
            return "attention=efficient: torch has no memory-efficient kernel for CPUs; use flash or math"
        if case.device_type == "cuda" and value == "flash" and case.precision not in HALF:
            return f"attention=flash computes in bf16 or fp16, not in {case.precision}; add --precision bf16"
        return super().unsupported(case, abilities)

    def set_process(self, case: Case) -> None:
        wanted = self.of(case)
        for kernel, switch in SWITCHES.items():
            switch(wanted in (self.default, kernel))

    def refusal(self, case: Case, error: Exception) -> str | None:
        if isinstance(error, RuntimeError) and any(words in text_of(error) for words in NO_KERNEL):
            return (
                f"{self.name}={self.of(case)}: it does not take the model's attention, as where a mask, a type "
                f"or a size does not suit it ({in_short(error)}); use {self.name}=math, or leave it out"
            )
        return None

    def witness(self, case: Case) -> Witness:
        return Calls(self.of(case))


class Calls:
    """Whether a model calls scaled_dot_product_attention, and leaves the choice of its kernel to the lever."""

    def __init__(self, wanted: str) -> None:
        self.seen, self.overridden, self._wanted = False, False, wanted

    def watching(self) -> AbstractContextManager[object]:
        return _Watch(self)

    def refusal(self) -> str | None:
        if self.overridden:
            return f"attention={self._wanted}: the model chooses the kernel itself (torch.nn.attention.sdpa_kernel)"
        called = "the model does not call torch.nn.functional.scaled_dot_product_attention"
        return None if self.seen else f"attention chooses its kernel, and {called}"

    def see(self) -> None:
        """Attention is called now."""
        self.seen = True
        on = {kernel for kernel, enabled in ENABLED.items() if enabled()}
        self.overridden = self.overridden or on != {self._wanted}


class _Watch(TorchFunctionMode):
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Within `multi_head_attention_forward` this mode is off; it calls the kernel where no weights are asked for.
        heads = func is functional.multi_head_attention_forward and not (kwargs or {}).get("need_weights", True)
        if heads or func is functional.scaled_dot_product_attention:
            self._calls.see()
        return func(*args, **(kwargs or {}))
