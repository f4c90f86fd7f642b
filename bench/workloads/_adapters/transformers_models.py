"""Any model class of transformers: `transformers:BertForMaskedLM?num_hidden_layers=2`, or a folder with a config.

Built from a configuration alone, untrained: nothing is downloaded, and no code from a folder is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from bench.data.base import Batch, DataSource
from bench.data.files import check_index, sample_generator
from bench.errors import UsageError
from bench.workloads._adapters import configs
from bench.workloads._adapters.completing import completions
from bench.workloads._adapters.folders import from_folder, is_folder
from bench.workloads._adapters.inputs import Facts
from bench.workloads._adapters.overriding import overridden
from bench.workloads._adapters.packing import install_packing
from bench.workloads._adapters.plans import Plan, plan
from bench.workloads._adapters.spec import CHANGE, OWN, Spec
from bench.workloads._adapters.trying import built, hooked_parts, install_hooks
from bench.workloads._examples import SYNTHETIC_SAMPLES
from bench.workloads.base import Size, Workload

BATCH: Mapping[str, Mapping[str, int]] = {"standard": {"batch_per_device": 32}, "quick": {"global_batch_size": 8}}


class TransformersModel(Workload):
    """A model class of transformers with a configuration of its own."""

    model_class: ClassVar[Any]
    config_class: ClassVar[Any]
    settings: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Of the configuration, where they are not its defaults, at each size."""
    typed: ClassVar[Mapping[str, str]]
    plans: ClassVar[Mapping[str, Plan]]
    hooked: ClassVar[Sequence[str]]
    """Submodels whose hidden states another part reads, which transformers records by hooks."""
    low_precision = True

    def build(self) -> nn.Module:
        """Called with keywords alone; returns the model's own output class."""
        config = configs.prepared(self.config_class, self.settings[self.size_name], self.typed)
        model: nn.Module = self.model_class(config)
        install_hooks(model, self.hooked)
        install_packing(model, self.plans[self.size_name].inputs)
        return model.float()

    def prepare(self, data: str, data_root: Path | None, cache: Path) -> DataSource:
        super().prepare(data, data_root, cache)
        kinds = {item.kind for item in self.plans[self.size_name].inputs.values() if item.word}
        ids, noise = "token ids" * ("ids" in kinds), "normal noise" * bool(kinds - {"ids"})
        text = f"seeded {' and '.join(filter(None, (ids, noise)))}"
        return DataSource(kind="synthetic", text=text, num_samples=SYNTHETIC_SAMPLES)

    def dataset(self, source: DataSource, seed: int) -> Dataset[Batch]:
        return PlannedData(self.plans[self.size_name], source.num_samples, seed)

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return self.plans[self.size_name].task.loss(output, targets)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-4)


class PlannedData(Dataset[Batch]):
    """`length` seeded samples of a plan's inputs, with its task's targets.

    No attention mask among them: nothing is padded, and with one, transformers asks the device on every forward.
    """

    def __init__(self, plan: Plan, length: int, seed: int) -> None:
        self.plan, self.length, self.seed = plan, length, seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        check_index(index, self.length)
        generator = sample_generator(self.seed, index)
        inputs = {name: item.draw(generator) for name, item in self.plan.inputs.items()}
        targets = self.plan.task.targets(inputs, generator)
        return Batch(args=(), kwargs=inputs, targets=targets)


def adapt(spec: Spec) -> tuple[type[Workload], str]:
    """A workload class for a transformers model, and its address. UsageError names what there is.

    A class that cannot be measured as it is gets the overrides that it lacks, if some help.
    """
    if is_folder(spec.model):
        return _adapted(spec)
    try:
        found = _adapted(spec)
    except UsageError:
        better = _completed(spec)
        if better is None:
            raise
        return better
    if any(one.alone for one in found[0].plans.values()):
        better = _completed(spec)
        if better is not None and not any(one.alone for one in better[0].plans.values()):
            return better
    return found


