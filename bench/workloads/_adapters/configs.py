"""Configurations of transformers' models: found by class or folder, overridden, and made for a size."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from bench.errors import UsageError
from bench.workloads._adapters.spec import Spec, near, value_like

# By chance, these make one step more work than another, or leave a parameter without a gradient.
BY_CHANCE = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "mask_time_prob", "mask_feature_prob")
QUICK = {"image_size": 64, "max_source_positions": 64, "max_length": 128}
"""What is fixed by a configuration and less at size quick: pixels, and positions or frames of sound."""
COUNTS = r"(^|_)(num|n|size|layers?|heads?|dim|length|positions)(_|$)"
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
OF_SOUND = ("max_source_positions", "max_length")
Settings = Mapping[str, Any]


def model_class(name: str) -> Any:
    """A class of transformers that has a configuration and a forward; UsageError names what may be meant."""
    import transformers

    found = class_or_none(name)
    if found is None:
        known = [key for key in dir(transformers) if key[:1].isupper() and ("Model" in key or "For" in key)]
        known = [key for key in known if not key.startswith("Auto") and not key.endswith("PreTrainedModel")]
        raise UsageError(f"--workload: transformers has no model class {name!r} that can be built; {near(name, known)}")
    return found


def class_or_none(name: str) -> Any:
    """A class of transformers that can be built and called: it is no base that others extend."""
    import transformers

    try:
        found = getattr(transformers, name)
    except Exception:  # unknown, or what it needs is not installed
        return None
    if not inspect.isclass(found) or not issubclass(found, transformers.PreTrainedModel):
        return None
    whole = inspect.isclass(found.config_class) and found.forward is not nn.Module.forward
    return found if whole else None


def from_folder(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Model class, configuration class and settings of a folder that `save_pretrained` wrote."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    file = folder / "config.json"
    try:
        stored = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"--workload: {file} cannot be read: {error}; name a folder with a config.json") from error
    kind = stored.get("model_type") if isinstance(stored, dict) else None
    if kind not in CONFIG_MAPPING:
        raise UsageError(
            f"--workload: transformers {transformers.__version__} knows no model_type {kind!r} of {file}; "
            f"{near(str(kind), CONFIG_MAPPING.keys())} (code that lies in a folder is not run)"
        )
    config_class: Any = CONFIG_MAPPING[str(kind)]
    named = (stored.get("architectures") or [None])[0]
    found = model_class(named) if named else MODEL_MAPPING[config_class]
    return found, config_class, {key: value for key, value in stored.items() if key != "architectures"}


def parts(config: Any) -> Iterator[tuple[str, Any]]:
    """The configuration and those inside it, outermost first, each with its dotted path (`text_config`)."""
    from transformers import PretrainedConfig

    waiting: list[tuple[str, Any]] = [("", config)]
    for path, part in waiting:
        yield path, part
        inner = [(key, value) for key, value in vars(part).items() if isinstance(value, PretrainedConfig)]
        waiting += [(_dotted(path, key), value) for key, value in inner if not key.startswith("_")]


def field(part: Any, name: str) -> Any:
    """A field's value; None where there is none, or another for each layer."""
    try:
        return getattr(part, name, None)
    except Exception:  # transformers' own of configurations whose layers differ
        return None


def text_of(config: Any, *, decoder: bool = False) -> Any:
    """The configuration of the text that is read, or written."""
    try:
        return config.get_text_config()
    except ValueError:  # there are several
        return config.get_text_config(decoder=decoder, encoder=not decoder)


def made(config_class: Any, settings: Settings) -> Any:
    """A configuration; UsageError where the settings do not fit each other."""
    try:
        with silence():
            return config_class.from_dict(copy.deepcopy(dict(settings)))
    except Exception as error:
        given = f"{dict(settings)}" if settings else "being made without settings: name a folder that has them"
        raise UsageError(f"--workload: {config_class.__name__} refuses {given}: {one_line(error)}") from error


