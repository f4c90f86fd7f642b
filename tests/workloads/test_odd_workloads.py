"""Mistakes in a workload of one's own are told at the start, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from bench.errors import DataError, UsageError
from bench.workloads import Workload, find
from bench.workloads._blocks import repeated_layers

FILE = Path(__file__).with_name("odd_file.py")
UNUSED = Path("unused")


def made(name: str) -> Workload:
    return find(f"{FILE}:{name}")("quick")


def test_docstring_of_blanks_is_no_summary() -> None:
    assert type(made("Plain")).summary == "Plain"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("OwnInit", "calls super().__init__(size)"),
        ("MoreArguments", "takes the size alone"),
        ("NoSizes", "standard and quick"),
        ("NoBatch", "give its Size one of the two batches"),
    ],
)
def test_class_that_cannot_be_made_is_refused_at_once(name: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        made(name)
    assert says in str(raised.value) and name in str(raised.value)


def test_samples_of_different_shapes_ask_for_padding_or_collate() -> None:
    workload = made("Ragged")
    dataset = workload.dataset(workload.prepare("synthetic", None, UNUSED), 0)
    with pytest.raises(UsageError, match=r"pad them\), or write collate"):
        workload.collate([dataset[0], dataset[1]])


def test_dataset_of_tuples_is_told_to_give_batches() -> None:
    with pytest.raises(UsageError, match="samples of type tuple; make each a Batch"):
        made("Tuples").prepare("synthetic", None, UNUSED)


def test_sample_that_is_not_finite_is_named_so() -> None:
    with pytest.raises(DataError, match="not finite"):
        made("NotANumber").prepare("synthetic", None, UNUSED)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("from .beside import x", "package.module:Class"),
        ("import nowhere_to_be_found", "PYTHONPATH"),
    ],
)
def test_file_that_cannot_be_imported(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        find(f"{file}:Mine")


@pytest.mark.parametrize("model", ["regnet_y_400mf", "regnet_x_400mf"])
def test_torchvision_model_that_cannot_be_built_without_memory(model: str) -> None:
    assert sum(p.numel() for p in find(f"torchvision:{model}")("quick").build().parameters()) > 1e6


def test_whatever_an_adapter_meets_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="Sam2VideoModel needs inference_session"):
        find("transformers:Sam2VideoModel")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)


def test_lists_of_lists_are_no_blocks_but_their_layers_are() -> None:
    model = nn.Module()
    model.stages = nn.ModuleList(nn.ModuleList(Layer() for _ in range(2)) for _ in range(3))
    blocks = repeated_layers(model)
    assert len(blocks) == 6 and all(isinstance(block, Layer) for block in blocks)
