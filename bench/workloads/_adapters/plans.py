"""What a model of transformers is given and trained for, found by trying it without its memory.

That a model cannot be tried so is no reason against it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import torch
from torch import nn

from bench.data.files import sample_generator
from bench.errors import UsageError
from bench.structure import tensors_of
from bench.workloads._adapters.configs import one_line
from bench.workloads._adapters.inputs import Facts, Input
from bench.workloads._adapters.making import GRIDS, TABLE
from bench.workloads._adapters.packing import packed, packed_names
from bench.workloads._adapters.spec import OWN
from bench.workloads._adapters.stand_in import Task
from bench.workloads._adapters.tasks import tasks_of
from bench.workloads._adapters.trying import (
    Unseen,
    batch_of,
    batches,
    has_grid,
    samples_unlike,
    speaks_of_meta,
    tried,
    without_values,
)

MOST_LAYOUTS = 8
MASKS = ("input_features_mask", "pixel_attention_mask", "pixel_mask", "attention_mask", "image_sizes")
WRITTEN = ("decoder_input_ids", "future_values", "future_time_features")
"""What a decoder goes on from, in training."""
SIGHT = ("pixel_values",)
OF_GRIDS = (*GRIDS, "mm_token_type_ids")
"""What goes with images as patches."""
HEARING = ("input_features", "input_values")
# (the fields that hold an id, the input whose features it stands for, the method that makes them)
PLACES = (
    (("image_token_id", "image_token_index"), "pixel_values", "get_image_features"),
    (("audio_token_id", "audio_token_index"), "input_features", "get_audio_features"),
)
ALONGSIDE = ("attention_mask", "token_type_ids", "mm_token_type_ids")
"""As long as the ids."""
Inputs = Mapping[str, Input]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a model is given and trained for. tried: its forward and its loss fitted, on the meta device."""

    inputs: Inputs
    task: Task
    alone: bool = False
    tried: bool = True

    @property
    def text(self) -> str:
        """The sample and the objective, for a reader."""
        unsaid = "decoder_input_ids" if "input_ids" in self.inputs else ""  # as long as those that are read
        spoken = [item.text for name, item in self.inputs.items() if item.word and name != unsaid]
        return f"{', '.join(spoken)}{' (text alone)' if self.alone else ''}; {self.task.text}"


class Unfit(Exception):
    """The model does not take what is made for it."""


def plan(model: nn.Module | None, facts: Facts, origin: str = "", remedy: str = OWN) -> Plan:
    """The first of what may be given that the model takes; UsageError where it takes none.

    origin: where the configuration is from, if it is not the default one; remedy: what to do about it.
    """
    problems: dict[str, None] = {}
    for names in _choices(facts):
        try:
            inputs, output = _taken(model, facts, names)
            task = _task(output, inputs, facts)
        except Unfit as problem:
            problems[str(problem)] = None
            continue
        alone = not set(names) & {*SIGHT, *HEARING} and len(_modalities(facts)) > 1
        return Plan(inputs=inputs, task=task, alone=alone, tried=output is not None)
    raise UsageError(f"--workload: {facts.name} {f'{origin} ' if origin else ''}{', and '.join(problems)}; {remedy}")


def _modalities(facts: Facts) -> list[str]:
    """The inputs of the kinds (text, images, sound) that the configuration speaks of."""
    paths = [path for path, _ in facts.parts if path]
    kinds = {
        "input_ids": ("text",),
        **dict.fromkeys(SIGHT, ("vision", "image")),
        **dict.fromkeys(HEARING, ("audio", "speech")),
    }
    found = [name for name, words in kinds.items() if any(word in path for word in words for path in paths)]
    if "input_ids" in facts.main and facts.first("image_size", "input_size"):  # both in one configuration
        found = list(dict.fromkeys(["input_ids", *SIGHT, *found]))
    return [name for name in found if name in facts.takes]


def _choices(facts: Facts) -> list[list[str]]:
    """The names to give, best first: all that the model is for, then without sound, then text alone."""
    required = [key for key, parameter in facts.takes.items() if parameter.default is parameter.empty]
    unknown = [key for key in required if key not in TABLE]
    if unknown:
        raise UsageError(f"--workload: {facts.name} needs {', '.join(unknown)}, which is not made here; {OWN}")
    several = _modalities(facts)
    main = [key for key in facts.main if key in facts.takes and key in TABLE]
    if not main and not required:
        main = [key for key in TABLE if key in facts.takes][:1]
    names = list(dict.fromkeys([*main, *required, *(several if len(several) > 1 else [])]))
    if set(SIGHT) & set(names):
        names += [key for key in OF_GRIDS if key in facts.takes and key not in names]
    if getattr(facts.config, "is_encoder_decoder", False):
        names += [key for key in WRITTEN if key in facts.takes and key not in names]
    if facts.name.endswith("ForQuestionAnswering"):
        # Without these, three separators must be found in the text, or there is no table to answer from.
        table = ("token_type_ids",) * (facts.first("type_vocab_sizes", kind=(list, tuple)) is not None)
        names += [key for key in ("global_attention_mask", *table) if key in facts.takes and key not in names]
    if "noise" in facts.takes and facts.first("mask_ratio", kind=float) is not None and TABLE["noise"](facts):
        names.append("noise")
    if not names:
        raise UsageError(f"--workload: {facts.name} takes {', '.join(facts.takes)}, which is not made here; {OWN}")
    choices = [names]
    if len(several) > 1 and "input_ids" in several:
        for without in (HEARING, (*HEARING, *SIGHT, *OF_GRIDS)):
            fewer = [name for name in names if name not in without or name in required]
            if fewer not in choices:
                choices.append(fewer)
    return choices


