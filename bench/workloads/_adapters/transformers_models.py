"""Any model class of transformers: `transformers:BertForMaskedLM?num_hidden_layers=2`, or a folder with a config.

Built from a configuration alone, untrained: nothing is downloaded, and no code from a folder is run.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from bench.data.base import Batch, DataSource
from bench.errors import UsageError
from bench.workloads._adapters.spec import Spec, near, value_like
from bench.workloads._adapters.tasks import SUFFIXES, Shape, Task, TaskData
from bench.workloads._examples import SYNTHETIC_SAMPLES
from bench.workloads.base import Size, Workload

TOKENS = {"standard": 128, "quick": 64}
PIXELS = {"standard": 224, "quick": 64}
# RoBERTa and its kin count positions from one above the padding id.
POSITIONS_LEFT = 2
MOST_RESERVED = 8
"""Padding and the like have the first ids; where they have the last ones, a stray one does no harm."""
INPUTS = ("input_ids", "pixel_values")


class TransformersModel(Workload):
    """A model class of transformers with a configuration of its own."""

    model_class: ClassVar[Any]
    config_class: ClassVar[Any]
    settings: ClassVar[Mapping[str, Any]]
    """Of the configuration, where they are not its defaults."""
    task: ClassVar[Task]
    low_precision = True

    @cached_property
    def config(self) -> Any:
        """The configuration at this size."""
        return _config(self.model_class, self.config_class, self.settings, self.size_name)

    def build(self) -> nn.Module:
        """Called with keywords alone; returns the model's own output class."""
        model: nn.Module = self.model_class(self.config)
        return model.float()

    def prepare(self, data: str, data_root: Path | None, cache: Path) -> DataSource:
        super().prepare(data, data_root, cache)
        kind = "normal noise" if _takes_images(self.model_class) else "token ids, drawn evenly"
        text = f"seeded {kind}, {self.size.text}"
        return DataSource(kind="synthetic", text=text, num_samples=SYNTHETIC_SAMPLES)

    def dataset(self, source: DataSource, seed: int) -> Dataset[Batch]:
        return TaskData(self.task, _shape(self.model_class, self.config, self.size_name), source.num_samples, seed)

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return self.task.loss(output, targets)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-4)


def adapt(spec: Spec) -> tuple[type[Workload], str]:
    """A workload class for a transformers model, and its address. UsageError names what there is."""
    path = Path(spec.model).expanduser()
    if path.is_dir() or "/" in spec.model:
        folder = path.resolve()
        model_class, config_class, settings = _from_folder(folder)
        name, address = f"{folder.name}{spec.query}", f"transformers:{folder}{spec.suffix}"
    else:
        model_class = _model_class(spec.model)
        config_class, settings = model_class.config_class, {}
        name, address = f"transformers:{spec.model}{spec.query}", f"transformers:{spec.model}{spec.suffix}"
    task = _task(model_class)
    settings = {**settings, **_overrides(config_class, settings, spec.overrides)}
    _check_built(model_class, _config(model_class, config_class, settings, "standard"), spec.query)
    images = _takes_images(model_class)
    sizes = {}
    for size in TOKENS:
        shape = _shape(model_class, _config(model_class, config_class, settings, size), size)
        batch = {"standard": {"batch_per_device": 32}, "quick": {"global_batch_size": 8}}[size]
        text = f"{shape.text}; {task.text}"
        sizes[size] = Size(text=text, tokens_per_sample=shape.tokens or None, **batch)
    declared = {
        "name": spec.name or name,
        "__doc__": f"transformers' {model_class.__name__}{spec.query}, untrained; {task.text}",
        "__module__": __name__,
        "model_class": model_class,
        "config_class": config_class,
        "settings": settings,
        "task": task,
        "sizes": sizes,
        "sample_word": "images" if images else "sequences",
        "compare_loss_placements": task.wide_logits,
    }
    return type(model_class.__name__, (TransformersModel,), declared), address


def _model_class(name: str) -> Any:
    import transformers

    try:
        found = getattr(transformers, name)
    except Exception:  # unknown, or what it needs is not installed
        found = None
    if not (inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel)) or found.config_class is None:
        known = [
            key
            for key in dir(transformers)
            if key[:1].isupper() and key.endswith(tuple(SUFFIXES)) and not key.startswith("Auto")
        ]
        raise UsageError(f"--workload: transformers has no model class {name!r} that can be built; {near(name, known)}")
    return found


