"""Synthetic token ids, masking, and the user's own text."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from bench.data import text as text_data
from bench.data.text import (
    CLS_ID,
    IGNORED,
    MASK_ID,
    SEP_ID,
    SPECIAL_TOKENS,
    MaskedText,
    StoredText,
    SyntheticText,
    pack,
    prepare_text,
)
from bench.errors import DataError, UsageError

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "near", "Grünfeld", "and", "17", "towns"]


def write_text(path: Path, lines: int = 60) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(" ".join(WORDS[i % 7 :] + WORDS[: i % 7]) for i in range(lines)), encoding="utf-8")
    return path


def stored(root: Path, cache: Path, tokens: int = 16, vocabulary: int = 200) -> StoredText:
    return StoredText(str(prepare_text(root, cache, tokens, vocabulary).path), seed=0)


def check_item(dataset: MaskedText, index: int) -> None:
    item = dataset[index]
    ids, labels = item.kwargs["input_ids"], item.targets
    counted = labels != IGNORED
    assert item.args == () and list(item.kwargs) == ["input_ids"]
    assert ids.shape == labels.shape == (dataset.tokens_per_sample,)
    assert ids.dtype == labels.dtype == torch.int64
    assert (ids[0], ids[-1]) == (CLS_ID, SEP_ID)
    assert ((ids == MASK_ID) == counted).all() and (labels[counted] != MASK_ID).all()
    assert int(counted.sum()) == dataset.masked_tokens(index) >= 1


def test_synthetic_sequences() -> None:
    dataset = SyntheticText(128, 30_522, 1000, seed=3)
    for index in range(100):
        check_item(dataset, index)
    counts = [dataset.masked_tokens(index) for index in range(200)]
    assert len(set(counts)) > 10 and 0.14 < sum(counts) / (200 * 126) < 0.16


def test_short_sequences_have_a_masked_token() -> None:
    dataset = SyntheticText(4, 100, 300, seed=0)  # 0.85 ** 2: none drawn in 72 of 100
    assert {dataset.masked_tokens(index) for index in range(300)} == {1, 2}
    for index in range(20):
        check_item(dataset, index)


def test_frequency_falls_as_one_over_rank() -> None:
    dataset = SyntheticText(512, 30_522, 200, seed=0)
    ids = torch.cat([dataset.tokens(index, torch.Generator().manual_seed(index)) for index in range(200)])
    assert ids.min() == len(SPECIAL_TOKENS) and ids.max() < 30_522 and ids.max() > 30_000
    share = torch.bincount(ids)[len(SPECIAL_TOKENS) :] / len(ids)
    # ln((k + 1) / k) / ln(30518) is the share of rank k: 6.71 %, 3.93 % and 0.92 % by hand
    torch.testing.assert_close(share[[0, 1, 9]], torch.tensor([0.0671, 0.0393, 0.0092]), atol=0.003, rtol=0)


def test_sequences_depend_on_seed_and_index_alone() -> None:
    one, other = (SyntheticText(32, 500, 100, seed=5) for _ in range(2))
    other.masked_tokens(4)
    assert one[4].targets.equal(other[4].targets)
    assert one[4].kwargs["input_ids"].equal(other[4].kwargs["input_ids"])
    assert not one[4].kwargs["input_ids"].equal(one[5].kwargs["input_ids"])
    assert not one[4].targets.equal(SyntheticText(32, 500, 100, seed=6)[4].targets)
    with pytest.raises(IndexError, match="sample 100 of 100"):
        one.masked_tokens(100)


def test_own_text(tmp_path: Path) -> None:
    write_text(tmp_path / "root" / "text" / "deep" / "a.txt")
    write_text(tmp_path / "root" / "text" / "b.txt")
    source = prepare_text(tmp_path / "root", tmp_path / "cache", 16, 200)
    assert source.kind == "real" and source.num_samples > 100
    assert source.text == f"{source.num_samples} sequences of 16 tokens from 2 text files of {tmp_path / 'root/text'}"
    dataset = StoredText(str(source.path), seed=0)
    assert len(dataset) == source.num_samples
    for index in range(30):
        check_item(dataset, index)
        labels, ids = dataset[index].targets, dataset[index].kwargs["input_ids"]
        assert int(max(labels.max(), ids.max())) < 200
    assert len({tuple(row) for row in dataset._ids.tolist()}) > 5
    stream = pickle.dumps(dataset)
    assert len(stream) < 1000 and pickle.loads(stream)[3].targets.equal(dataset[3].targets)


def test_own_text_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "book.text")
    source = prepare_text(path, tmp_path / "cache", 16, 200)
    with monkeypatch.context() as patch:
        patch.setattr(text_data, "_read_lines", lambda _: pytest.fail("read again"))
        assert prepare_text(path, tmp_path / "cache", 16, 200) == source
    write_text(path, lines=90)
    changed = prepare_text(path, tmp_path / "cache", 16, 200)
    assert changed.path != source.path and changed.num_samples > source.num_samples


def test_tokenizer_threads_are_off_only_while_preparing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "book.txt")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    stored(path, tmp_path / "a")
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    stored(path, tmp_path / "b")
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


def test_text_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "book.txt")
    monkeypatch.setattr(text_data, "MOST_TEXT_CHARACTERS", 100)
    assert sum(map(len, text_data._read_lines([path, path]))) == 100
    monkeypatch.setattr(text_data, "MOST_TEXT_CHARACTERS", 1000)
    text = prepare_text(path, tmp_path / "cache", 16, 200).text
    assert f"from at most the first 1,000 characters of 1 text files of {path}" in text


def test_pack_cuts_rows_and_drops_the_rest() -> None:
    assert pack(iter([[1, 2], [], [3, 4, 5], [6, 7]]), 3).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert pack(iter([]), 3).shape == (0, 3)


def test_missing_text_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a UTF-8 text file, or a folder of .txt files; name it with --data-root"):
        prepare_text(None, tmp_path, 16, 200)
    with pytest.raises(UsageError, match=f"no text in {tmp_path} or its folder text/.*correct --data-root"):
        prepare_text(tmp_path, tmp_path, 16, 200)


def test_unusable_text(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("one two")
    with pytest.raises(DataError, match="less than one sequence of 16 tokens; add text"):
        prepare_text(tmp_path, tmp_path / "cache", 16, 200)
    (tmp_path / "short.txt").write_bytes(b"\xff\xfe\x00 latin")
    with pytest.raises(DataError, match="short.txt is not UTF-8 text.*convert or remove it"):
        prepare_text(tmp_path, tmp_path / "cache", 16, 200)
