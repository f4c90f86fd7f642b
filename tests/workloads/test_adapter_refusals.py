"""What an adapter refuses before a run: overrides and folders that cannot be, and what the message says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.errors import UsageError
from bench.workloads import find
from bench.workloads._adapters.inputs import Facts, Input
from bench.workloads._adapters.plans import plan
from bench.workloads._adapters.trying import Unseen, built, samples_unlike, tried

HEADS = "hidden_size=64&num_attention_heads=4&num_hidden_layers=1&num_key_value_heads=8"
MIXTRAL = "hidden_size=64&intermediate_size=64&num_hidden_layers=1"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("resnet18?num_classes=1", "num_classes=1: cross-entropy needs 2 classes or more"),
        ("resnet18?num_classes=0", "num_classes=0: cross-entropy needs 2 classes or more"),
        ("vit_b_32?image_size=65", "with image_size=65 does not train on images of 65x65: .*; change these overrides"),
        ("densenet121?drop_rate=2", "with drop_rate=2 does not train .*between 0 and 1"),
        ("vit_b_32?num_layers=1", "multiple values .*; it takes: dropout, attention_dropout, num_classes, repr"),
        ("resnet18?groups=x", "it takes: num_classes, zero_init_residual, groups, width_per_group, replace_"),
    ],
)
def test_overrides_that_no_classifier_of_torchvision_trains_with(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(f"torchvision:{address}")


def test_images_are_larger_where_an_auxiliary_head_wants_that() -> None:
    cls: Any = find("torchvision:inception_v3?aux_logits=true")
    assert dict(cls.pixels) == {"standard": 299, "quick": 299}  # 75 without the head


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (f"LlamaForCausalLM?{HEADS}", f"with {HEADS} does not take what is made .*4.* must match .*8.*; change these"),
        (
            f"MixtralForCausalLM?num_experts_per_tok=9&{MIXTRAL}",
            "with .*num_experts_per_tok=9.* does not take .*; change these",
        ),
        ("BertModel?vocab_size=1", "vocab_size=1 is too few: there must be 2 or more"),
        ("BertForSequenceClassification?num_labels=0", "num_labels=0 is too few: there must be 1 or more"),
        ("BertModel?dtype=float16", "dtype=float16: models are built in float32; use --precision"),
        ("BertModel?torch_dtype=float16", "models are built in float32; use --precision"),
        ("BertModel?model_type=gpt2", "model_type=gpt2: a class cannot be overridden"),
        ("BertModel?hidden_act=nonsense", "hidden_act=nonsense is no activation; there is: .*gelu"),
        ("CLIPModel?text_config=5", "CLIPConfig: text_config is a configuration of its own; write text_config.FIELD="),
        ("bert-base-uncased", "no folder 'bert-base-uncased'. Nothing is downloaded: .*AutoConfig.* or name a class"),
        ("google-bert/bert-base-uncased", "there is no folder 'google-bert/bert-base-uncased'. Nothing is downloaded"),
        ("AutoModelForMaskedLM", "stands for many classes; name a concrete class, such as BertForMaskedLM"),
        ("AutoModel", "name a concrete class, such as BertModel"),
        ("pipeline", "no model class 'pipeline' that can be built, nor is there a folder"),
    ],
)
def test_what_cannot_be_typed_of_transformers(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        find(f"transformers:{address}")
    assert "\n" not in str(refused.value)


def test_bases_are_no_near_matches() -> None:
    with pytest.raises(UsageError) as refused:
        find("transformers:BertPreTrainedModel")
    assert "PreTrainedModel" not in str(refused.value).partition("folder")[2]


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ([1], "config.json holds a list, not the fields of a configuration"),
        (None, "config.json holds null"),
        ({"hidden_size": 3}, "config.json has no model_type"),
        ({"model_type": "bert", "architectures": "BertModel"}, "architectures 'BertModel'; it must be a list"),
        ({"model_type": "bert", "architectures": [3]}, "it must be a list of names"),
        ({"model_type": "bert", "architectures": ["GPT2Model"]}, "GPT2Model, which is built from a GPT2Config, but"),
        (
            {"model_type": "bert", "architectures": ["OwnBert"]},
            "config.json has the architecture 'OwnBert'.* is not ru",
        ),
        ({"model_type": "bert", "num_hidden_layers": -3}, "config.json has num_hidden_layers -3, which counts"),
        ({"model_type": "bert", "num_hidden_layers": "two"}, "made with .*config.json: .*expected int, got str"),
        (
            {"model_type": "bert", "hidden_act": "gleu"},
            "config.json has hidden_act gleu, which is no activation; there",
        ),
        ({"model_type": "bert", "quantization_config": {}}, "config.json has a quantization_config"),
        (
            {
                "model_type": "llama",
                **{key: int(value) for key, value in (item.split("=") for item in HEADS.split("&"))},
            },
            "LlamaModel with .*config.json does not take .*; correct that file, or write a workload",
        ),
    ],
)
def test_folders_that_cannot_be_measured(tmp_path: Path, stored: Any, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(UsageError, match=message) as refused:
        find(f"transformers:{tmp_path}")
    assert len(str(refused.value)) < 500 + 2 * len(str(tmp_path))


def test_a_folder_in_another_type_is_built_in_float32(tmp_path: Path) -> None:
    stored = {"model_type": "bert", "architectures": ["BertModel"], "dtype": "bfloat16", "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps({**stored, "hidden_size": 24, "vocab_size": 99}))
    model = find(f"transformers:{tmp_path}?name=was_bfloat16")("quick").build()
    assert {value.dtype for value in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("DetrModel requires the timm library but it was not found", r"here: .*install it first: pip install timm$"),
        ("X requires the detectron2 library but", r"pip install git\+https://github.com/.*detectron2.git$"),
        (
            "no",
            r"cannot be built at its default configuration.*: no; .*name a folder with the config.json of a",
        ),
    ],
)
def test_a_class_that_cannot_be_built_says_what_helps(error: str, message: str) -> None:
    from transformers import BertConfig

    def fails(config: Any) -> None:
        raise ImportError(error)

    with pytest.raises(UsageError, match=message):
        built(fails, BertConfig())


class Fussy(nn.Module):
    """Takes no layout, and says which it was given."""

    main_input_name = "input_features"

    def forward(self, input_features: Tensor) -> Tensor:
        raise ValueError(f"no {'x'.join(map(str, input_features.shape[1:]))}")


def test_a_refusal_shows_the_layout_that_its_error_is_of() -> None:
    from transformers import BertConfig

    with pytest.raises(UsageError, match=r"Fussy does not take what is made for it \(input_features 8x64\): .*no 8x64"):
        plan(Fussy(), Facts(Fussy, BertConfig(num_mel_bins=8), "quick"))


def test_the_number_of_samples_is_no_width_nor_length() -> None:
    from transformers import BertConfig

    config = BertConfig(hidden_size=46, num_attention_heads=2)
    # 23 divides 46, 29 is the length of the input, 31 divides nothing
    assert samples_unlike(config, {"input_values": Input(kind="noise", shape=(29,))}) == 31
    assert samples_unlike(BertConfig(), {}) == 23
    cls = find("transformers:BertModel?hidden_size=23&num_attention_heads=1&num_hidden_layers=1&vocab_size=99")
    assert "stand-in objective" in cls.sizes["quick"].text


class Asks(nn.Module):
    """Fails after a question, with an error that hangs on the answer or not."""

    def __init__(self, hangs: bool) -> None:
        super().__init__()
        self.hangs = hangs

    def forward(self, values: Tensor) -> Tensor:
        answer = bool((values > 0).all())
        raise ValueError(f"the answer is {answer}" if self.hangs else "the shapes do not fit")


def test_an_error_that_other_answers_lead_to_as_well_is_the_models_own() -> None:
    inputs = {"values": Input(kind="noise", shape=(3,))}
    with pytest.raises(Unseen):
        tried(Asks(hangs=True), inputs, 23)
    with pytest.raises(ValueError, match="the shapes do not fit"):
        tried(Asks(hangs=False), inputs, 23)
