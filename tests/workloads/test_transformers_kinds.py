"""Models of transformers by what they take and what they are trained for: each kind takes a real step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.errors import UsageError
from bench.workloads import Workload, find
from bench.workloads._adapters.inputs import Input
from bench.workloads._adapters.stand_in import StandIn
from bench.workloads._adapters.tasks import Classes, Spelling

UNUSED = Path("unused")
BERT = "hidden_size=32&intermediate_size=64&num_attention_heads=2&num_hidden_layers=2&vocab_size=99"
VIT = "hidden_size=32&intermediate_size=64&num_attention_heads=2&num_hidden_layers=2"
SOUND = f"{VIT}&conv_dim=[16,16,16,16,16,16,16]&num_conv_pos_embeddings=16&num_conv_pos_embedding_groups=2"
WHISPER = (
    "d_model=32&decoder_attention_heads=2&decoder_ffn_dim=64&decoder_layers=1&encoder_attention_heads=2"
    "&encoder_ffn_dim=64&encoder_layers=1"
)
TEXT_PART = (
    "text_config.hidden_size=32&text_config.intermediate_size=64&text_config.num_attention_heads=2"
    "&text_config.num_hidden_layers=2"
)
SIGHT_PART = (
    "vision_config.hidden_size=32&vision_config.intermediate_size=64&vision_config.num_attention_heads=2"
    "&vision_config.num_hidden_layers=2"
)
VIDEO = f"{VIT}&num_frames=4&decoder_hidden_size=16&decoder_intermediate_size=32&decoder_num_attention_heads=2"
KINDS = [
    (f"Wav2Vec2ForCTC?{SOUND}", "4000 values of sound; labels of sound, by CTC"),
    (f"Wav2Vec2ForSequenceClassification?{SOUND}", "4000 values of sound; one class a sample"),
    (f"Wav2Vec2ForAudioFrameClassification?{SOUND}", "4000 values of sound; one class a frame"),
    (f"WhisperForConditionalGeneration?{WHISPER}", "80x128 features of sound, 64 tokens, vocabulary 51,865; next tok"),
    (f"Speech2TextForConditionalGeneration?{WHISPER}", "64x80 features of sound, 64 tokens, vocabulary 10,000; next"),
    (f"ASTForAudioClassification?{VIT}", "128x128 values of sound; one class a sample"),
    (f"CLIPModel?{TEXT_PART}&{SIGHT_PART}", "64 tokens, vocabulary 49,408, 3x64x64 images; stand-in objective"),
    (
        f"LlavaForConditionalGeneration?{TEXT_PART}&text_config.num_key_value_heads=2&{SIGHT_PART}",
        "89 tokens, vocabulary 32,000, 3x70x70 images; next tokens",  # (70 / 14)^2 places for the image
    ),
    (f"VideoMAEForVideoClassification?{VIDEO}", "4x3x64x64 images; one class a sample"),
    (f"VideoMAEForPreTraining?{VIDEO}", "4x3x64x64 images; stand-in objective"),
    (f"ViTMAEForPreTraining?{VIT}&decoder_num_hidden_layers=1", "3x64x64 images; stand-in objective"),
    ("SegformerForSemanticSegmentation?num_labels=5", "3x64x64 images; one class a point of the output's map"),
    (f"BertForPreTraining?{BERT}", "64 tokens, vocabulary 99; stand-in objective"),
    (f"BertForMultipleChoice?{BERT}", "64 tokens, vocabulary 99; one class a sample"),
    (f"BertForSequenceClassification?{BERT}&num_labels=1", "64 tokens, vocabulary 99; one number a sample, by squared"),
    (f"BertForTokenClassification?{BERT}&num_labels=1", "64 tokens, vocabulary 99; one number a token, by squared"),
    (f"ViTForImageClassification?{VIT}&num_labels=1", "3x64x64 images; one number a sample, by squared error"),
    (f"BertForNextSentencePrediction?{BERT}", "64 tokens, vocabulary 99; one class a sample"),
    (f"CanineModel?{VIT}", "64 tokens, vocabulary 1,114,112; stand-in objective"),
    (
        "LxmertModel?l_layers=1&x_layers=1&r_layers=1&hidden_size=32&intermediate_size=64&num_attention_heads=2",
        "64 tokens, vocabulary 30,522, 36x2048 features, 36x4 features; stand-in",
    ),
    (f"LongformerForQuestionAnswering?{VIT}&attention_window=16", "64 tokens, vocabulary 30,522; first and last token"),
    ("SpeechT5HifiGan?upsample_initial_channel=32", "64x80 features; stand-in"),
    ("PatchTSTForPrediction?d_model=32&num_attention_heads=2&ffn_dim=64", "32x1 values of a series; stand-in"),
]


def loss_of(workload: Workload, model: Any, samples: Sequence[Any]) -> Tensor:
    batch = workload.collate(samples)
    total, weight = workload.loss(model(*batch.args, **batch.kwargs), batch.targets)
    assert float(weight) == len(samples)
    return total


@pytest.mark.parametrize(
    ("model", "text"),
    KINDS,
    ids=[f"{text.rpartition('; ')[2][:12]}-{model.partition('?')[0]}" for model, text in KINDS],
)
def test_a_kind_trains_and_its_loss_is_the_sum_over_samples(model: str, text: str) -> None:
    workload = find(f"transformers:{model}")("quick")
    assert workload.size.text.startswith(text)
    torch.manual_seed(0)
    module = workload.build()
    dataset = workload.dataset(workload.prepare("synthetic", None, UNUSED), 0)
    samples = [dataset[index] for index in range(3)]
    loss_of(workload, module, samples).backward()  # type: ignore[no-untyped-call]
    assert any(p.grad is not None and bool(p.grad.any()) for p in module.parameters())
    module.eval()
    with torch.no_grad():
        together = loss_of(workload, module, samples)
        apart = loss_of(workload, module, samples[:1]) + loss_of(workload, module, samples[1:])
    assert bool(together.isfinite()) and float(together) == pytest.approx(float(apart), rel=1e-4)


def test_pairs_of_samples_are_no_part_of_the_objective() -> None:
    workload = find(f"transformers:CLIPModel?{TEXT_PART}&{SIGHT_PART}")("quick")
    # logits_per_image and logits_per_text come first, and are left out
    assert workload.plans["quick"].task.tensors[:2] == (2, 3)  # type: ignore[attr-defined]


def test_value_of_the_stand_in() -> None:
    task = StandIn(tensors=(1,))
    output = (torch.full((9,), 7.0), torch.tensor([[1.0, 0.0], [0.0, 0.5]]))
    total, weight = task.loss(output, torch.tensor([0.0, math.pi / 2]))
    first = ((1 - 1) ** 2 + (0 - math.cos(1)) ** 2) / 2  # cos(0 + 0), cos(1 + 0)
    second = ((0 - 0) ** 2 + (0.5 + math.sin(1)) ** 2) / 2  # cos(x + pi / 2) is -sin(x)
    assert float(total) == pytest.approx(first + second) and float(weight) == 2


def test_what_a_mask_has_set_is_no_part_of_the_stand_in() -> None:
    values = torch.tensor([[-10000.26, -1000.0, 0.0]], requires_grad=True)
    total, _ = StandIn(tensors=(0,)).loss((values,), torch.zeros(1))
    assert float(total.detach()) == pytest.approx(math.cos(2) ** 2 / 3)  # of three elements one counts
    total.backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None and values.grad[0, :2].tolist() == [0, 0] and float(values.grad[0, 2]) != 0


def test_one_number_a_point_of_a_map() -> None:
    task = Classes(places=2, shape=(1, 2), classes=1)
    output = SimpleNamespace(logits=torch.tensor([[[[1.0, 3.0]]]]))  # (samples, classes, high, wide)
    total, weight = task.loss(output, torch.zeros(1, 1, 2))
    assert float(total) == 5 and float(weight) == 1  # (1 + 9) / 2
    assert task.targets({}, torch.Generator()).dtype is torch.float32


def test_stand_in_of_a_model_that_could_not_be_tried_takes_the_first_tensor_of_the_samples() -> None:
    output = {"ids": torch.zeros(2, dtype=torch.long), "hidden": torch.ones(2, 1), "more": torch.full((2, 1), 9.0)}
    total, _ = StandIn().loss(output, torch.zeros(2))
    assert float(total) == 0  # cos 0 is 1
    with pytest.raises(UsageError, match="none of the 1 tensors .* has the 2 samples in dimension 0"):
        StandIn().loss((torch.zeros(3, 1),), torch.zeros(2))


def test_ctc_is_the_mean_over_the_labels() -> None:
    task = Spelling(frames=8, classes=3, blank=0)
    labels = task.targets({}, torch.Generator().manual_seed(0))
    assert labels.shape == (2,) and set(labels.tolist()) <= {1, 2}
    # 2 frames, 1 label, 2 classes: (blank, 1), (1, blank) and (1, 1) spell it, of 4 that are alike
    total, weight = Spelling(frames=2, classes=2).loss(
        SimpleNamespace(logits=torch.zeros(2, 2, 2)), torch.ones(2, 1).long()
    )
    assert float(total) == pytest.approx(2 * math.log(4 / 3)) and float(weight) == 2


def test_ids_step_over_what_means_something_else() -> None:
    ids = Input(kind="ids", shape=(500,), low=2, high=7, barred=(4, 6), placed=((6, 3),))
    drawn = ids.draw(torch.Generator().manual_seed(0))
    assert drawn[1:4].tolist() == [6, 6, 6] and set(drawn[4:].tolist()) == {2, 3, 5}


def test_places_of_an_image_are_not_predicted() -> None:
    workload = find(next(f"transformers:{model}" for model, _ in KINDS if model.startswith("Llava")))("quick")
    sample = workload.dataset(workload.prepare("synthetic", None, UNUSED), 0)[0]
    model: Any = workload.build()
    ids, number = sample.kwargs["input_ids"], model.config.image_token_id
    assert int((ids == number).sum()) == 25 and number not in sample.targets
    assert int((sample.targets == -100).sum()) == 26  # and the last token, after which there is none


def test_boxes_have_their_corners_in_order() -> None:
    boxes = Input(kind="boxes", shape=(50, 4)).draw(torch.Generator().manual_seed(0))
    assert bool((boxes[:, :2] <= boxes[:, 2:]).all()) and int(boxes.min()) >= 0 and int(boxes.max()) <= 1000


def test_half_of_the_patches_are_masked() -> None:
    assert int(Input(kind="half", shape=(8,)).draw(torch.Generator().manual_seed(0)).sum()) == 4


def test_a_model_whose_images_cannot_be_made_is_trained_on_text_alone_and_says_so() -> None:
    layers = "text_config.num_hidden_layers=1&vision_config.num_hidden_layers=1"
    cls = find(f"transformers:Mistral3ForConditionalGeneration?{layers}")
    assert "(text alone); next tokens" in cls.sizes["standard"].text
    assert cls.sizes["standard"].tokens_per_sample == 128


def test_what_happens_by_chance_is_off_unless_asked_for() -> None:
    model: Any = find(f"transformers:Wav2Vec2ForCTC?{SOUND}")("quick").build()
    assert (model.config.layerdrop, model.config.mask_time_prob) == (0.0, 0.0)
    asked: Any = find(f"transformers:Wav2Vec2ForCTC?{SOUND}&layerdrop=0.5")("quick").build()
    assert (asked.config.layerdrop, asked.config.mask_time_prob) == (0.5, 0.0)


def test_what_is_given_stays_at_size_quick() -> None:
    cls = find(f"transformers:CLIPModel?{TEXT_PART}&{SIGHT_PART}&vision_config.image_size=96")
    assert all("3x96x96 images" in size.text for size in cls.sizes.values())