def _taken(model: nn.Module | None, facts: Facts, names: Sequence[str]) -> tuple[Inputs, Any]:
    """Inputs that the model takes and what it returns for them, None where it could not be tried; Unfit if none."""
    names = list(names)
    while True:
        unseen: Inputs | None = None
        first: tuple[Inputs, Exception] | None = None
        for inputs in _layouts(facts, names):
            try:
                placed = _with_places(model, facts, inputs)
                return placed, tried(model, placed, samples_unlike(facts.config, placed))
            except Unseen:
                unseen = unseen or placed
            except Exception as error:
                first = first or (inputs, error)
        if unseen is not None:
            return unseen, None
        assert first is not None  # every layout was seen, and none was taken
        shapes, problem = first
        said = set(re.findall(r"\w+", str(problem).lower()))
        hints = MASKS if "nonetype" in said else TABLE.keys() & said
        more = [key for key in hints if key in facts.takes and key not in names]
        if not more:
            break
        names += more
    given = ", ".join(f"{name} {'x'.join(map(str, item.shape))}" for name, item in shapes.items())
    raise Unfit(f"does not take what is made for it ({given}): {type(problem).__name__}: {one_line(problem)}")


def _layouts(facts: Facts, names: Sequence[str]) -> Iterator[Inputs]:
    made = [TABLE[name](facts) for name in names]
    lacking = [name for name, layouts in zip(names, made, strict=True) if not layouts]
    if lacking:
        raise Unfit(f"has a configuration that does not tell the shape of {', '.join(lacking)}")
    for layout in islice(product(*made), MOST_LAYOUTS):
        yield dict(zip(names, layout, strict=True))


def _with_places(model: nn.Module | None, facts: Facts, inputs: Inputs) -> Inputs:
    """The ids with as many places for an image or sound as it has features, where the text holds places."""
    ids = inputs.get("input_ids")
    placed: list[tuple[int, int]] = []
    for fields, name, method in PLACES:
        number = facts.first(*fields)
        makers = [part for part in model.modules() if hasattr(part, method)] if model is not None else []
        if ids is not None and number is not None and name in inputs and makers:
            placed.append((number, _features_of_one(getattr(makers[0], method), name, inputs, facts)))
    if not placed or ids is None:
        return inputs
    shape = (*ids.shape[:-1], ids.shape[-1] + sum(count for _, count in placed))
    barred = tuple({*ids.barred, *(number for number, _ in placed)})
    longer = {name: replace(inputs[name], shape=shape) for name in ALONGSIDE if name in inputs}
    if "mm_token_type_ids" in longer:  # 1 at the places of images
        types = tuple((int(number == placed[0][0]), count) for number, count in placed)
        longer["mm_token_type_ids"] = replace(longer["mm_token_type_ids"], placed=types)
    return {**inputs, **longer, "input_ids": replace(ids, shape=shape, placed=tuple(placed), barred=barred)}


def _features_of_one(make: Callable[..., Any], name: str, inputs: Inputs, facts: Facts) -> int:
    """How many places one sample's image or sound takes in the text: its features by the width of the text."""
    width = getattr(facts.text_part(), "hidden_size", None)
    asked = inspect.signature(make).parameters
    given = {key: value for key, value in batches(inputs, 2).items() if key == name or key in asked}
    try:
        with torch.no_grad(), without_values(device="cpu" if has_grid(inputs) else "meta"):
            made = make(**packed(given, packed_names(inputs)))
    except Exception as error:
        if not speaks_of_meta(error):
            raise
        raise Unfit(f"does not tell how many features {name} have before it has computed them") from error
    features = tensors_of(getattr(made, "pooler_output", None)) or tensors_of(made)[:1]
    elements = sum(tensor.numel() for tensor in features)
    if not width or not elements or elements % (2 * width):
        raise Unfit(f"does not tell how many features {name} have")
    return int(elements // (2 * width))


def _task(output: Any, inputs: Inputs, facts: Facts) -> Task:
    """The first task that fits what the model returned; Unfit where none does."""
    for task in tasks_of(facts.name):
        found = task.assumed(inputs, facts) if output is None else task.fitted(output, inputs, facts)
        if found is not None and (output is None or _has_a_loss(found, output, inputs, facts)):
            return found
    raise Unfit("returns nothing that is floating, depends on its parameters and has the samples in dimension 0")


def _has_a_loss(task: Task, output: Any, inputs: Inputs, facts: Facts) -> bool:
    """Whether the task's loss of this output can be computed, and depends on parameters."""
    generator = sample_generator(0, 0)
    sample = task.targets({name: item.draw(generator) for name, item in inputs.items()}, generator)
    try:
        with without_values():
            total, _ = task.loss(output, batch_of(sample, samples_unlike(facts.config, inputs)))
    except Exception as error:
        return speaks_of_meta(error)
    return bool(total.requires_grad)
