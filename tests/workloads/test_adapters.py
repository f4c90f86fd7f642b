"""Models of torchvision and transformers by name: built as asked, trained on what fits them, or refused."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.errors import UsageError
from bench.workloads import Workload, adapted, find, registry

UNUSED = Path("unused")
TINY = "hidden_size=32&intermediate_size=64&num_attention_heads=2&num_hidden_layers=2&vocab_size=99"
GPT2 = "n_embd=32&n_head=2&n_layer=2&vocab_size=99"
T5 = "d_ff=64&d_kv=16&d_model=32&num_heads=2&num_layers=2&vocab_size=99"
VIT = "hidden_size=32&intermediate_size=64&num_attention_heads=2&num_hidden_layers=2"


def steps(workload: Workload, count: int = 3) -> tuple[nn.Module, Any, torch.Tensor]:
    """A model, what it returns for a batch, and the mean loss."""
    torch.manual_seed(0)
    model = workload.build()
    dataset = workload.dataset(workload.prepare("synthetic", None, UNUSED), 0)
    batch = workload.collate([dataset[index] for index in range(count)])
    output = model(*batch.args, **batch.kwargs)
    total, weight = workload.loss(output, batch.targets)
    assert float(weight) == workload.weight(dataset, range(count)) == count
    return model, output, total / weight


def without_gradient(model: nn.Module, loss: torch.Tensor) -> list[str]:
    loss.backward()  # type: ignore[no-untyped-call]
    return [name for name, value in model.named_parameters() if value.grad is None]


# --- torchvision ----------------------------------------------------------------------------------


def test_a_classifier_of_torchvision() -> None:
    cls = find("torchvision:squeezenet1_1?num_classes=7")
    assert cls.name == cls.address == "torchvision:squeezenet1_1?num_classes=7" and registry.get(cls.name) is cls
    assert {size: declared.text for size, declared in cls.sizes.items()} == {
        "standard": "3x224x224 images", "quick": "3x64x64 images",
    }  # fmt: skip
    assert (cls.sizes["standard"].batch_per_device, cls.sizes["quick"].global_batch_size) == (64, 8)
    model, output, loss = steps(cls("quick"))
    assert output.shape == (3, 7) and without_gradient(model, loss) == []


@pytest.mark.parametrize(
    ("address", "standard", "quick"),
    [
        ("torchvision:resnet18", 224, 64),
        ("torchvision:inception_v3", 299, 75),  # the least that works
        ("torchvision:efficientnet_b1", 240, 64),
        ("torchvision:vit_b_32", 224, 64),  # its weights want 224, its class takes what it is told
        ("torchvision:swin_t", 224, 224),
        ("torchvision:vit_b_32?image_size=96", 96, 96),
        ("torchvision:resnet18?image_size=96", 96, 96),
    ],
)
def test_how_large_the_images_are(address: str, standard: int, quick: int) -> None:
    cls = find(address)
    found = {size: cls(size).dataset(cls(size).prepare("synthetic", None, UNUSED), 0)[0] for size in cls.sizes}
    assert {size: tuple(batch.args[0].shape) for size, batch in found.items()} == {
        "standard": (3, standard, standard), "quick": (3, quick, quick),
    }  # fmt: skip


def test_no_heads_beside_the_main_one() -> None:
    model = find("torchvision:googlenet")("quick").build()
    assert [name for name, _ in model.named_parameters() if "aux" in name] == []
    with_heads = find("torchvision:googlenet?aux_logits=true")("quick").build()
    assert any("aux" in name for name, _ in with_heads.named_parameters())


def test_blocks_of_a_classifier() -> None:
    workload = find("torchvision:resnet18")("quick")
    assert len(workload.blocks(workload.build())) == 8


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("torchvision:resnet19", "torchvision has no classifier 'resnet19'; near matches: resnet18"),
        ("torchvision:fcn_resnet50", "no classifier 'fcn_resnet50'; near matches"),  # segmentation
        ("torchvision:resnet18?num_clases=3", "cannot be built with num_clases=3: .*; it takes: .*num_classes"),
        ("torchvision:resnet18?num_classes=many", "cannot be built with num_classes=many"),
        ("torchvision:resnet18?weights=DEFAULT", "weights cannot be set; models are measured untrained"),
        ("torchvision:resnet18?image_size=big", "image_size=big is no number of pixels"),
        ("torchvision:resnet18?num_classes", "'num_classes' is no override; write num_classes=VALUE"),
        ("torchvision:resnet18?groups=1&groups=2", "groups is given twice, as 1 and 2"),
    ],
)
def test_what_torchvision_does_not_have(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(address)


# --- transformers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "text", "blocks", "unused"),
    [
        (f"transformers:BertForMaskedLM?{TINY}", "64 tokens, vocabulary 99; masked tokens", 2, []),
        (f"transformers:RobertaForMaskedLM?max_position_embeddings=40&{TINY}", "38 tokens, vocabulary 99", 2, []),
        (f"transformers:GPT2LMHeadModel?{GPT2}", "64 tokens, vocabulary 99; next tokens", 2, []),
        (f"transformers:LlamaForCausalLM?num_key_value_heads=2&{TINY}", "next tokens", 2, []),
        (f"transformers:T5ForConditionalGeneration?{T5}", "next tokens", 4, []),
        (f"transformers:BertForSequenceClassification?{TINY}", "one class a sample", 2, []),
        (f"transformers:GPT2ForSequenceClassification?{GPT2}", "one class a sample", 2, []),
        (f"transformers:T5ForSequenceClassification?{T5}", "one class a sample", 4, []),
        (f"transformers:BertForTokenClassification?{TINY}", "one class a token", 2, []),
        (f"transformers:BertForQuestionAnswering?{TINY}", "first and last token of an answer", 2, []),
        (f"transformers:ViTForImageClassification?{VIT}", "3x64x64 images; one class a sample", 2, []),
        (f"transformers:BertModel?{TINY}", "stand-in objective", 2, []),
    ],
)
def test_a_model_of_transformers(address: str, text: str, blocks: int, unused: list[str]) -> None:
    workload = find(address)("quick")
    assert text in workload.size.text and workload.summary.startswith("transformers' ")
    model, _, loss = steps(workload)
    assert len(workload.blocks(model)) == blocks
    assert loss.isfinite() and without_gradient(model, loss) == unused


def test_overrides_are_ordered_and_typed() -> None:
    cls = find("transformers:BertForMaskedLM?vocab_size=99&hidden_size=32&num_attention_heads=2&hidden_dropout_prob=0")
    assert cls.name == (
        "transformers:BertForMaskedLM?hidden_dropout_prob=0&hidden_size=32&num_attention_heads=2&vocab_size=99"
    )
    config = cls("quick").build().config
    assert (config.hidden_size, config.vocab_size, config.hidden_dropout_prob) == (32, 99, 0.0)
    assert find(str(cls.address)) is cls


def test_lists_are_written_as_json_has_them() -> None:
    cls = find("transformers:ConvNextForImageClassification?depths=[1,1,2,1]&hidden_sizes=[8,16,24,32]")
    assert [len(stage.layers) for stage in cls("quick").build().convnext.encoder.stages] == [1, 1, 2, 1]


def test_masked_and_next_tokens() -> None:
    masked = find(f"transformers:BertForMaskedLM?{TINY}")("quick")
    sample = masked.dataset(masked.prepare("synthetic", None, UNUSED), 0)[5]
    counted = sample.targets != -100
    assert counted.sum() == 10  # 15 % of 64
    ids = sample.kwargs["input_ids"]
    assert (ids[counted] == 1).all() and (ids >= 1).all() and (ids < 99).all()  # 0 is the padding
    following = find(f"transformers:GPT2LMHeadModel?{GPT2}")("quick")
    sample = following.dataset(following.prepare("synthetic", None, UNUSED), 0)[5]
    assert sample.targets[:-1].tolist() == sample.kwargs["input_ids"][1:].tolist() and sample.targets[-1] == -100


def test_loss_of_an_answer_is_the_mean_of_both_ends() -> None:
    from types import SimpleNamespace

    workload = find(f"transformers:BertForQuestionAnswering?{TINY}")("quick")
    output = SimpleNamespace(start_logits=torch.zeros(1, 4), end_logits=torch.zeros(1, 2))
    total, weight = workload.loss(output, torch.tensor([[0, 1]]))
    assert float(total) == pytest.approx((1.3862944 + 0.6931472) / 2) and float(weight) == 1  # ln 4 and ln 2


def test_a_folder_with_a_configuration(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    folder = tmp_path / "small_bert"
    config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64, vocab_size=99)
    config.architectures = [BertForMaskedLM.__name__]
    config.save_pretrained(folder)
    cls = find(f"transformers:{folder}?num_hidden_layers=2")
    assert cls.name == "small_bert?num_hidden_layers=2"  # no path in it
    assert cls.address == f"transformers:{folder}?num_hidden_layers=2"
    model = cls("quick").build()
    assert type(model) is BertForMaskedLM and len(cls("quick").blocks(model)) == 2


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (None, "config.json cannot be read"),
        ("{", "config.json cannot be read"),
        (
            json.dumps({"model_type": "brt"}),
            "knows no model_type 'brt' of .*near matches: .*code that lies in a folder",
        ),
    ],
)
def test_folders_that_are_no_configuration(tmp_path: Path, stored: str | None, message: str) -> None:
    if stored is not None:
        (tmp_path / "config.json").write_text(stored)
    with pytest.raises(UsageError, match=message):
        find(f"transformers:{tmp_path}")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("transformers:BertForMaskLM", "no model class 'BertForMaskLM' .*near matches: BertForMaskedLM"),
        ("transformers:BertConfig", "no model class 'BertConfig'"),
        ("transformers:BertForMaskedLM?num_hiden_layers=2", "has no 'num_hiden_layers'; near matches: num_hidden"),
        ("transformers:BertForMaskedLM?num_hidden_layers=two", "num_hidden_layers=two is no int; its default is 12"),
        ("transformers:BertForMaskedLM?num_hidden_layers=2.5", "num_hidden_layers=2.5 is no int"),
        ("transformers:BertForMaskedLM?hidden_size=65", "cannot be built with hidden_size=65: .*not a multiple"),
        ("transformers:BertForMaskedLM?num_hidden_layers=-1", "num_hidden_layers=-1 counts something"),
        ("transformers:BertPreTrainedModel", "no model class 'BertPreTrainedModel'"),
        ("transformers:CLIPModel?num_hidden_layers=2", "there is: text_config.num_hidden_layers, vision_config.num_hi"),
        ("transformers:CLIPModel?text_config.num_hiden_layers=2", "near matches: text_config.num_hidden_layers"),
        ("transformers:Qwen2_5OmniToken2WavDiTModel", "needs .*quantized_code, .* which is not made here; write a"),
        ("transformers:Sam2VideoModel", "needs inference_session, which is not made here; write a workload of"),
    ],
)  # fmt: skip
def test_what_transformers_does_not_have(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(address)


@pytest.mark.parametrize(
    "spec", ["torchvision:resnet18?name=small", "transformers:BertModel?name=small2&hidden_size=96"]
)
def test_a_short_name_takes_the_place_of_the_whole_text(spec: str) -> None:
    cls = find(spec)
    assert cls.name in ("small", "small2") and cls.address is not None
    assert find(cls.address) is cls and "name=small" in cls.address


def test_a_name_that_tables_cannot_hold_says_how_to_give_another() -> None:
    with pytest.raises(UsageError, match="no blank, comma or bracket; add name=OTHER"):
        find("torchvision:resnet18?name=a b")


# --- for other processes --------------------------------------------------------------------------

IN_A_WORKER = """
import pickle, sys
from bench.workloads._adapters import torchvision_models, transformers_models
def never(*_, **__):
    raise AssertionError("tried again")
