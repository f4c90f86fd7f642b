"""The classes of docs/workloads.md, taken from there, are found and train a step."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from bench.errors import UsageError
from bench.workloads import find

DOCUMENT = Path(__file__).parents[2] / "docs" / "workloads.md"
SAMPLES = 4
TAGGER = """
class TaggerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(500, 8), nn.Linear(8, 7)

    def forward(self, tokens):
        return {"logits": self.head(self.embedding(tokens))}
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path_factory.mktemp("documented") / "mine.py"
    file.write_text("\n\n".join([*code, TAGGER]), encoding="utf-8")
    return file


@pytest.mark.parametrize(("name", "data"), [("Mine", "synthetic"), ("Tagger", "synthetic"), ("MineOnRows", "real")])
def test_it_trains_a_step(mine: Path, name: str, data: str) -> None:
    np.save(mine.parent / "rows.npy", np.arange(5 * 33).reshape(5, 33) % 10)
    workload = find(f"{mine}:{name}")("quick")
    source = workload.prepare(data, mine.parent, mine.parent)
    assert source.kind == data
    dataset = workload.dataset(source, 0)
    batch = workload.collate([*Subset(dataset, range(SAMPLES))])
    model = workload.build()
    loss, weight = workload.loss(model(*batch.args, **batch.kwargs), batch.targets)
    assert float(weight) == workload.weight(dataset, range(SAMPLES))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = workload.optimizer(model.parameters())
    (loss / weight).backward()
    optimizer.step()
    assert not all(map(torch.equal, before, model.parameters()))


def test_data_of_your_own_that_are_not_there_are_asked_for(mine: Path, tmp_path: Path) -> None:
    workload = find(f"{mine}:MineOnRows")("quick")
    with pytest.raises(UsageError, match=r"there is no .*rows\.npy; name its folder with --data-root"):
        workload.prepare("real", tmp_path, tmp_path)
