"""A small BERT that fills in masked tokens: keyword inputs, a tied decoder, very wide logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from bench.data.base import Batch, DataSource
from bench.data.files import is_real
from bench.data.text import IGNORED, MaskedText, StoredText, SyntheticText, prepare_text
from bench.workloads.base import Size, Workload, register

SYNTHETIC_SEQUENCES = 1_000_000
VOCABULARY = {"standard": 30_522, "quick": 4_096}


@register
class BertSmall(Workload):
    """transformers' BertForMaskedLM: 4 layers of width 512 with 8 heads, decoder tied to the embeddings."""

    name = "bert_small"
    summary = "BERT of 4 layers and width 512, masked language modelling"
    parity_learning_rate = 0.05
    sizes = {
        "standard": Size(text="128 tokens, vocabulary 30,522", batch_per_device=32, tokens_per_sample=128),
        "quick": Size(text="64 tokens, vocabulary 4,096", global_batch_size=8, tokens_per_sample=64),
    }
    sample_word = "sequences"
    low_precision = True
    compare_loss_placements = True

    @property
    def vocabulary(self) -> int:
        """Number of token ids, and the width of the logits."""
        return VOCABULARY[self.size_name]

    @property
    def tokens_per_sample(self) -> int:
        tokens = self.size.tokens_per_sample
        assert tokens is not None  # both sizes state it
        return tokens

    def build(self) -> nn.Module:
        """Called as `model(input_ids=...)`; the output's `logits` are (N, tokens, vocabulary)."""
        from transformers import BertConfig, BertForMaskedLM  # seconds: only where a model is needed

        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=512,
            num_hidden_layers=4,
            num_attention_heads=8,
            intermediate_size=2048,
        )
        model: nn.Module = BertForMaskedLM(config)
        return model

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        return list(model.get_submodule("bert.encoder.layer").children())

    def prepare(self, data: str, data_root: Path | None, cache: Path) -> DataSource:
        if is_real(data):
            return prepare_text(data_root, cache, self.tokens_per_sample, self.vocabulary)
        text = f"seeded token ids, frequency falling as 1 / rank, {self.size.text}"
        return DataSource(kind="synthetic", text=text, num_samples=SYNTHETIC_SEQUENCES)

    def dataset(self, source: DataSource, seed: int) -> Dataset[Batch]:
        if source.path is not None:
            return StoredText(source.path, seed)
        return SyntheticText(self.tokens_per_sample, self.vocabulary, source.num_samples, seed)

    def loss(self, output: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the masked tokens; the weight is their number."""
        loss = nn.functional.cross_entropy(
            output.logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return loss, (targets != IGNORED).sum().to(loss.dtype)

    def weight(self, dataset: Dataset[Batch], indices: Iterable[int]) -> float:
        """Masked tokens of these sequences, without making them where the dataset knows."""
        if isinstance(dataset, MaskedText):
            return float(sum(dataset.masked_tokens(index) for index in indices))
        return float(sum(int((dataset[index].targets != IGNORED).sum()) for index in indices))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-4)