torchvision_models._tried = transformers_models.plan = never
cls = pickle.load(sys.stdin.buffer).workload()
workload = cls("quick")
sample = workload.dataset(workload.prepare("synthetic", None, None), 0)[3]
print(cls.name, cls.address, cls.__name__, cls.summary, cls.sizes["quick"].text, type(workload.build()).__name__)
print(sum(float(each.double().sum()) for each in (*sample.args, *sample.kwargs.values())))
"""


@pytest.mark.parametrize("address", ["torchvision:squeezenet1_1?num_classes=7", f"transformers:BertForMaskedLM?{TINY}"])
def test_what_an_adapter_worked_out_is_not_worked_out_again_by_workers(address: str) -> None:
    cls = find(address)
    found = subprocess.run([sys.executable, "-c", IN_A_WORKER], input=pickle.dumps(adapted(cls)), stdout=-1, check=True)
    lines = found.stdout.decode().splitlines()
    workload = cls("quick")
    sample = workload.dataset(workload.prepare("synthetic", None, UNUSED), 0)[3]
    names = (cls.name, cls.address, cls.__name__, cls.summary, cls.sizes["quick"].text, type(workload.build()).__name__)
    assert lines[0] == " ".join(map(str, names))
    assert float(lines[1]) == sum(float(each.double().sum()) for each in (*sample.args, *sample.kwargs.values()))


def test_only_adapters_have_something_for_workers(tmp_path: Path) -> None:
    assert adapted(registry.get("mnist_cnn")) is None
    file = tmp_path / "mine.py"
    lines = ("from bench.workloads import Workload", "class Mine(Workload):", "    name = 'not_adapted'")
    file.write_text("\n".join((*lines, "    build = example = None\n")))
    assert adapted(find(f"{file}:Mine")) is None