def _completed(spec: Spec) -> tuple[type[TransformersModel], str] | None:
    """The same with overrides for what a configuration lacks; None where it lacks nothing, or that is not all."""
    model_class, model = configs.model_class(spec.model), None
    with suppress(UsageError):
        config = configs.prepared(
            model_class.config_class, overridden(model_class.config_class, {}, spec), spec.overrides
        )
        with suppress(UsageError):
            model = built(model_class, config)
        more = completions(config, model, spec.overrides)
        if more:
            return _adapted(replace(spec, overrides=dict(sorted({**more, **spec.overrides}.items()))))
    return None


def _adapted(spec: Spec) -> tuple[type[TransformersModel], str]:
    file: Path | None = None
    if is_folder(spec.model):
        file, model_class, config_class, stored = from_folder(spec.model)
        name, address = f"{file.parent.name}{spec.query}", f"transformers:{file.parent}{spec.suffix}"
    else:
        model_class = configs.model_class(spec.model)
        config_class, stored = model_class.config_class, {}
        name, address = f"transformers:{spec.model}{spec.query}", f"transformers:{spec.model}{spec.suffix}"
    settings, plans, hooked = _at_sizes(model_class, config_class, stored, spec, file)
    declared = {
        "name": spec.name or name,
        "__doc__": f"transformers' {model_class.__name__}{spec.query}, untrained; {plans['standard'].task.text}",
        "__module__": __name__,
        "model_class": model_class,
        "config_class": config_class,
        "settings": settings,
        "typed": spec.overrides,
        "plans": plans,
        "hooked": hooked,
        "sizes": {
            size: Size(text=one.text, tokens_per_sample=_tokens(one), **BATCH[size]) for size, one in plans.items()
        },
        "sample_word": _sample_word(plans["standard"]),
        "compare_loss_placements": plans["standard"].task.wide_logits,
    }
    return type(model_class.__name__, (TransformersModel,), declared), address


def _at_sizes(
    model_class: Any, config_class: Any, stored: Mapping[str, Any], spec: Spec, file: Path | None
) -> tuple[dict[str, Mapping[str, Any]], dict[str, Plan], list[str]]:
    """Settings and plan at each size, and the submodels with hooks.

    What is smaller at size quick is so only where the model takes it.
    """
    settings = overridden(config_class, stored, spec, f"with {file}" if file else "")
    origin, remedy = _origin(spec, file)
    config = configs.prepared(config_class, settings, spec.overrides, origin)
    model = built(model_class, config, origin, remedy)
    standard = plan(model, Facts(model_class, config, "standard"), origin, remedy)
    less = configs.smaller(config, settings, stored, spec.overrides)
    if less is not None:
        with suppress(UsageError):  # windows and strides may not fit small images
            small = configs.prepared(config_class, less, spec.overrides)
            quick = plan(built(model_class, small, origin), Facts(model_class, small, "quick"))
            if quick.inputs.keys() == standard.inputs.keys() and quick.tried == standard.tried:
                return (
                    {"standard": settings, "quick": less},
                    {"standard": standard, "quick": quick},
                    hooked_parts(model),
                )
    quick = plan(model, Facts(model_class, config, "quick"), origin, remedy)
    return {"standard": settings, "quick": settings}, {"standard": standard, "quick": quick}, hooked_parts(model)


def _origin(spec: Spec, file: Path | None) -> tuple[str, str]:
    """Where a configuration is from, empty for its defaults, and what helps where it does not fit."""
    given = [*([str(file)] if file else []), *([spec.query[1:]] if spec.overrides else [])]
    remedy = CHANGE if spec.overrides else f"correct that file, or {OWN}" if file else OWN
    return f"with {' and '.join(given)}" if given else "", remedy


def _tokens(plan: Plan) -> int | None:
    ids = plan.inputs.get("input_ids")
    return ids.shape[-1] if ids is not None else None


def _sample_word(plan: Plan) -> str:
    if set(plan.inputs) == {"pixel_values"}:
        return "images"
    return "sequences" if all(item.kind == "ids" for item in plan.inputs.values() if item.word) else "samples"
