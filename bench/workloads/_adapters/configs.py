"""Configurations of transformers' models: their classes, their parts, and what is made of them for a size."""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from bench.errors import UsageError

# By chance, these make one step more work than another, or leave a parameter without a gradient.
BY_CHANCE = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "mask_time_prob", "mask_feature_prob")
QUICK = {"image_size": 64, "max_source_positions": 64, "max_length": 128}
"""What is fixed by a configuration and less at size quick: pixels, and positions or frames of sound."""
OF_SOUND = ("max_source_positions", "max_length")
Settings = Mapping[str, Any]


def model_class(name: str) -> Any:
    """A class of transformers that has a configuration and a forward; UsageError names what may be meant."""
    found = class_or_none(name)
    if found is not None:
        return found
    if name.startswith("Auto"):
        like = f"Bert{name.removeprefix('AutoModel')}"
        such = like if class_or_none(like) else "BertModel"
        raise UsageError(f"--workload: {name} stands for many classes; name a concrete class, such as {such}")
    raise UsageError(
        f"--workload: transformers has no model class {name!r} that can be built, nor is there a folder of that "
        f"name; {_classes_like(name)}"
    )


def _classes_like(name: str) -> str:
    """The classes that can be built and have a name like this."""
    import transformers

    named = [key for key in dir(transformers) if key[:1].isupper() and ("Model" in key or "For" in key)]
    named = [key for key in named if not key.endswith("PreTrainedModel")]  # bases that others extend
    alike = difflib.get_close_matches(name, named, n=12, cutoff=0.5)
    known = [key for key in alike if class_or_none(key) is not None][:6]
    return f"near matches: {', '.join(known)}" if known else "name a class, such as BertModel"


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


def parts(config: Any) -> Iterator[tuple[str, Any]]:
    """The configuration and those inside it, outermost first, each with its dotted path (`text_config`)."""
    from transformers import PretrainedConfig

    waiting: list[tuple[str, Any]] = [("", config)]
    for path, part in waiting:
        yield path, part
        inner = [(key, value) for key, value in vars(part).items() if isinstance(value, PretrainedConfig)]
        waiting += [(dotted(path, key), value) for key, value in inner if not key.startswith("_")]


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


def made(config_class: Any, settings: Settings, origin: str = "") -> Any:
    """A configuration; UsageError, which tells their `origin`, where the settings do not fit each other."""
    try:
        with silence():
            return config_class.from_dict(copy.deepcopy(dict(settings)))
    except Exception as error:
        given = origin or "without settings: name a folder that has them"
        raise UsageError(
            f"--workload: {config_class.__name__} refuses being made {given}: {one_line(error)}"
        ) from error


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


def dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def place(settings: dict[str, Any], inside: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The settings of the configuration at `path` inside `settings`, put there where they were left at defaults."""
    so_far = ""
    for name in filter(None, path.split(".")):
        so_far = dotted(so_far, name)
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
            if key in at(stored, path) or dotted(path, key) in typed:
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


def at(settings: Settings, path: str) -> Settings:
    for name in filter(None, path.split(".")):
        inner = settings.get(name)
        settings = inner if isinstance(inner, Mapping) else {}
    return settings


def prepared(config_class: Any, settings: Settings, typed: Mapping[str, str], origin: str = "") -> Any:
    """The configuration to train: no cache of keys and values, which training never reads, and a fixed amount of
    work in every step, unless `typed` asks for the other."""
    config = made(config_class, settings, origin)
    for path, part in parts(config):
        if getattr(part, "use_cache", False):
            part.use_cache = False
        for key in BY_CHANCE:
            if isinstance(vars(part).get(key), float) and dotted(path, key) not in typed:
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
