"""What follows the library in `torchvision:resnet18?num_classes=10`: a model and overrides."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.errors import UsageError

MOST_LISTED = 12
OWN = "write a workload of your own, see docs/workloads.md"
CHANGE = f"change these overrides, or {OWN}"
NAME = "name"
"""A key of the suite's own: a short name for the model, in place of the whole text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A model and its overrides as they were typed, in alphabetical order; `name` is what to call it, if anything."""

    model: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None

    @property
    def query(self) -> str:
        """The overrides as they end an address; empty without any."""
        return "?" + "&".join(f"{key}={value}" for key, value in self.overrides.items()) if self.overrides else ""

    @property
    def suffix(self) -> str:
        """The query with the name in it: what ends the whole address."""
        if self.name is None:
            return self.query
        return f"{self.query}&{NAME}={self.name}" if self.query else f"?{NAME}={self.name}"


def parse(text: str) -> Spec:
    """`model?key=value&...`, taken apart; UsageError for an override without a value, or given twice."""
    model, _, query = text.partition("?")
    overrides: dict[str, str] = {}
    for item in filter(None, query.split("&")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"--workload {text}: {item!r} is no override; write {key or 'key'}=VALUE")
        if key in overrides:
            raise UsageError(f"--workload {text}: {key} is given twice, as {overrides[key]} and {value}; give one")
        overrides[key] = value
    name = overrides.pop(NAME, None)
    return Spec(model=model.strip(), overrides=dict(sorted(overrides.items())), name=name)


def near(name: str, known: Iterable[str]) -> str:
    """What exists and may be meant: all names where they are few, else those that look alike."""
    names = sorted(known)
    if len(names) <= MOST_LISTED:
        return f"there is: {', '.join(names)}" if names else ""
    lower = {other.lower(): other for other in names}
    alike = [lower[found] for found in difflib.get_close_matches(name.lower(), lower, n=6, cutoff=0.5)]
    return f"near matches: {', '.join(alike)}" if alike else f"there are {len(names)}, none like it"


def literal(text: str) -> Any:
    """A number, true, false, null or a list, as JSON has them; any other text is itself."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text


def value_like(key: str, text: str, default: Any) -> Any:
    """An override of the type that its default has; UsageError when it is of another."""
    if isinstance(default, str):
        return text
    value = literal(text)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if default is not None and value is not None and type(value) is not type(default):
        raise UsageError(f"{key}={text} is no {type(default).__name__}; its default is {default}")
    return value
