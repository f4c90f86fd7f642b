"""What a transformers model is trained for here: inputs, targets and loss by the kind of its head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from bench.data.base import Batch
from bench.data.files import check_index, sample_generator
from bench.errors import UsageError
from bench.workloads._objectives import IGNORED, mean_loss_of_each_sample

MASKED_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a sample looks like. `reserved` ids (padding, ends) are never drawn; images are `pixels` squared.

    end: the id that closes a sequence, where a classifier of an encoder and decoder looks for it.
    """

    tokens: int = 0
    vocabulary: int = 0
    reserved: tuple[int, ...] = ()
    pixels: int = 0
    channels: int = 0
    labels: int = 2
    decoder: bool = False
    end: int | None = None

    @property
    def text(self) -> str:
        if self.pixels:
            return f"{self.channels}x{self.pixels}x{self.pixels} images"
        return f"{self.tokens} tokens, vocabulary {self.vocabulary:,}"


class Task:
    """How the classes whose name ends in `suffix` are trained. Every label that counts weighs the same in a sample."""

    suffixes: tuple[str, ...] = ()
    text = ""
    wide_logits = False

    def targets(self, inputs: dict[str, Tensor], shape: Shape, generator: torch.Generator) -> Any:
        """The targets of one sample; it may change `inputs`."""
        raise NotImplementedError

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return mean_loss_of_each_sample(output, targets)


class MaskedTokens(Task):
    suffixes = ("ForMaskedLM",)
    text = "masked tokens"
    wide_logits = True

    def targets(self, inputs: dict[str, Tensor], shape: Shape, generator: torch.Generator) -> Tensor:
        """The same number of masked tokens in every sample; an id of the vocabulary stands for the mask."""
        ids = inputs["input_ids"]
        chosen = torch.randperm(shape.tokens, generator=generator)[: max(1, round(MASKED_SHARE * shape.tokens))]
        labels = torch.full_like(ids, IGNORED)
        labels[chosen] = ids[chosen]
        inputs["input_ids"] = ids.index_fill(0, chosen, max(shape.reserved, default=-1) + 1)
        return labels


class NextToken(Task):
    suffixes = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    text = "next tokens"
    wide_logits = True

    def targets(self, inputs: dict[str, Tensor], shape: Shape, generator: torch.Generator) -> Tensor:
        ids = inputs["decoder_input_ids" if shape.decoder else "input_ids"]
        return torch.cat([ids[1:], torch.tensor([IGNORED])])


class Classes(Task):
    suffixes = ("ForSequenceClassification", "ForImageClassification")
    text = "one class a sample"

    def targets(self, inputs: dict[str, Tensor], shape: Shape, generator: torch.Generator) -> Tensor:
        if shape.end is not None:
            inputs["input_ids"][-1] = shape.end
        return torch.randint(shape.labels, (), generator=generator)


class TokenClasses(Task):
    suffixes = ("ForTokenClassification",)
    text = "one class a token"

    def targets(self, inputs: dict[str, Tensor], shape: Shape, generator: torch.Generator) -> Tensor:
        return torch.randint(shape.labels, (shape.tokens,), generator=generator)


class Spans(Task):
    suffixes = ("ForQuestionAnswering",)
    text = "first and last token of an answer"

    def targets(self, inputs: dict[str, Tensor], shape: Shape, generator: torch.Generator) -> Tensor:
        return torch.randint(shape.tokens, (2,), generator=generator).sort().values

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Mean of the cross-entropies of both ends, as transformers has it, summed over the samples."""
        first = functional.cross_entropy(output.start_logits, targets[:, 0], reduction="sum")
        last = functional.cross_entropy(output.end_logits, targets[:, 1], reduction="sum")
        return (first + last) / 2, first.new_full((), len(targets))


class StandIn(Task):
    """For a model without a head: there is no usual objective, so a stated one takes its place."""

    suffixes = ("Model",)
    text = "stand-in objective: one of two classes from the mean of the last hidden state"

    def targets(self, inputs: dict[str, Tensor], shape: Shape, generator: torch.Generator) -> Tensor:
        return torch.randint(2, (), generator=generator)

    def loss(self, output: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the averaged hidden state, its width taken as classes; (N, T, C) or (N, C, H, W)."""
        hidden = getattr(output, "last_hidden_state", None)
        if not isinstance(hidden, Tensor):
            raise UsageError(
                f"the stand-in objective needs last_hidden_state, which {type(output).__name__} does not have; write a "
                "workload of your own with its loss, see docs/workloads.md"
            )
        pooled = hidden.mean(dim=1) if hidden.dim() == 3 else hidden.flatten(2).mean(dim=2)
        return mean_loss_of_each_sample(pooled, targets)


TASKS: tuple[Task, ...] = (MaskedTokens(), NextToken(), Classes(), TokenClasses(), Spans(), StandIn())
SUFFIXES: Mapping[str, Task] = {suffix: task for task in TASKS for suffix in task.suffixes}


class TaskData(Dataset[Batch]):
    """`length` seeded samples: token ids drawn evenly, or normal noise as images, with the task's targets."""

    def __init__(self, task: Task, shape: Shape, length: int, seed: int) -> None:
        self.task, self.shape, self.length, self.seed = task, shape, length, seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        check_index(index, self.length)
        generator, shape = sample_generator(self.seed, index), self.shape
        if shape.pixels:
            image = torch.randn((shape.channels, shape.pixels, shape.pixels), generator=generator)
            inputs = {"pixel_values": image}
        else:
            # No attention mask: nothing is padded, and with one, transformers asks the device on every forward.
            inputs = {"input_ids": self._ids(generator)}
            if shape.decoder:
                inputs["decoder_input_ids"] = self._ids(generator)
        targets = self.task.targets(inputs, shape, generator)
        return Batch(args=(), kwargs=inputs, targets=targets)

    def _ids(self, generator: torch.Generator) -> Tensor:
        """Ids from just above the reserved ones: a padding id among them would change what is attended to."""
        first = max(self.shape.reserved, default=-1) + 1
        return torch.randint(first, self.shape.vocabulary, (self.shape.tokens,), generator=generator)
