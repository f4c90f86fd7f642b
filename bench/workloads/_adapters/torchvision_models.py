"""Any classifier of torchvision: `torchvision:resnet18?num_classes=10`. Untrained; images of seeded noise."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.data import Dataset

from bench.data.base import Batch, DataSource
from bench.data.images import NoiseImages
from bench.errors import UsageError
from bench.workloads._adapters.configs import one_line
from bench.workloads._adapters.spec import CHANGE, OWN, Spec, literal, near
from bench.workloads._adapters.trying import speaks_of_meta
from bench.workloads._examples import SYNTHETIC_SAMPLES
from bench.workloads._objectives import mean_loss_of_each_sample
from bench.workloads.base import Size, Workload

QUICK_PIXELS = 64
IMAGE_SIZE = "image_size"
DOWNLOADS = ("weights", "progress")
# Heads beside the main one are no part of the usual training step, and their outputs of no default loss.
WITHOUT_EXTRAS: Mapping[str, Mapping[str, Any]] = {
    "inception_v3": {"aux_logits": False, "init_weights": True},
    "googlenet": {"aux_logits": False, "init_weights": True},
}


class TorchvisionModel(Workload):
    """A classifier from `torchvision.models`, by the name that `get_model` knows."""

    model_name: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]]
    pixels: ClassVar[Mapping[str, int]]
    takes_image_size: ClassVar[bool]
    classes: ClassVar[int]
    sample_word = "images"
    low_precision = True

    def build(self) -> nn.Module:
        """Maps images (N, 3, pixels, pixels) to logits (N, classes)."""
        size = {IMAGE_SIZE: self.pixels[self.size_name]} if self.takes_image_size else {}
        return _build(self.model_name, {**self.settings, **size})

    def prepare(self, data: str, data_root: Path | None, cache: Path) -> DataSource:
        super().prepare(data, data_root, cache)
        shape = self.size.text.removesuffix(" images")
        return DataSource(kind="synthetic", text=f"seeded normal noise, {shape}", num_samples=SYNTHETIC_SAMPLES)

    def dataset(self, source: DataSource, seed: int) -> Dataset[Batch]:
        pixels = self.pixels[self.size_name]
        return NoiseImages((3, pixels, pixels), self.classes, source.num_samples, seed)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adapt(spec: Spec) -> tuple[type[Workload], str]:
    """A workload class for a torchvision model, and its address. UsageError names what there is."""
    from torchvision import models

    known = models.list_models(module=models)
    if spec.model not in known:
        raise UsageError(
            f"--workload: torchvision has no classifier {spec.model!r}; {near(spec.model, known)} "
            "(all: python -c 'from torchvision import models; print(models.list_models(module=models))')"
        )
    settings = {**WITHOUT_EXTRAS.get(spec.model, {}), **{key: literal(text) for key, text in spec.overrides.items()}}
    for key in DOWNLOADS:
        if key in settings:
            raise UsageError(f"--workload: {key} cannot be set; models are measured untrained, nothing is downloaded")
    given = settings.pop(IMAGE_SIZE, None)
    if given is not None and (type(given) is not int or given < 1):
        raise UsageError(f"--workload: {IMAGE_SIZE}={given} is no number of pixels")
    classes = settings.get("num_classes", 1000)
    if isinstance(classes, int) and classes < 2:
        raise UsageError(f"--workload: num_classes={classes}: cross-entropy needs 2 classes or more")
    model = _checked(spec, settings)
    takes_image_size = IMAGE_SIZE in inspect.signature(type(model).__init__).parameters
    pixels = _tried(spec, settings, _pixels(spec.model, model, given, takes_image_size), takes_image_size)
    declared = {
        "name": spec.name or f"torchvision:{spec.model}{spec.query}",
        "__doc__": f"torchvision's {spec.model}{spec.query}, untrained",
        "__module__": __name__,
        "model_name": spec.model,
        "settings": settings,
        "pixels": pixels,
        "takes_image_size": takes_image_size,
        "classes": int(classes),
        "sizes": {
            "standard": Size(text="3x{0}x{0} images".format(pixels["standard"]), batch_per_device=64),
            "quick": Size(text="3x{0}x{0} images".format(pixels["quick"]), global_batch_size=8),
        },
    }
    return type(spec.model, (TorchvisionModel,), declared), f"torchvision:{spec.model}{spec.suffix}"


def _build(name: str, settings: Mapping[str, Any]) -> nn.Module:
    from torchvision import models

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # how torchvision will initialise some day
        model: nn.Module = models.get_model(name, weights=None, **settings)
    return model


def _checked(spec: Spec, settings: Mapping[str, Any]) -> nn.Module:
    """The model without its memory, which shows that the overrides fit."""
    try:
        with torch.device("meta"):
            return _build(spec.model, settings)
    except NotImplementedError:  # some set their weights in a way that needs memory
        return _build(spec.model, settings)
    except Exception as error:
        raise UsageError(
            f"--workload: torchvision's {spec.model} cannot be built with {spec.query[1:]}: {error}; it takes: "
            f"{', '.join([*_typable(spec.model), IMAGE_SIZE])}"
        ) from error


def _typable(name: str) -> list[str]:
    """The parameters of a model that can be typed: numbers, texts and lists that its own function does not fix."""
    extras = WITHOUT_EXTRAS.get(name, {})
    found = []
    for key, parameter in inspect.signature(type(_build(name, extras)).__init__).parameters.items():
        unset = parameter.default is None and "Callable" not in str(parameter.annotation)
        if key == IMAGE_SIZE or not (unset or isinstance(parameter.default, (bool, int, float, str, list, tuple))):
            continue
        with suppress(TypeError), torch.device("meta"):  # given twice: by the function too
            with suppress(NotImplementedError):
                _build(name, {**extras, key: parameter.default})
            found.append(key)
    return found


def _tried(
    spec: Spec, settings: Mapping[str, Any], pixels: Mapping[str, int], takes_image_size: bool
) -> Mapping[str, int]:
    """The pixels that the model trains on: quick is as standard where fewer are too few; UsageError if none are."""
    problems = {
        side: _problem(spec.model, {**settings, **({IMAGE_SIZE: side} if takes_image_size else {})}, side)
        for side in set(pixels.values())
    }
    side = pixels["standard"]
    if problem := problems[side]:
        given = f" with {spec.query[1:]}" if spec.query else ""
        raise UsageError(
            f"--workload: torchvision's {spec.model}{given} does not train on images of {side}x{side}: "
            f"{one_line(problem)}; {CHANGE if spec.query else OWN}"
        )
    if problems[pixels["quick"]]:  # some heads want larger images than the model alone
        pixels = {**pixels, "quick": pixels["standard"]}
    return pixels


def _problem(name: str, settings: Mapping[str, Any], side: int) -> Exception | None:
    """What a forward and loss of images of this size fail with, tried without memory; None where they do not."""
    try:
        with torch.device("meta"):
            images, labels = torch.empty(2, 3, side, side), torch.zeros(2, dtype=torch.long)
            mean_loss_of_each_sample(_build(name, settings)(images), labels)
    except Exception as error:
        return None if speaks_of_meta(error) else error
    return None


def _pixels(name: str, model: nn.Module, given: int | None, adjustable: bool) -> Mapping[str, int]:
    """Height and width at each size: what the trained weights were made for, and the least from 64 on that works."""
    if given is not None:
        return {"standard": given, "quick": given}
    from torchvision import models

    weights = models.get_model_weights(name).DEFAULT
    least = max(weights.meta.get("min_size", (QUICK_PIXELS,)))
    patch = getattr(model, "patch_size", None)
    quick = -(-QUICK_PIXELS // patch) * patch if adjustable and isinstance(patch, int) else max(QUICK_PIXELS, least)
    standard = int(weights.transforms().crop_size[0])
    return {"standard": max(standard, least), "quick": quick}
