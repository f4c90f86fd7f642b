"""What one sample of a model of transformers is: an input for each name that its forward needs.

The shapes come from the configuration. Where a name can mean several layouts (`input_features` are frames by bins or
bins by frames), all are listed, and the first that the model takes is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from bench.workloads._adapters.inputs import Facts, Input, reserved

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
REGIONS = 36
"""Of an image that another model has found (Lxmert)."""
TILES = (5, 40)
"""Of an image that is cut, and the whole of it; a model takes of them as many as the image's size says."""
CODE_POINTS = 0x110000
"""Ids of a model that reads characters, and hashes them."""
CHOICES = 2


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
    if axes := facts.first("axial_pos_shape", kind=(list, tuple)):  # Reformer's: every position, in training
        tokens = math.prod(axes)
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


def _token_types(facts: Facts) -> list[Input]:
    """One type; the first cell of a table, where a token has a row and a column of it."""
    kinds = facts.first("type_vocab_sizes", kind=(list, tuple))
    return _like_ids("ones", len(kinds))(facts) if kinds else _like_ids("zeros")(facts)


VISION = ("vision", "image", "backbone", "encoder")


def _pixels(facts: Facts) -> tuple[int, int]:
    found = facts.first("image_size", "img_size", "input_size", near=VISION, kind=(int, list, tuple))
    if found is None:
        found = PIXELS[facts.size]
    sides = [found, found] if isinstance(found, int) else list(found)[-2:]
    return int(sides[0]), int(sides[-1])


def _channels(facts: Facts) -> int:
    return facts.first("num_channels", "in_channels", "in_chans", "num_input_channels", near=VISION) or 3


GRIDS = ("image_grid_thw", "grid_thw")
"""Names of what says how many patches each image has: frames, rows and columns."""


def _grid(facts: Facts) -> tuple[int, int, int]:
    """Of one image: its rows and columns of patches, whole groups where some are merged."""
    patch, merged = facts.first("patch_size", near=VISION) or 1, facts.first("spatial_merge_size", near=VISION)
    merged = merged or max(facts.first("merge_kernel_size", near=VISION, kind=(list, tuple)) or [1])
    rows, columns = (max(1, side // (patch * merged)) * merged for side in _pixels(facts))
    return 1, rows, columns


def _grids(facts: Facts) -> list[Input]:
    return [Input(kind="grid", shape=(3,), grid=_grid(facts), dtype=torch.long)]


def _patches(facts: Facts) -> list[Input]:
    """The patches of one image, each in a row or as it lies, for a model that wants those of all images as one."""
    patch = facts.first("patch_size", near=VISION) or 1
    frames, rows, columns = _grid(facts)
    deep = facts.first("temporal_patch_size", near=VISION) or 1
    channels, count = _channels(facts), frames * rows * columns
    shapes: tuple[tuple[int, ...], ...] = ((channels * deep * patch * patch,), (channels, patch, patch))
    shapes = (*shapes, (patch * patch * channels,)) if deep > 1 else shapes
    return [Input(kind="noise", shape=(count, *shape), word="patches", packed=True) for shape in shapes]


def _images(facts: Facts) -> list[Input]:
    """One image; several in a row, one in a list, or a pair, where the model wants that."""
    if any(name in facts.takes for name in GRIDS):
        return _patches(facts)
    image = (_channels(facts), *_pixels(facts))
    frames = facts.first("num_frames", near=VISION)
    several = [(frames, *image)] if frames else []
    larger = [(image[0], side, side) for side in LARGER if side > min(image[1:])]
    tiles = [(count, *image) for count in TILES if facts.first("image_grid_pinpoints", kind=(list, tuple))]
    shapes = (*several, *tiles, image, (1, *image), (2, *image), *larger)
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


def _hidden_states(facts: Facts) -> list[Input]:
    """Patches, where there is a grid; else what a layer before would give, or an image that is called so."""
    if any(name in facts.takes for name in GRIDS):
        return _patches(facts)
    wide = facts.first("input_dim", "hidden_size", "d_model", "embed_dim")
    states = [Input(kind="noise", shape=(TOKENS[facts.size], wide), word="hidden states")] if wide else []
    return [*states, *_images(facts)]


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
    window = 2 * (facts.first("n_window", near=HEARING) or 1)
    frames += [-(-FRAMES[facts.size] // window) * window]
    spectrogram = facts.first("spec_size", near=HEARING)
    shapes: list[tuple[int, ...]] = [shape for count in frames for shape in ((bins, count), (count, bins))]
    if spectrogram:
        shapes.insert(0, (1, FRAMES[facts.size], bins))
    return [Input(kind="noise", shape=shape, word="features of sound") for shape in shapes]


def _features_mask(facts: Facts) -> list[Input]:
    first = [features.shape for features in _features(facts)][:1]
    lengths = dict.fromkeys(length for shape in first for length in (max(shape), min(shape)))
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


def _noise(*lengths: int | str) -> Callable[[Facts], list[Input]]:
    """Noise as long and wide as these numbers, or fields, say."""

    def make(facts: Facts) -> list[Input]:
        shape = [facts.first(length) if isinstance(length, str) else length for length in lengths]
        return [Input(kind="noise", shape=tuple(shape), word="features")] if all(shape) else []

    return make


TABLE: Mapping[str, Callable[[Facts], list[Input]]] = {
    "input_ids": _input_ids,
    "decoder_input_ids": lambda facts: _ids(facts, decoder=True),
    "attention_mask": _like_ids("ones"),
    "token_type_ids": _token_types,
    "mm_token_type_ids": _like_ids("zeros"),
    "bbox": _like_ids("boxes", 4),
    "pixel_values": _images,
    "image_sizes": lambda facts: [Input(kind="grid", shape=(2,), grid=_pixels(facts), dtype=torch.long)],
    **dict.fromkeys(GRIDS, _grids),
    "hidden_states": _hidden_states,
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
    "visual_feats": _noise(REGIONS, "visual_feat_dim"),
    "visual_pos": _noise(REGIONS, "visual_pos_dim"),
    "spectrogram": _noise(FRAMES["quick"], "model_in_dim"),
    "task_inputs": _noise("task_seq_len"),
    "global_attention_mask": lambda facts: [replace(ids, placed=((1, 1),)) for ids in _like_ids("zeros")(facts)],
    "inputs": lambda facts: [*_images(facts), *_input_ids(facts)],
}
"""How each input is made, by its name; the first of several that the model takes is used."""
