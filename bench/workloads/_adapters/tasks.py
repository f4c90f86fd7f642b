"""What a transformers model is trained for here: targets and loss by the kind of its head, or a stand-in.

A task first looks at what the model gives (`fitted`), which settles the shapes of its targets. Where that could not
be seen, `assumed` goes by the inputs and the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.workloads._adapters.inputs import Facts, Input
from bench.workloads._adapters.stand_in import StandIn, Task
from bench.workloads._objectives import IGNORED, mean_loss_of_each_sample

MASKED_SHARE = 0.15
FRAMES_A_LABEL = 4
"""Frames of sound for each label that is spelled: two frames a label would be the least."""


def _says(output: Any, ids: Input) -> bool:
    """Whether there are logits for each of the ids, and each that may come."""
    logits = getattr(output, "logits", output)
    return isinstance(logits, Tensor) and tuple(logits.shape[1:-1]) == ids.shape and logits.shape[-1] >= ids.high


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTokens(Task):
    text = "masked tokens"
    wide_logits = True
    ids: str = "input_ids"
    mask: int = 0

    def fitted(self, output: Any, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        found = self.assumed(inputs, facts)
        return found if found is not None and _says(output, inputs[found.ids]) else None

    def assumed(self, inputs: Mapping[str, Input], facts: Facts) -> MaskedTokens | None:
        ids = next((name for name, item in inputs.items() if item.kind == "ids"), None)
        return replace(self, ids=ids, mask=inputs[ids].low) if ids else None

    def targets(self, inputs: dict[str, Tensor], generator: torch.Generator) -> Tensor:
        """The same number of masked tokens in every sample; an id of the vocabulary stands for the mask."""
        ids = inputs[self.ids]
        chosen = torch.randperm(len(ids), generator=generator)[: max(1, round(MASKED_SHARE * len(ids)))]
        labels = torch.full_like(ids, IGNORED)
        labels[chosen] = ids[chosen]
        inputs[self.ids] = ids.index_fill(0, chosen, self.mask)
        return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class NextToken(Task):
    text = "next tokens"
    wide_logits = True
    ids: str = "input_ids"
    ignored: tuple[int, ...] = ()
    """Ids that stand for an image or sound: there is nothing to say."""

    def fitted(self, output: Any, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        found = self.assumed(inputs, facts)
        return found if found is not None and _says(output, inputs[found.ids]) else None

    def assumed(self, inputs: Mapping[str, Input], facts: Facts) -> NextToken | None:
        ids = next((name for name in ("decoder_input_ids", "input_ids") if name in inputs), None)
        if ids is None or len(inputs[ids].shape) != 1:
            return None
        return replace(self, ids=ids, ignored=tuple(number for number, _ in inputs[ids].placed))

    def targets(self, inputs: dict[str, Tensor], generator: torch.Generator) -> Tensor:
        following = torch.cat([inputs[self.ids][1:], torch.tensor([IGNORED])])
        for placed in self.ignored:
            following[following == placed] = IGNORED
        return following


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes(Task):
    """One class of `classes` at each place of `shape`: `places` of them are dimensions of the logits.

    With one class, whose cross-entropy is always 0, a number at each place, by squared error.
    """

    what: str = "a sample"
    places: int = 0
    shape: tuple[int, ...] = ()
    classes: int = 2
    end: int | None = None
    """The id that closes a sequence, where a classifier of an encoder and decoder looks for it."""

    @property
    def text(self) -> str:  # type: ignore[override]
        return f"one number {self.what}, by squared error" if self.classes == 1 else f"one class {self.what}"

    def fitted(self, output: Any, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() != 2 + self.places:
            return None
        maps = self.places == 2  # the classes are in dimension 1 then
        shape = logits.shape[2:] if maps else logits.shape[1:-1]
        return replace(self, shape=tuple(shape), classes=logits.shape[1 if maps else -1], end=_end(inputs, facts))

    def assumed(self, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        if self.places > 1 or (self.places and "input_ids" not in inputs):
            return None
        shape = inputs["input_ids"].shape[-1:] if self.places else ()
        return replace(self, shape=shape, classes=facts.labels(), end=_end(inputs, facts))

    def targets(self, inputs: dict[str, Tensor], generator: torch.Generator) -> Tensor:
        if self.end is not None:
            inputs["input_ids"][..., -1] = self.end
        if self.classes == 1:
            return torch.randn(self.shape, generator=generator)
        return torch.randint(self.classes, self.shape, generator=generator)

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        if self.classes != 1:
            return mean_loss_of_each_sample(output, targets)
        return mean_loss_of_each_sample(output.logits.squeeze(1 if self.places > 1 else -1), targets)


def _end(inputs: Mapping[str, Input], facts: Facts) -> int | None:
    """The id that ends a sequence, for models that look for it; one among the ids drawn would not be the only one."""
    if "decoder_input_ids" not in inputs or "input_ids" not in inputs:
        return None
    end = getattr(facts.text_part(), "eos_token_id", None)
    return end if isinstance(end, int) and end < inputs["input_ids"].low else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans(Task):
    text = "first and last token of an answer"
    tokens: int = 0

    def fitted(self, output: Any, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        logits = getattr(output, "start_logits", None)
        return replace(self, tokens=logits.shape[1]) if isinstance(logits, Tensor) and logits.dim() == 2 else None

    def assumed(self, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        return None  # some give the best ends alone

    def targets(self, inputs: dict[str, Tensor], generator: torch.Generator) -> Tensor:
        return torch.randint(self.tokens, (2,), generator=generator).sort().values

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Mean of the cross-entropies of both ends, as transformers has it, summed over the samples."""
        first = functional.cross_entropy(output.start_logits, targets[:, 0], reduction="sum")
        last = functional.cross_entropy(output.end_logits, targets[:, 1], reduction="sum")
        return (first + last) / 2, first.new_full((), len(targets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling(Task):
    """Labels in the order of the frames, which frames being left open: CTC."""

    text = "labels of sound, by CTC"
    frames: int = 2 * FRAMES_A_LABEL
    classes: int = 2
    blank: int = 0

    def fitted(self, output: Any, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[1] < FRAMES_A_LABEL:
            return None
        blank = getattr(facts.config, "pad_token_id", None) or 0
        return replace(self, frames=logits.shape[1], classes=logits.shape[2], blank=blank)

    def assumed(self, inputs: Mapping[str, Input], facts: Facts) -> Task | None:
        return None  # how many frames there are is not known

    def targets(self, inputs: dict[str, Tensor], generator: torch.Generator) -> Tensor:
        """Labels, each of any class but the blank."""
        labels = torch.randint(self.classes - 1, (self.frames // FRAMES_A_LABEL,), generator=generator)
        return labels + (labels >= self.blank)

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """The CTC loss of each sample over its labels, summed over the samples; every frame counts."""
        chances = functional.log_softmax(output.logits, dim=-1).transpose(0, 1)
        frames, samples, _ = chances.shape
        # As numbers: for tensors, the device would be asked.
        heard: Any = (frames,) * samples
        spelled: Any = (targets.shape[1],) * samples
        losses = functional.ctc_loss(chances, targets, heard, spelled, blank=self.blank, reduction="none")
        return losses.sum() / targets.shape[1], losses.new_full((), samples)


SUFFIXES: Mapping[str, Task] = {
    "ForMaskedLM": MaskedTokens(),
    "ForCausalLM": NextToken(),
    "LMHeadModel": NextToken(),
    "ForConditionalGeneration": NextToken(),
    "ForSpeechToText": NextToken(),
    "ForTextToText": NextToken(),
    "ForSequenceClassification": Classes(),
    "ForImageClassification": Classes(),
    "ForAudioClassification": Classes(),
    "ForVideoClassification": Classes(),
    "ForNextSentencePrediction": Classes(),
    "ForMultipleChoice": Classes(),
    "ForTokenClassification": Classes(what="a token", places=1),
    "ForAudioFrameClassification": Classes(what="a frame", places=1),
    "ForSemanticSegmentation": Classes(what="a point of the output's map", places=2),
    "ForQuestionAnswering": Spans(),
    "ForQuestionAnsweringSimple": Spans(),
    "ForCTC": Spelling(),
}
"""The task of the classes whose name ends so; of every other, and where it does not fit, the stand-in."""


def tasks_of(name: str) -> list[Task]:
    """What a class may be trained for, best first."""
    return [*(task for suffix, task in SUFFIXES.items() if name.endswith(suffix)), StandIn()]
