"""Token sequences for masked language modelling: seeded synthetic ones, and the user's own text."""

from __future__ import annotations

import contextlib
import math
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from bench.data.base import Batch, DataSource
from bench.data.files import (
    cache_file,
    check_index,
    data_folders,
    file_state,
    row_count,
    sample_generator,
    save_rows,
)
from bench.errors import DataError, UsageError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLS_ID, SEP_ID, MASK_ID = 2, 3, 4
IGNORED = -100
"""Label of a position that does not count; torch's cross-entropy leaves it out by default."""
MASKED_SHARE = 0.15
MOST_TEXT_CHARACTERS = 32 * 2**20
"""Text read from the user's files: some 8 million tokens, prepared in about half a minute."""


class MaskedText(Dataset[Batch]):
    """Full sequences `[CLS] tokens [SEP]` of `tokens_per_sample` ids, with 15 % of the tokens masked.

    Which ones is drawn token by token from the seed and the index, at least one a sequence: their
    number differs between sequences, and is known without making the sequence (`masked_tokens`).
    Labels hold the true id where `[MASK]` stands, else `IGNORED`. Nothing is padded.
    """

    def __init__(self, tokens_per_sample: int, seed: int) -> None:
        self.tokens_per_sample, self.seed = tokens_per_sample, seed

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def tokens(self, index: int, generator: torch.Generator) -> Tensor:
        """The `tokens_per_sample - 2` ids between [CLS] and [SEP], int64."""

    def masked_tokens(self, index: int) -> int:
        """How many labels of this sequence count."""
        check_index(index, len(self))
        return int(self._mask(sample_generator(self.seed, index)).sum())

    def _mask(self, generator: torch.Generator) -> Tensor:
        scores = torch.rand(self.tokens_per_sample - 2, generator=generator)
        masked = scores < MASKED_SHARE
        masked[scores.argmin()] = True
        return masked

    def __getitem__(self, index: int) -> Batch:
        check_index(index, len(self))
        generator = sample_generator(self.seed, index)
        masked = self._mask(generator)  # the first draw, as in masked_tokens
        tokens = self.tokens(index, generator)
        labels = torch.full((self.tokens_per_sample,), IGNORED)
        labels[1:-1] = tokens.where(masked, IGNORED)
        input_ids = torch.empty_like(labels)
        input_ids[0], input_ids[-1] = CLS_ID, SEP_ID
        input_ids[1:-1] = tokens.where(~masked, MASK_ID)
        # No attention mask: nothing is padded, and with one, transformers asks the device on every
        # forward whether it is all ones, which would stall each step.
        return Batch(args=(), kwargs={"input_ids": input_ids}, targets=labels)


class SyntheticText(MaskedText):
    """Seeded ids whose frequency falls as 1 / rank, as that of words does (Zipf's law)."""

    def __init__(self, tokens_per_sample: int, vocabulary: int, length: int, seed: int) -> None:
        super().__init__(tokens_per_sample, seed)
        self.vocabulary, self.length = vocabulary, length

    def __len__(self) -> int:
        return self.length

    def tokens(self, index: int, generator: torch.Generator) -> Tensor:
        """`(words + 1) ** u` with uniform u in [0, 1) has density 1 / (x ln(words + 1)) on [1, words + 1)."""
        words = self.vocabulary - len(SPECIAL_TOKENS)
        uniform = torch.rand(self.tokens_per_sample - 2, generator=generator, dtype=torch.float64)
        rank = torch.exp(uniform * math.log(words + 1)).long().clamp(1, words)
        return rank + (len(SPECIAL_TOKENS) - 1)


class StoredText(MaskedText):
    """Sequences of a file that `prepare_text` wrote; memory-mapped, and pickled as its path."""

    def __init__(self, path: str, seed: int) -> None:
        self.path = path
        self._ids = np.load(path, mmap_mode="r")
        super().__init__(self._ids.shape[1] + 2, seed)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.seed)

    def __len__(self) -> int:
        return len(self._ids)

    def tokens(self, index: int, generator: torch.Generator) -> Tensor:
        return torch.from_numpy(self._ids[index].astype(np.int64))


def prepare_text(data_root: Path | None, cache: Path, tokens_per_sample: int, vocabulary: int) -> DataSource:
    """The user's text as ids of a WordPiece vocabulary that is trained on it, packed into sequences in `cache`.

    Looked for in `text/` below the root, then in the root, which may be one text file. UsageError where there
    is none; DataError where it is not UTF-8, or too short for one sequence.
    """
    root, paths = _find_text(data_root)
    key = (tokens_per_sample, vocabulary, [file_state(path) for path in paths])
    stored = cache_file(cache, f"text-{tokens_per_sample}x{vocabulary}", *key)
    if not stored.exists():
        rows = pack(_encode(_read_lines(paths), vocabulary), tokens_per_sample - 2)
        if not len(rows):
            raise DataError(f"the text in {root} makes less than one sequence of {tokens_per_sample} tokens; add text")
        save_rows(stored, rows.dtype, rows.shape, rows)
    count = row_count(stored)
    cut = sum(path.stat().st_size for path in paths) > MOST_TEXT_CHARACTERS
    amount = f"at most the first {MOST_TEXT_CHARACTERS:,} characters of " if cut else ""
    text = f"{count:,} sequences of {tokens_per_sample} tokens from {amount}{len(paths):,} text files of {root}"
    return DataSource(kind="real", text=text, num_samples=count, path=str(stored))


def pack(documents: Iterator[list[int]], length: int) -> NDArray[np.uint16]:
    """All ids one after the other, cut into rows of `length` (N, length); the rest is dropped."""
    ids = np.concatenate([np.zeros(0, dtype=np.uint16), *(np.array(part, dtype=np.uint16) for part in documents)])
    rows = len(ids) // length
    return ids[: rows * length].reshape(rows, length)


def _find_text(data_root: Path | None) -> tuple[Path, list[Path]]:
    wanted = "a UTF-8 text file, or a folder of .txt files"
    if data_root is None:
        raise UsageError(f"real text needs {wanted}; name it with --data-root, or use --data synthetic")
    for root in data_folders(data_root, "text"):
        paths = [root] if root.is_file() else sorted(path for path in root.rglob("*.txt") if path.is_file())
        if paths:
            return root, paths
    raise UsageError(
        f"no text in {data_root} or its folder text/: looked for {wanted}, e.g. {data_root}/text/book.txt; "
        "correct --data-root, or use --data synthetic"
    )


def _read_lines(paths: Sequence[Path]) -> list[str]:
    """Lines with something in them, up to `MOST_TEXT_CHARACTERS`."""
    lines: list[str] = []
    room = MOST_TEXT_CHARACTERS
    for path in paths:
        try:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    if room <= 0:
                        return lines
                    if line := line.strip()[:room]:
                        lines.append(line)
                        room -= len(line)
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text ({error}); convert or remove it") from error
    return lines


def _encode(lines: list[str], vocabulary: int) -> Iterator[list[int]]:
    """Ids of each line under a lower-case WordPiece vocabulary of at most `vocabulary` ids trained on all lines."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.trainers import WordPieceTrainer

    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=vocabulary, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    with _without_tokenizer_threads():
        tokenizer.train_from_iterator(lines, trainer)
        for start in range(0, len(lines), 1000):
            for encoding in tokenizer.encode_batch(lines[start : start + 1000], add_special_tokens=False):
                yield encoding.ids


@contextlib.contextmanager
def _without_tokenizer_threads() -> Iterator[None]:
    """The library's threads do not survive a fork, and it warns in every child forked after it used them."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