@contextmanager
def silence() -> Iterator[None]:
    """What transformers remarks about unusual models is kept off the terminal; its errors are raised."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(50)  # more than errors: those are raised
    try:
        yield
    finally:
        logging.set_verbosity(before)


def overridden(config_class: Any, settings: Settings, spec: Spec) -> dict[str, Any]:
    """The settings with what was typed, `text_config.num_hidden_layers` meaning the one inside, each of its
    default's type. UsageError for what the configuration does not know."""
    inside: dict[str, Any] = dict(parts(made(config_class, settings)))
    result = copy.deepcopy(dict(settings))
    for key, text in spec.overrides.items():
        path, _, last = key.rpartition(".")
        part = inside.get(path)
        if part is None or last not in _fields(part):
            known = [_dotted(where, field) for where, one in inside.items() for field in _fields(one)]
            same = [other for other in known if other.rpartition(".")[2] == last]
            raise UsageError(f"--workload: {config_class.__name__} has no {key!r}; {near(key, same or known)}")
        try:
            value = value_like(key, text, default := field(part, last))
            if re.search(COUNTS, last) and isinstance(value, int) and isinstance(default, int) and value < 0 <= default:
                raise UsageError(f"{key}={text} counts something; its default is {default}")
            where = place(result, inside, path)
            where[last] = value
            if last in LAYERS and isinstance(value, int):
                _cut(where, default, value)
            if last == "num_labels":  # the names of the labels count them too
                where.pop("id2label", None), where.pop("label2id", None)
        except UsageError as error:
            raise UsageError(f"--workload: {config_class.__name__}: {error}") from error
    return result


def _cut(settings: dict[str, Any], before: Any, now: int) -> None:
    """Lists with an item for each layer follow the number of layers; without enough items, their default does."""
    for key, items in list(settings.items()):
        if isinstance(items, list) and len(items) == before:
            settings[key] = items[:now]
            if now > before:
                del settings[key]


def _fields(part: Any) -> set[str]:
    return set(part.to_dict()) | set(part.attribute_map) | {"num_labels"}


def _dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def place(settings: dict[str, Any], inside: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The settings of the configuration at `path` inside `settings`, put there where they were left at defaults."""
    so_far = ""
    for name in filter(None, path.split(".")):
        so_far = _dotted(so_far, name)
        if not isinstance(settings.get(name), dict):
            settings[name] = _unusual(inside[so_far])
        settings = settings[name]
    return settings


def _unusual(part: Any) -> dict[str, Any]:
    """What tells a configuration from its class's defaults, and which class that is."""
    stored = part.to_dict()
    try:
        usual = type(part)().to_dict()
    except Exception:  # a class that has no defaults
        usual = {}
    different = {key: value for key, value in stored.items() if key not in usual or value != usual[key]}
    return {"model_type": part.model_type, **different}


def smaller(config: Any, settings: Settings, stored: Settings, typed: Mapping[str, str]) -> dict[str, Any] | None:
    """The settings with images and sound of size quick; None where there is nothing to make smaller.

    What a folder has `stored` and what was `typed` stays.
    """
    inside = dict(parts(config))
    result = copy.deepcopy(dict(settings))
    for path, part in inside.items():
        for key, least in QUICK.items():
            if key in _at(stored, path) or _dotted(path, key) in typed:
                continue
            full = vars(part).get(key)
            less = _less(full, least, getattr(part, "patch_size", None))
            if less != full and (key not in OF_SOUND or hasattr(part, "num_mel_bins")):
                place(result, inside, path)[key] = less
    return result if result != settings else None


def _less(full: Any, least: int, patch: Any) -> Any:
    """A number, or each of a list, cut to `least` rounded up to whole patches."""
    if isinstance(full, (list, tuple)):
        return [_less(one, least, patch) for one in full]
    if not isinstance(full, int) or isinstance(full, bool):
        return full
    whole = -(-least // patch) * patch if isinstance(patch, int) and patch > 0 else least
    return min(full, whole)


def _at(settings: Settings, path: str) -> Settings:
    for name in filter(None, path.split(".")):
        inner = settings.get(name)
        settings = inner if isinstance(inner, Mapping) else {}
    return settings


def prepared(config_class: Any, settings: Settings, typed: Mapping[str, str]) -> Any:
    """The configuration to train: no cache of keys and values, which training never reads, and a fixed amount of
    work in every step, unless `typed` asks for the other."""
    config = made(config_class, settings)
    for path, part in parts(config):
        if getattr(part, "use_cache", False):
            part.use_cache = False
        for key in BY_CHANCE:
            if isinstance(vars(part).get(key), float) and _dotted(path, key) not in typed:
                setattr(part, key, 0.0)
        vocabulary = getattr(text_of(part), "vocab_size", None)
        for key in ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index"):
            number = getattr(part, key, 0)
            if vocabulary and (number is None or number >= vocabulary):
                # It would stand for a token that is added to a trained vocabulary; any that exists will do.
                setattr(part, key, vocabulary - 1 - key.startswith("audio"))
        if getattr(part, "pad_token_id", None) is None and getattr(part, "vocab_size", None):
            # Classifiers of sequences look for the last token that is no padding.
            part.pad_token_id = 0
    return config


def one_line(error: BaseException) -> str:
    """The first line of what an error says, and no more than a screen's width or two of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = " ".join(lines[:2])
    return text if len(text) <= 240 else text[:237] + "..."