def _from_folder(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
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
    model_class = _model_class(named) if named else MODEL_MAPPING[config_class]
    return model_class, config_class, {key: value for key, value in stored.items() if key != "architectures"}


def _task(model_class: Any) -> Task:
    """How the class is trained; UsageError for one that needs other inputs or objectives."""
    name: str = model_class.__name__
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    takes = inspect.signature(model_class.forward).parameters
    main = model_class.main_input_name
    if {"text_config", "vision_config"} <= set(model_class.config_class.sub_configs):
        main = "images and text"
    if suffix is None or main not in INPUTS or main not in takes:
        raise UsageError(
            f"--workload: {name} takes {main}, and is trained in a way that is not known here; known are classes that "
            f"take input_ids or pixel_values and end in {', '.join(SUFFIXES)}. Write a workload of your own, see "
            "docs/workloads.md"
        )
    return SUFFIXES[suffix]


def _takes_images(model_class: Any) -> bool:
    return bool(model_class.main_input_name == "pixel_values")


def _overrides(config_class: Any, settings: Mapping[str, Any], typed: Mapping[str, str]) -> dict[str, Any]:
    """What was typed, as values of the configuration's types. UsageError for what it does not know."""
    base = _made(config_class, settings)
    known = set(base.to_dict()) | set(config_class.attribute_map)
    overrides = {}
    for key, text in typed.items():
        if key not in known:
            raise UsageError(f"--workload: {config_class.__name__} has no {key!r}; {near(key, known)}")
        try:
            overrides[key] = value_like(key, text, getattr(base, key, None))
        except UsageError as error:
            raise UsageError(f"--workload: {config_class.__name__}: {error}") from error
    return overrides


def _made(config_class: Any, settings: Mapping[str, Any]) -> Any:
    """A configuration; what transformers remarks about unusual ones is kept off the terminal."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(40)  # errors alone
    try:
        return config_class.from_dict(dict(settings))
    except Exception as error:
        raise UsageError(f"--workload: {config_class.__name__} refuses {dict(settings)}: {error}") from error
    finally:
        logging.set_verbosity(before)


def _config(model_class: Any, config_class: Any, settings: Mapping[str, Any], size: str) -> Any:
    """The configuration of a size. No cache of keys and values: training never reads it."""
    config = _prepared(_made(config_class, settings))
    full = getattr(config, "image_size", None)
    if not _takes_images(model_class) or size != "quick" or not isinstance(full, int) or "image_size" in settings:
        return config
    patch = getattr(config, "patch_size", None)
    pixels = -(-PIXELS["quick"] // patch) * patch if isinstance(patch, int) else PIXELS["quick"]
    smaller = _prepared(_made(config_class, {**settings, "image_size": pixels}))
    return smaller if pixels < full and _takes(model_class, smaller) else config


def _prepared(config: Any) -> Any:
    if getattr(config, "use_cache", False):
        config.use_cache = False
    text = config.get_text_config()
    if getattr(text, "pad_token_id", None) is None and getattr(text, "vocab_size", None):
        # Classifiers of sequences look for the last token that is no padding.
        text.pad_token_id = 0
    return config


def _takes(model_class: Any, config: Any) -> bool:
    """Whether the model takes images of its configuration's size; windows and strides may not fit small ones."""
    try:
        with torch.device("meta"), torch.no_grad():
            shape = _shape(model_class, config, "quick")
            model_class(config)(pixel_values=torch.zeros(1, shape.channels, shape.pixels, shape.pixels))
    except Exception:
        return False
    return True


def _check_built(model_class: Any, config: Any, query: str) -> None:
    """UsageError where the overrides do not fit each other; built without its memory."""
    try:
        with torch.device("meta"):
            model_class(config)
    except Exception as error:
        raise UsageError(f"--workload: {model_class.__name__} cannot be built with {query[1:]}: {error}") from error


def _shape(model_class: Any, config: Any, size: str) -> Shape:
    labels = int(getattr(config, "num_labels", 2))
    if _takes_images(model_class):
        pixels = getattr(config, "image_size", PIXELS[size])
        if not isinstance(pixels, int):
            pixels = max(pixels)
        return Shape(pixels=pixels, channels=getattr(config, "num_channels", 3), labels=labels)
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    tokens = (
        TOKENS[size]
        if not isinstance(positions, int) or positions < 4
        else min(TOKENS[size], positions - POSITIONS_LEFT)
    )
    special = [text.pad_token_id, getattr(text, "bos_token_id", None), getattr(text, "eos_token_id", None)]
    reserved = tuple(number for number in special if isinstance(number, int) and number < MOST_RESERVED)
    shape = Shape(tokens=tokens, vocabulary=int(text.vocab_size), labels=labels, reserved=reserved)
    if not config.is_encoder_decoder or "decoder_input_ids" not in inspect.signature(model_class.forward).parameters:
        return shape
    return replace(shape, decoder=True, end=special[2] if special[2] in reserved else None)
