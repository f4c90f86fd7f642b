"""Overrides of a transformers configuration: typed texts to values of its fields."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.workloads._adapters.configs import Settings, at, dotted, field, made, parts, place
from bench.workloads._adapters.spec import Spec, near, value_like

COUNTS = r"(^|_)(num|n|size|layers?|heads?|dim|length|positions)(_|$)"
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
DTYPES = ("dtype", "torch_dtype")
CLASSES = ("model_type", "architectures")
LEAST = {"num_labels": 1, "vocab_size": 2}
"""Fewer leave nothing to tell apart, or to draw."""


def overridden(config_class: Any, settings: Settings, spec: Spec, origin: str = "") -> dict[str, Any]:
    """The settings with what was typed, `text_config.num_hidden_layers` meaning the one inside, each of its
    default's type. UsageError for what the configuration does not know, or cannot be measured."""
    inside: dict[str, Any] = dict(parts(made(config_class, settings, origin)))
    result = copy.deepcopy(dict(settings))
    for key, text in spec.overrides.items():
        path, _, last = key.rpartition(".")
        part = inside.get(path)
        if last in DTYPES:
            raise UsageError(f"--workload: {key}={text}: models are built in float32; use --precision")
        if part is None or last not in _fields(part):
            known = [dotted(where, field) for where, one in inside.items() for field in _fields(one)]
            same = [other for other in known if other.rpartition(".")[2] == last]
            raise UsageError(f"--workload: {config_class.__name__} has no {key!r}; {near(key, same or known)}")
        try:
            value = _value(key, text, inside)
        except UsageError as error:
            raise UsageError(f"--workload: {config_class.__name__}: {error}") from error
        where = place(result, inside, path)
        where[last] = value
        if last in LAYERS and isinstance(value, int):
            _cut(where, field(part, last), value)
        if last == "num_labels":  # the names of the labels count them too
            where.pop("id2label", None), where.pop("label2id", None)
    return result


def _value(key: str, text: str, inside: dict[str, Any]) -> Any:
    """What was typed for a field, of its default's type; UsageError where that cannot be, or cannot be measured."""
    path, _, last = key.rpartition(".")
    if last in CLASSES:
        raise UsageError(f"{key}={text}: a class cannot be overridden; name it in place of this one")
    if key in inside:
        raise UsageError(f"{key} is a configuration of its own; write {key}.FIELD=VALUE, one for each field")
    default = field(inside[path], last)
    value = value_like(key, text, default)
    if problem := _no_activation(last, value, default):
        raise UsageError(f"{key}={text} {problem}")
    if problem := impossible(last, value, default):
        raise UsageError(f"{key}={text} {problem}; its default is {default}")
    return value


def _no_activation(name: str, value: Any, default: Any) -> str:
    """What activations there are, where a field of one has a text that is none; empty where it does not."""
    from transformers.activations import ACT2CLS

    wrong = "act" in name and isinstance(default, str) and default in ACT2CLS and value not in ACT2CLS
    return f"is no activation; there is: {', '.join(sorted(ACT2CLS))}" if wrong else ""


def impossible(name: str, value: Any, default: Any) -> str:
    """Why a number is too low for what it counts; empty where it is not."""
    if not isinstance(value, int) or isinstance(value, bool):
        return ""
    if not isinstance(default, int):
        return ""
    if value < (least := LEAST.get(name, value)) <= default:
        return f"is too few: there must be {least} or more"
    return "counts something" if re.search(COUNTS, name) and value < 0 <= default else ""


def check_stored(config_class: Any, stored: Settings, file: Path) -> None:
    """UsageError where a file has too low a number for what it counts, or an activation that there is not."""
    try:
        usual = list(parts(config_class()))
    except Exception:  # a class that has no defaults
        return
    for path, part in usual:
        for key, value in at(stored, path).items():
            default = field(part, key)
            if problem := _no_activation(key, value, default):
                raise UsageError(f"--workload: {file} has {dotted(path, key)} {value}, which {problem}")
            if problem := impossible(key, value, default):
                raise UsageError(
                    f"--workload: {file} has {dotted(path, key)} {value}, which {problem}; the default is {default}"
                )


def _cut(settings: dict[str, Any], before: Any, now: int) -> None:
    """Lists with an item for each layer follow the number of layers; without enough items, their default does."""
    for key, items in list(settings.items()):
        if isinstance(items, list) and len(items) == before:
            settings[key] = items[:now]
            if now > before:
                del settings[key]


def _fields(part: Any) -> set[str]:
    return set(part.to_dict()) | set(part.attribute_map) | {"num_labels"}
