"""A workload of one's own: what it need not write, how it is found, and what is wrong with one that is not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.errors import BenchError, DataError, UsageError
from bench.workloads import Batch, Size, find, registry
from tests.workloads.own_file import AnotherEachTime, LeastOfAll, PlainTuple

MODULE, FILE = "tests.workloads.own_file", Path(__file__).parent / "own_file.py"
UNUSED = Path("unused")


def test_what_a_class_need_not_write() -> None:
    workload = LeastOfAll("quick")
    assert (workload.name, workload.summary) == ("least_of_all", "Nothing but what has to be written.")
    assert workload.size == Size(text="own samples", global_batch_size=8)
    assert LeastOfAll("standard").size.batch_per_device == 32
    assert isinstance(workload.optimizer(workload.build().parameters()), torch.optim.AdamW)
    source = workload.prepare("synthetic", None, UNUSED)
    assert (source.kind, source.num_samples, source.text) == ("synthetic", 1_000_000, "made by LeastOfAll")


@pytest.mark.parametrize(
    ("written", "name"), [("MyNet", "my_net"), ("GPT2Small", "gpt2_small"), ("ResNet50", "res_net50"), ("A", "a")]
)
def test_name_from_the_name_of_the_class(written: str, name: str) -> None:
    assert type(written, (LeastOfAll,), {}).name == name


def test_samples_depend_on_seed_and_index_alone() -> None:
    workload = LeastOfAll("quick")
    source = workload.prepare("synthetic", None, UNUSED)
    first, again, other = (workload.dataset(source, seed) for seed in (1, 1, 2))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert torch.equal(first[3].args[0], again[3].args[0])
    assert not torch.equal(first[3].args[0], first[4].args[0]) and not torch.equal(first[3].args[0], other[3].args[0])
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(IndexError):
        first[1_000_000]


def test_samples_that_change_or_are_no_batch_are_refused() -> None:
    with pytest.raises(DataError, match=r"AnotherEachTime.example\(0\) makes another sample each time"):
        AnotherEachTime("quick").prepare("synthetic", None, UNUSED)
    with pytest.raises(DataError, match="PlainTuple.example returns tuple, not a Batch; return Batch"):
        PlainTuple("quick").prepare("synthetic", None, UNUSED)
    with pytest.raises(UsageError, match="least_of_all has no real data; leave out --data real"):
        LeastOfAll("quick").prepare("real", None, UNUSED)


def test_a_dataset_of_ones_own_says_how_long_it_is() -> None:
    class Twelve(LeastOfAll):
        def dataset(self, source: Any, seed: int) -> Any:
            return [Batch(args=(torch.zeros(4),), kwargs={}, targets=torch.tensor(0))] * 12

    assert Twelve("quick").prepare("synthetic", None, UNUSED).num_samples == 12


def test_collate_stacks_tensors_and_numbers_and_keeps_one_of_what_is_alike() -> None:
    def sample(number: int, **rest: Any) -> Batch:
        inputs = {"x": torch.tensor([number]), "n": number, "flag": True, "mode": "a", "none": None, **rest}
        return Batch(args=(), kwargs=inputs, targets={"label": number})

    batch = LeastOfAll("quick").collate([sample(1), sample(2)])
    assert batch.kwargs["x"].tolist() == [[1], [2]] and batch.kwargs["n"].tolist() == [1, 2]
    assert (batch.kwargs["flag"], batch.kwargs["mode"], batch.kwargs["none"]) == (True, "a", None)
    assert batch.targets["label"].tolist() == [1, 2]
    with pytest.raises(UsageError, match=r"no tensor differs between samples: \['a', 'b'\]"):
        LeastOfAll("quick").collate([sample(1), sample(2, mode="b")])


# --- the default loss, by hand --------------------------------------------------------------------


def loss_of(output: Any, targets: Tensor) -> tuple[float, float]:
    total, weight = LeastOfAll("quick").loss(output, targets)
    assert total.shape == weight.shape == ()
    return float(total), float(weight)


def test_loss_of_classes_is_cross_entropy_summed_over_samples() -> None:
    # even logits of 4 classes: ln 4 each
    assert loss_of(torch.zeros(3, 4), torch.tensor([0, 1, 3])) == pytest.approx((3 * 1.3862944, 3))


def test_loss_of_tokens_is_the_mean_of_those_that_count_summed_over_samples() -> None:
    logits = torch.zeros(2, 3, 4)
    logits[0, 0, 1] = 50.0  # sure of class 1
    labels = torch.tensor([[1, 2, -100], [-100, -100, -100]])
    # first sample: (0 + ln 4) / 2; the second has nothing that counts
    assert loss_of(logits, labels) == pytest.approx((1.3862944 / 2, 2))
    assert loss_of(logits.transpose(1, 2), labels) == pytest.approx((1.3862944 / 2, 2))  # classes in dimension 1


def test_loss_of_numbers_is_the_squared_error() -> None:
    output, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert loss_of(output, targets) == pytest.approx((2.0 + 1.0, 2))  # means 4 / 2 and 2 / 2


def test_loss_finds_the_logits() -> None:
    @dataclass
    class Output:
        hidden: Tensor
        logits: Tensor

    expected = pytest.approx((1.3862944, 1))
    labels, logits = torch.tensor([0]), torch.zeros(1, 4)
    assert loss_of(Output(hidden=torch.ones(1, 9), logits=logits), labels) == expected
    assert loss_of((logits, torch.ones(1, 9)), labels) == expected and loss_of({"out": logits}, labels) == expected


@pytest.mark.parametrize(
    ("output", "targets", "message"),
    [
        (torch.zeros(2, 4), torch.zeros(2, 3), r"\(2, 4\) and the targets \(2, 3\): the squared error needs equal"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.long), "cross-entropy needs one more dimension"),
        (torch.zeros(2, 4), torch.zeros(2, dtype=torch.bool), "takes no targets of type torch.bool"),
        (torch.zeros(2, 4), None, "takes a tensor of targets, not NoneType"),
        (object(), torch.zeros(2), "finds no tensor in an output of type object"),
    ],
)
def test_loss_says_what_does_not_fit(output: Any, targets: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"{message}.*write the workload's loss"):
        LeastOfAll("quick").loss(output, targets)


# --- the default blocks ---------------------------------------------------------------------------


def layer() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def blocks_of(model: nn.Module) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[block] for block in LeastOfAll("quick").blocks(model)]


def test_blocks_are_the_repeated_layers_in_order() -> None:
    model = nn.ModuleDict({"stem": nn.Linear(2, 2), "body": nn.ModuleList(layer() for _ in range(3)), "head": layer()})
    assert blocks_of(model) == ["body.0", "body.1", "body.2"]
    assert blocks_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []  # plain layers
    assert blocks_of(nn.Sequential(layer(), nn.Linear(2, 2))) == []  # nothing twice
    assert blocks_of(nn.Sequential(nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU()))) == []  # no parameters


def test_blocks_are_the_outermost_ones() -> None:
    inner = [nn.Sequential(layer(), layer()) for _ in range(2)]
    assert blocks_of(nn.Sequential(*inner)) == ["0", "1"]


def test_blocks_share_nothing_with_anything_outside() -> None:
    model = nn.ModuleDict({"head": nn.Linear(2, 2, bias=False), "body": nn.ModuleList(layer() for _ in range(3))})
    model["head"].weight = model["body"][1][0].weight  # type: ignore[index,union-attr]
    assert blocks_of(model) == ["body.0", "body.2"]
    model["body"][2] = model["body"][0]  # type: ignore[index,operator,assignment]
    assert blocks_of(model) == []


# --- finding one ----------------------------------------------------------------------------------


def test_by_module_and_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(f"{MODULE}:LeastOfAll")
    assert found is LeastOfAll and found.address == f"{MODULE}:LeastOfAll"
    assert registry.get("least_of_all") is found and find(f"{MODULE}:LeastOfAll") is found
    shutil.copy(FILE, tmp_path / "copied.py")
    text = (
        (tmp_path / "copied.py")
        .read_text()
        .replace("class LeastOfAll(", "class FromAFile(")
        .replace("LeastOfAll", "FromAFile")
    )
    (tmp_path / "copied.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    here = find("copied.py:FromAFile")
    assert here.name == "from_a_file" and here.address == f"{tmp_path}/copied.py:FromAFile"
    monkeypatch.chdir("/")
    assert find(str(here.address)) is here  # the address works from any folder
    assert find(f"{tmp_path}/copied.py:FromAFile") is here


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("WIDTH = 7\n")
    (tmp_path / "imports_it.py").write_text(
        "from tests.workloads.own_file import LeastOfAll\nimport beside_it\n"
        "class Wide(LeastOfAll):\n    width = beside_it.WIDTH\n"
    )
    assert find(f"{tmp_path}/imports_it.py:Wide").width == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("resnet50", "is a workload of the suite; write --workloads resnet50"),
        ("nonsense", "'nonsense' is not one of the forms: package.module:Class, path/to/file.py:Class"),
        ("no.such.module:Mine", "importing no.such.module failed: ModuleNotFoundError: No module named 'no'"),
        ("/no/such/file.py:Mine", "there is no file /no/such/file.py; correct the path"),
        (f"{FILE.parent}/own_fil.py:Mine", "there is no file .*own_fil.py; there is: .*own_file.py"),
        (f"{MODULE}:LeastOfAl", "there is no class LeastOfAl in .*; there is: .*LeastOfAll"),
        (f"{MODULE}:NoWorkload", "this is no subclass of bench.workloads.Workload: NoWorkload"),
        (f"{MODULE}:NoModel", r"class NoModel in .* lacks build\(\); write it"),
        (f"{MODULE}:NoData", r"class NoData in .* has neither example\(\) nor dataset\(\)"),
        (f"{MODULE}:TakesAName", "has the name 'resnet50' of a workload of the suite; give the class another `name`"),
        (f"{MODULE}:BadName", "BadName.name is 'my net'; a name has no blank, comma or bracket"),
    ],
)
def test_what_is_wrong_with_it(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(address)
    assert "resnet50" in registry.names() and "my net" not in registry.names()


def test_a_file_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(UsageError, match=r"importing .*broken.py failed \(.*broken.py, line 2\): ZeroDivisionError"):
        find(f"{file}:Mine")


def test_two_files_with_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.py").write_text(
            "from tests.workloads.own_file import LeastOfAll\nclass SameName(LeastOfAll):\n    pass\n"
        )
    find(f"{tmp_path}/one/m.py:SameName")
    with pytest.raises(UsageError, match="SameName has the name 'same_name' of --workload .*one/m.py:SameName"):
        find(f"{tmp_path}/two/m.py:SameName")


def test_names_of_cases_and_workloads_never_import(tmp_path: Path) -> None:
    marker = tmp_path / "imported"
    (tmp_path / "m.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    for name in (f"{tmp_path}/m.py:Mine", "m:Mine"):
        with pytest.raises(BenchError, match="unknown workload"):
            registry.get(name)
    assert not marker.exists()


MODEL = """
import torch
from torch import nn
from bench.workloads import Batch, Workload


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.spare = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)), nn.Linear(2, 2)

    def forward(self, x):
        return self.body(x)


