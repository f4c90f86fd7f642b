"""What one sample of a model of transformers is: an input for each name that its forward needs.

The shapes come from the configuration. Where a name can mean several layouts (`input_features` are frames by bins or
bins by frames), all are listed, and the first that the model takes is used.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bench.workloads._adapters.configs import field, parts, text_of

TOKENS = {"standard": 128, "quick": 64}
PIXELS = {"standard": 224, "quick": 64}
SOUND = {"standard": 16_000, "quick": 4_000}
"""Values of a waveform: 1 s and 0.25 s at the usual 16 kHz."""
LARGER = (224, 640)
"""Pixels that are tried where those of the configuration, or of size quick, are too few."""
FRAMES = {"standard": 256, "quick": 64}
"""Of sound that is given as features."""
# RoBERTa and its kin count positions from one above the padding id.
POSITIONS_LEFT = 2
MOST_RESERVED = 8
"""Padding and the like have the first ids; others are stepped over one by one."""
CODE_POINTS = 0x110000
"""Ids of a model that reads characters, and hashes them."""
CHOICES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of one sample.

    kind: `ids` (from low up to high, but none of `barred`), `noise`, `ones`, `zeros`, `boxes` (whole numbers from 0 to
    1000 as left, top, right, bottom), `half` (True at half of the places). word: what it is called to a reader, empty
    for what goes without saying.
    """

    kind: str
    shape: tuple[int, ...]
    word: str = ""
    low: int = 0
    high: int = 0
    barred: tuple[int, ...] = ()
    placed: tuple[tuple[int, int], ...] = ()
    """(id, how often): ids that stand for an image or sound, from the second place on."""
    dtype: torch.dtype = torch.float32

    @property
    def text(self) -> str:
        if self.kind == "ids":
            return f"{self.shape[-1]} tokens, vocabulary {self.high:,}"
        return f"{'x'.join(str(length) for length in self.shape)} {self.word}"

    def draw(self, generator: torch.Generator) -> Tensor:
        """A sample of it."""
        if self.kind == "ids":
            return self._ids(generator)
        if self.kind == "noise":
            return torch.randn(self.shape, generator=generator)
        if self.kind == "boxes":
            corners = torch.randint(0, 1001, (*self.shape[:-1], 2, 2), generator=generator)
            return corners.sort(dim=-2).values.flatten(-2)
        if self.kind == "half":
            order = torch.randperm(math.prod(self.shape), generator=generator)
            return (order < len(order) // 2).reshape(self.shape)
        return torch.full(self.shape, 1 if self.kind == "ones" else 0, dtype=self.dtype)

    def _ids(self, generator: torch.Generator) -> Tensor:
        """Ids from just above the reserved ones: a padding id among them would change what is attended to."""
        ids = torch.randint(self.low, self.high, self.shape, generator=generator)
        for barred in self.barred:
            ids[ids == barred] = self.low
        start = 1
        for placed, count in self.placed:
            ids[..., start : start + count] = placed
            start += count
        return ids


class Facts:
    """What inputs depend on: the forward's names, and the numbers in a configuration at a size."""

    def __init__(self, model_class: Any, config: Any, size: str) -> None:
        self.name: str = model_class.__name__
        self.config, self.size = config, size
        self.takes = {
            key: parameter
            for key, parameter in inspect.signature(model_class.forward).parameters.items()
            if key != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        main = model_class.main_input_name
        self.main = [main] if isinstance(main, str) else list(main)

    @cached_property
    def parts(self) -> list[tuple[str, Any]]:
        return list(parts(self.config))

    def first(self, *names: str, near: Iterable[str] = (), kind: Any = int) -> Any:
        """The first of these fields that holds a `kind`, in the parts whose path speaks of `near` and then in all."""
        nearest = [part for path, part in self.parts if any(word in path for word in near)]
        for part in (*nearest, *(part for _, part in self.parts)):
            for name in names:
                value = field(part, name)
                if isinstance(value, kind) and not isinstance(value, bool):
                    return value
        return None

    def text_part(self, *, decoder: bool = False) -> Any:
        """The configuration of the text that is read, or written, or the first that has a vocabulary."""
        text = text_of(self.config, decoder=decoder)
        if getattr(text, "vocab_size", None):
            return text
        return next((part for _, part in self.parts if getattr(part, "vocab_size", None)), text)

    def labels(self) -> int:
        return int(getattr(self.config, "num_labels", None) or 2)


def reserved(config: Any) -> list[int]:
    """Ids that mean something of their own: padding, ends, the places of images."""
    numbers = [
        value
        for _, part in parts(config)
        for key, value in vars(part).items()
        if key.endswith(("_token_id", "_token_index", "_token")) and isinstance(value, int)
    ]
    return sorted({number for number in numbers if number >= 0})


def _ids(facts: Facts, *, decoder: bool = False, of: str = "", shape: tuple[int, ...] = ()) -> list[Input]:
    text = next((part for path, part in facts.parts if of and path == of), facts.text_part(decoder=decoder))
    vocabulary = getattr(text, "vocab_size", None)
    if vocabulary is None and getattr(text, "num_hash_buckets", None):
        vocabulary = CODE_POINTS
    if not isinstance(vocabulary, int) or vocabulary < 2:
        return []
    positions = getattr(text, "max_position_embeddings", None)
    tokens = TOKENS[facts.size]
    if isinstance(positions, int) and positions >= 4:
        tokens = min(tokens, positions - POSITIONS_LEFT)
    special = [getattr(text, key, None) for key in ("pad_token_id", "bos_token_id", "eos_token_id")]
    low = max((number for number in special if isinstance(number, int) and number < MOST_RESERVED), default=-1) + 1
    if low >= vocabulary:
        low = 0
    barred = tuple(number for number in reserved(facts.config) if low < number < vocabulary)
    books = facts.first("num_codebooks")
    shapes = [(*shape, tokens), *([(tokens, books), (books, tokens)] if books else [])]
    return [Input(kind="ids", shape=shape, low=low, high=vocabulary, barred=barred, word="tokens") for shape in shapes]


def _input_ids(facts: Facts) -> list[Input]:
    return _ids(facts, shape=(CHOICES,) if facts.name.endswith("ForMultipleChoice") else ())


def _like_ids(kind: str, *more: int, dtype: torch.dtype = torch.long) -> Callable[[Facts], list[Input]]:
    def make(facts: Facts) -> list[Input]:
        return [Input(kind=kind, shape=(*ids.shape, *more), dtype=dtype) for ids in _input_ids(facts)]

    return make


VISION = ("vision", "image", "backbone", "encoder")


def _pixels(facts: Facts) -> tuple[int, int]:
    found = facts.first("image_size", "img_size", "input_size", near=VISION, kind=(int, list, tuple))
    if found is None:
        found = PIXELS[facts.size]
    sides = [found, found] if isinstance(found, int) else list(found)[-2:]
    return int(sides[0]), int(sides[-1])


def _channels(facts: Facts) -> int:
    return facts.first("num_channels", "in_channels", "in_chans", "num_input_channels", near=VISION) or 3


def _images(facts: Facts) -> list[Input]:
    """One image; several in a row, one in a list, or a pair, where the model wants that."""
    image = (_channels(facts), *_pixels(facts))
    frames = facts.first("num_frames", near=VISION)
    several = [(frames, *image)] if frames else []
    larger = [(image[0], side, side) for side in LARGER if side > min(image[1:])]
    shapes = (*several, image, (1, *image), (2, *image), *larger)
    return [Input(kind="noise", shape=shape, word="images") for shape in shapes]


def _videos(facts: Facts) -> list[Input]:
    frames = facts.first("num_frames", "frames_per_clip", near=(*VISION, "video")) or 8
    return [Input(kind="noise", shape=(frames, _channels(facts), *_pixels(facts)), word="videos")]


def _masked_patches(facts: Facts) -> list[Input]:
    patch = facts.first("patch_size", near=VISION)
    if not patch:
        return []
    high, wide = _pixels(facts)
    patches = (high // patch) * (wide // patch)
    tubelet = facts.first("tubelet_size", near=VISION)
    frames = (facts.first("num_frames", near=VISION) or 1) // tubelet if tubelet else 1
    return [Input(kind="half", shape=(patches * frames,))]


def _patch_noise(facts: Facts) -> list[Input]:
    """Instead of noise that the model draws itself, which no two strategies would draw alike."""
    return [Input(kind="noise", shape=mask.shape) for mask in _masked_patches(facts)]


def _image_mask(facts: Facts) -> list[Input]:
    return [Input(kind="ones", shape=shape, dtype=torch.long) for shape in (_pixels(facts), (1, *_pixels(facts)))]


HEARING = ("audio", "speech", "sound", "encoder")


def _sound(facts: Facts) -> list[Input]:
    """A waveform, or a spectrogram where the model has bins and a length of its own."""
    bins, length = facts.first("num_mel_bins", near=HEARING), facts.first("max_length", near=HEARING)
    channels = facts.first("audio_channels", near=HEARING) or 1
    values = SOUND[facts.size]
    shapes: list[tuple[int, ...]] = [(length, bins)] if bins and length and length >= bins else []
    shapes += [(values,), (channels, values), (SOUND["standard"],)]
    return [Input(kind="noise", shape=shape, word="values of sound") for shape in shapes]


def _features(facts: Facts) -> list[Input]:
    """Frames of sound: as many as the positions need where those are fixed, else a number of ours."""
    bins = facts.first(
        "num_mel_bins", "feature_projection_input_dim", "input_feat_size", "num_mel_bands", "feature_size",
        "input_feat_per_channel", "input_dim", "input_size", near=HEARING,
    )  # fmt: skip
    if not bins:
        return []
    positions = facts.first("max_source_positions", near=HEARING)
    frames = [2 * positions] if positions and facts.first("num_mel_bins", near=HEARING) else []
    frames += [FRAMES[facts.size]]
    spectrogram = facts.first("spec_size", near=HEARING)
    shapes: list[tuple[int, ...]] = [shape for count in frames for shape in ((bins, count), (count, bins))]
    if spectrogram:
        shapes.insert(0, (1, FRAMES[facts.size], bins))
    return [Input(kind="noise", shape=shape, word="features of sound") for shape in shapes]


def _features_mask(facts: Facts) -> list[Input]:
    lengths = dict.fromkeys(max(features.shape) for features in _features(facts))
    return [Input(kind="ones", shape=(length,), dtype=torch.bool) for length in lengths]


def _series(*names: str, channels: str = "", kind: str = "noise") -> Callable[[Facts], list[Input]]:
    """A time series as long as the field of the first of `names`, and the lags that the model looks back."""

    def make(facts: Facts) -> list[Input]:
        length = facts.first(*names)
        if length is None:
            return []
        if "context_length" in names:
            length += max(facts.first("lags_sequence", kind=(list, tuple)) or [0])
        series = (length,) if not channels else (length, facts.first(channels) or 0)
        wide = facts.first("num_input_channels", "input_size") or 1
        shapes = [series] if channels else [(length, wide), (length,)] if wide > 1 else [(length,), (length, 1)]
        word = "values of a series" if not channels and kind == "noise" else ""
        return [Input(kind=kind, shape=shape, word=word) for shape in shapes]

    return make


TABLE: Mapping[str, Callable[[Facts], list[Input]]] = {
    "input_ids": _input_ids,
    "decoder_input_ids": lambda facts: _ids(facts, decoder=True),
    "attention_mask": _like_ids("ones"),
    "token_type_ids": _like_ids("zeros"),
    "mm_token_type_ids": _like_ids("zeros"),
    "bbox": _like_ids("boxes", 4),
    "pixel_values": _images,
    "pixel_values_videos": _videos,
    "pixel_mask": _image_mask,
    "pixel_attention_mask": _image_mask,
    "bool_masked_pos": _masked_patches,
    "noise": _patch_noise,
    "input_values": _sound,
    "input_features": _features,
    "input_features_mask": _features_mask,
    "qformer_input_ids": lambda facts: _ids(facts, of="qformer_config"),
    "past_values": _series("context_length"),
    "past_time_features": _series("context_length", channels="num_time_features"),
    "past_observed_mask": _series("context_length", kind="ones"),
    "future_values": _series("prediction_length"),
    "future_time_features": _series("prediction_length", channels="num_time_features"),
    "inputs": lambda facts: [*_images(facts), *_input_ids(facts)],
}
"""How each input is made, by its name; the first of several that the model takes is used."""
