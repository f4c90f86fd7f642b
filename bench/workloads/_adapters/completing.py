"""Numbers for a class whose configuration has none by default, or some that do not fit each other.

They are used only where a class cannot be measured as it is, and then stand among its overrides, for all to see.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from bench.workloads._adapters.configs import dotted, field, parts, text_of

MISSING: Mapping[str, Callable[[Any], Any]] = {
    "head_dim": lambda part: part.hidden_size // part.num_attention_heads,
    "num_key_value_heads": lambda part: part.num_attention_heads,
    "moe_intermediate_size": lambda part: part.intermediate_size,
    "vocab_size": lambda part: 32_000,
    "prediction_length": lambda part: 24,
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), lambda part: 8),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts"), lambda part: 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "routed_scaling_factor"), lambda part: 1),
}
"""What stands for a number that is None: what follows from others, else what is common."""


def completions(config: Any, model: nn.Module | None, typed: Collection[str] = ()) -> dict[str, str]:
    """Overrides as they would be typed that may make the class of `config` fit; model: it, where it could be built.

    What was `typed` stays, and heads are not fitted to a width that was.
    """
    found: dict[str, Any] = {}
    for path, part in parts(config):
        free = not {dotted(path, "hidden_size"), dotted(path, "num_attention_heads")} & set(typed)
        for key, value in (*_missing(part), *((*_heads(part), *_rotated(part, model)) if free else ())):
            found |= {dotted(path, key): value} if value != field(part, key) else {}
        if key := _features(path, part):
            wide = field(text_of(config), "hidden_size")
            found |= {dotted(path, key): wide} if isinstance(wide, int) and wide != field(part, key) else {}
    return {key: json.dumps(value) for key, value in found.items() if key not in typed}


def _missing(part: Any) -> Iterator[tuple[str, Any]]:
    for key, value in MISSING.items():
        if key in vars(part) and vars(part)[key] is None:
            try:
                yield key, value(part)
            except (AttributeError, TypeError, ZeroDivisionError):  # what it follows from is not there either
                continue


def _heads(part: Any) -> Iterator[tuple[str, int]]:
    """As many heads as divide the width; one where the width is that of an input (Perceiver)."""
    wide, heads = field(part, "hidden_size"), field(part, "num_attention_heads")
    if isinstance(wide, int) and isinstance(heads, int) and heads and field(part, "head_dim") is None and wide % heads:
        yield "num_attention_heads", next(less for less in range(heads, 0, -1) if wide % less == 0)
    if isinstance(field(part, "num_cross_attention_heads"), int):
        yield "num_cross_attention_heads", 1


def _rotated(part: Any, model: nn.Module | None) -> Iterator[tuple[str, int]]:
    """As many heads as make each as wide as the sections of its positions (time, height, width) are together."""
    rope, wide = field(part, "rope_parameters"), field(part, "hidden_size")
    layers: Iterable[Any] = model.modules() if model is not None else ()
    sections = next((layer.mrope_section for layer in layers if hasattr(layer, "mrope_section")), None)
    if sections and isinstance(rope, Mapping) and isinstance(wide, int) and field(part, "vocab_size"):
        each = 2 * sum(sections) / rope.get("partial_rotary_factor", 1)
        yield "num_attention_heads", max(1, math.floor(wide / each))


def _features(path: str, part: Any) -> str:
    """The field for the width of an image's features, which must be that of the text; empty where there is none."""
    if "vision" not in path:
        return ""
    if isinstance(field(part, "out_hidden_size"), int):
        return "out_hidden_size"
    return "hidden_size" if {"hidden_size", "embed_dim", "spatial_merge_size"} <= vars(part).keys() else ""