class WithSpare(Workload):
    def build(self):
        return Net()

    def example(self, index):
        return Batch(args=(torch.randn(6),), kwargs={}, targets=torch.randint(3, ()))
"""


def test_a_file_outside_runs_from_the_command_line(tmp_path: Path) -> None:
    """A relative path, workers that find the class, parity, a strategy that cannot take it, and one that can."""
    (tmp_path / "model.py").write_text(MODEL)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", f"{root}/scenarios/test_own_workloads.py", "-p", "no:cacheprovider"]
    options = ["--workload", "model.py:WithSpare", "--launches", "2", "--rounds", "1", "--device-type", "cpu"]
    strategies = ["--strategies", "single,ddp,ddp:find_unused_parameters=on"]
    where = ["--results", "results", "--reports", "reports"]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    run = subprocess.run(
        [*command, *options, *strategies, *where],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "6 passed, 3 skipped" in run.stdout
    from bench.recording.reader import find_run, read_run

    launches = read_run(find_run(tmp_path / "results", "latest")).launches
    assert {row.workload for row in launches} == {"with_spare"} and len(launches) == 9
    assert not any(str(tmp_path) in row.case_id for row in launches)
    refused = sorted((row for row in launches if row.status == "skipped"), key=lambda row: row.position)
    assert [(row.strategy, row.settings) for row in refused] == [("ddp", ())] * 3  # the check and both launches
    assert all("spare.weight, spare.bias" in str(row.reason) for row in refused)
    assert len({row.reason for row in refused if row.purpose != "parity"}) == 1
    assert [row.traceback is not None for row in refused] == [True, True, False]  # the check, and one launch
    parity = {row.strategy: row for row in launches if row.purpose == "parity" and row.status == "ok"}
    assert set(parity) == {"single", "ddp"}
