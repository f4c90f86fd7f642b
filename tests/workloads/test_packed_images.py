"""Models that want the patches of all images as one row, and configurations with numbers that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.workloads import find
from bench.workloads._adapters.completing import completions
from bench.workloads._adapters.inputs import Input
from bench.workloads._adapters.packing import install_packing, unpacked
from bench.workloads._adapters.trying import batches

TEXT = (
    "text_config.hidden_size=256&text_config.intermediate_size=64&text_config.num_attention_heads=2"
    "&text_config.num_key_value_heads=1&text_config.num_hidden_layers=1&text_config.vocab_size=999"
)
QWEN = (
    f"Qwen2VLForConditionalGeneration?{TEXT}&vision_config.depth=1&vision_config.embed_dim=32&vision_config.num_heads=2"
)


def taken(model: str) -> tuple[Any, Any, list[Any]]:
    """A workload at size quick, its model in evaluation, and two samples."""
    workload: Any = find(f"transformers:{model}")("quick")
    torch.manual_seed(0)
    module = workload.build().eval()
    dataset = workload.dataset(workload.prepare("synthetic", None, Path("unused")), 0)
    return workload, module, [dataset[0], dataset[1]]


def loss(workload: Any, module: nn.Module, samples: list[Any]) -> torch.Tensor:
    batch = workload.collate(samples)
    total: torch.Tensor = workload.loss(module(**batch.kwargs), batch.targets)[0]
    return total


@pytest.mark.parametrize(
    ("model", "text"),
    [
        # 64 pixels are 4 x 4 patches of 14, of 3 colours in 2 frames; four are merged to one place in the text
        (QWEN, "68 tokens, vocabulary 999, 16x1176 patches; next tokens"),
        ("GlmOcrVisionModel?depth=1&hidden_size=32&num_heads=2&intermediate_size=32", "16x1176 patches; stand-in"),
        ("Kimi_K25VisionModel?num_hidden_layers=1", "16x3x14x14 patches; stand-in"),
    ],
    ids=["text and images", "rows", "as they lie"],
)
def test_patches_of_each_sample(model: str, text: str) -> None:
    workload, module, samples = taken(model)
    assert workload.size.text.startswith(text)
    loss(workload, module, samples).backward()  # type: ignore[no-untyped-call]
    assert any(p.grad is not None and bool(p.grad.any()) for p in module.parameters())
    with torch.no_grad():
        together = float(loss(workload, module, samples))
        apart = float(loss(workload, module, samples[:1]) + loss(workload, module, samples[1:]))
    assert together == pytest.approx(apart, rel=1e-4)


def test_the_width_of_image_features_that_a_configuration_lacks_is_named_and_the_model_sees_its_images() -> None:
    cls: Any = find(f"transformers:{QWEN}")
    assert "vision_config.hidden_size=256" in cls.name
    assert find(cls.address).address == cls.address
    inputs = cls.plans["quick"].inputs
    assert inputs["image_grid_thw"].grid == (1, 4, 4) and inputs["input_ids"].placed[0][1] == 4
    types = inputs["mm_token_type_ids"].draw(torch.Generator())
    assert types.shape == (68,) and types.nonzero().flatten().tolist() == [1, 2, 3, 4]


class Rows(nn.Module):
    """Takes and returns one row of patches for the whole batch, and a total for each image."""

    def forward(self, patches: torch.Tensor, grid_thw: torch.Tensor) -> dict[str, torch.Tensor]:
        assert patches.shape == (6, 2)
        return {"rows": patches + 1, "total": grid_thw.sum(dim=1).float()}


def test_rows_are_joined_on_the_way_in_and_taken_apart_on_the_way_out() -> None:
    model = Rows()
    patches = Input(kind="noise", shape=(3, 2), packed=True)
    install_packing(model, {"patches": patches, "grid_thw": Input(kind="grid", shape=(3,), grid=(1, 1, 3))})
    given = torch.arange(12.0).reshape(2, 3, 2)
    found = model(patches=given, grid_thw=torch.tensor([[1, 1, 3], [1, 1, 3]]))
    assert torch.equal(found["rows"], given + 1) and found["total"].tolist() == [5, 5]


def test_what_is_no_row_of_all_samples_stays() -> None:
    kept = unpacked((torch.zeros(3, 5), torch.zeros(()), torch.zeros(7, 1)), 3)
    assert [tuple(tensor.shape) for tensor in kept] == [(3, 5), (), (7, 1)]


def test_with_a_grid_whole_numbers_have_values_in_the_trial() -> None:
    ids, noise = Input(kind="ids", shape=(4,), high=9), Input(kind="noise", shape=(4,))
    grid = Input(kind="grid", shape=(2,), grid=(8, 8))
    assert [value.is_meta for value in batches({"a": ids, "b": noise, "c": grid}, 5).values()] == [False, True, False]
    assert all(value.is_meta for value in batches({"a": ids, "b": noise}, 5).values())


def test_what_stands_for_a_number_that_is_missing() -> None:
    from transformers import NemotronConfig

    config: Any = NemotronConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=4)
    config.num_key_value_heads = None
    assert completions(config, None) == {"num_key_value_heads": "4"}
    assert completions(config, None, {"num_key_value_heads"}) == {}  # what was typed stays


def test_heads_that_divide_the_width_unless_it_was_typed() -> None:
    from types import SimpleNamespace

    from transformers import SiglipVisionConfig

    config: Any = SiglipVisionConfig(hidden_size=48, num_attention_heads=12)
    config.num_attention_heads = 14
    config.get_text_config = lambda **_: SimpleNamespace(hidden_size=48)
    assert completions(config, None) == {"num_attention_heads": "12"}
    assert completions(config, None, {"hidden_size"}) == {}


def test_a_class_without_a_default_gets_one_and_its_name_says_so() -> None:
    small = "hidden_size=64&num_attention_heads=4&num_hidden_layers=1&num_key_value_heads=2"
    cls = find(f"transformers:MinistralForCausalLM?{small}")
    assert "head_dim=16" in cls.name and "next tokens" in cls.sizes["quick"].text
    given = find(f"transformers:MinistralForCausalLM?head_dim=32&{small}")
    assert "head_dim=32" in given.name  # what was typed stays
