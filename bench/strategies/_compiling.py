"""Looking at modules that torch.compile compiles, without being compiled with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn

Hook = TypeVar("Hook", bound=Callable[..., None])


def eager(hook: Hook) -> Hook:
    """What a compiled function calls, but must not compile, and not guard on either."""
    return cast("Hook", torch.compiler.disable(hook))  # type: ignore[no-untyped-call]


def call_first(module: nn.Module, announce: Callable[[nn.Module, Any, Any], None]) -> Callable[[], None]:
    """Let `announce` run before each call of a compiled module, outside of what is compiled; returns what undoes it.

    A hook would be compiled with the module, or be refused (`module.compile(fullgraph=True)`).
    """
    call: Any = module._compiled_call_impl

    def announced(*args: Any, **kwargs: Any) -> Any:
        announce(module, args, kwargs)
        return call(*args, **kwargs)

    module._compiled_call_impl = announced
    return partial(setattr, module, "_compiled_call_impl", call)
