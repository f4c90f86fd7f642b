"""What every workload promises: shapes, seeds, exact losses, used parameters, steady first steps."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.errors import UnknownNameError, UsageError
from bench.workloads import Batch, Workload, registry

NAMES = ("bert_small", "mnist_cnn", "resnet50")
PARAMETERS = {
    ("mnist_cnn", "standard"): 1_199_882,
    ("mnist_cnn", "quick"): 1_199_882,
    ("resnet50", "standard"): 25_557_032,
    ("resnet50", "quick"): 25_557_032,
    # embeddings (V + 512 + 2) * 512 + LayerNorm 1,024; 4 layers of 3,152,384; head 262,656 + 1,024 + V
    ("bert_small", "standard"): 28_795_194,
    ("bert_small", "quick"): 15_238_656,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(name: str, size: str = "quick") -> Workload:
    return registry.get(name)(size)


@cache
def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return make(name).build()


def examples(workload: Workload, count: int, first: int = 0, seed: int = 0) -> list[Batch]:
    dataset = workload.dataset(workload.prepare("synthetic", None, Path("unused")), seed)
    return [dataset[index] for index in range(first, first + count)]


def logits_of(output: Any) -> Tensor:
    logits: Tensor = getattr(output, "logits", output)
    return logits


def test_all_are_registered() -> None:
    assert set(NAMES) <= set(registry.names())


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name: str) -> None:
    cls = registry.get(name)
    assert set(cls.sizes) == {"standard", "quick"} and cls.name == name and cls.summary
    for size in cls.sizes.values():
        assert (size.global_batch_size is None) != (size.batch_per_device is None) and size.text
    with pytest.raises(UnknownNameError, match=f"unknown size of {name} 'huge'; there is: quick, standard"):
        cls("huge")
    with pytest.raises(UnknownNameError, match="unknown kind of data"):
        cls("quick").prepare("fake", None, Path("unused"))


@pytest.mark.parametrize(("name", "size"), PARAMETERS)
def test_parameter_count_and_seed(name: str, size: str) -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(make(name, size).build())
    first, again, other = (torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models)
    assert len(first) == PARAMETERS[name, size] and first.dtype == torch.float32
    assert first.equal(again) and not first.equal(other)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_share_no_parameters(name: str) -> None:
    blocks = make(name).blocks(model_of(name))
    assert len(blocks) == {"mnist_cnn": 2, "resnet50": 16, "bert_small": 4}[name]
    inside = [parameter for block in blocks for parameter in block.parameters()]
    assert len({id(parameter) for parameter in inside}) == len(inside)
    assert {id(block) for block in blocks} <= {id(module) for module in model_of(name).modules()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", ["standard", "quick"])
def test_batches(name: str, size: str) -> None:
    workload = make(name, size)
    batch = workload.collate(examples(workload, 3))
    inputs = [*batch.args, *batch.kwargs.values()]
    assert all(len(tensor) == 3 for tensor in (*inputs, batch.targets))
    assert inputs[0].any(dim=tuple(range(1, inputs[0].dim()))).all()
    assert not inputs[0][0].equal(inputs[0][1])
    pixels = {"mnist_cnn": (1, 28, 28), "resnet50": (3, 224, 224) if size == "standard" else (3, 64, 64)}
    tokens = workload.size.tokens_per_sample
    assert inputs[0].shape[1:] == pixels.get(name, (tokens,))


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_the_same_in_another_process(name: str) -> None:
    lines = (
        "import sys; sys.path[:0] = ['.', 'tests/workloads']",
        "from test_workload_contract import fingerprint",
        f"print(fingerprint({name!r}))",
    )
    run = subprocess.run([sys.executable, "-c", "; ".join(lines)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == fingerprint(name)


def fingerprint(name: str) -> str:
    """One sample from the middle of the data, without the ones before it."""
    workload = make(name)
    item = examples(workload, 1, first=1234, seed=7)[0]
    tensors = [*item.args, *item.kwargs.values(), item.targets]
    return repr([(tensor.double().sum().item(), tensor.flatten()[-5:].tolist()) for tensor in tensors])


@pytest.mark.parametrize("name", NAMES)
def test_loss_is_torchs_mean_times_the_weight(name: str) -> None:
    workload, model = make(name), model_of(name).eval()
    batch = workload.collate(examples(workload, 4))
    with torch.no_grad():
        output = model(*batch.args, **batch.kwargs)
        loss, weight = workload.loss(output, batch.targets)
    logits = logits_of(output)
    mean = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch.targets.reshape(-1))
    torch.testing.assert_close(loss, mean * weight)
    assert loss.shape == weight.shape == ()
    assert logits.shape[-1] == {"mnist_cnn": 10, "resnet50": 1000, "bert_small": 4096}[name]


@pytest.mark.parametrize("name", NAMES)
def test_weight_of_the_whole_batch_is_the_sum_over_its_shards(name: str) -> None:
    workload, model = make(name), model_of(name).eval()
    items = examples(workload, 5)
    dataset = workload.dataset(workload.prepare("synthetic", None, Path("unused")), 0)
    known = workload.weight(dataset, range(5))
    with torch.no_grad():
        shards = [workload.collate(items[:2]), workload.collate(items[2:])]
        pairs = [workload.loss(model(*shard.args, **shard.kwargs), shard.targets) for shard in shards]
        whole = workload.collate(items)
        loss, weight = workload.loss(model(*whole.args, **whole.kwargs), whole.targets)
    assert known == float(weight) == float(pairs[0][1] + pairs[1][1])
    torch.testing.assert_close(loss, pairs[0][0] + pairs[1][0])


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    workload = make(name)
    torch.manual_seed(0)
    model = workload.build()
    batch = workload.collate(examples(workload, 4))
    loss, weight = workload.loss(model(*batch.args, **batch.kwargs), batch.targets)
    (loss / weight).backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    zero = {key for key, value in model.named_parameters() if not value.grad.any()}  # type: ignore[union-attr]
    # A block whose last BatchNorm starts at zero passes no gradient into its branch in the first step.
    allowed = {key for key, _ in model.named_parameters() if name == "resnet50" and ".downsample." not in key}
    # Softmax does not change when all its scores move together, so this gradient is zero but for rounding.
    allowed |= {key for key, _ in model.named_parameters() if key.endswith("attention.self.key.bias")}
    assert zero <= allowed


# BERT overshoots at 0.1: its normalised hidden states of width 512 make the decoder's step large.
@pytest.mark.parametrize(("name", "rate"), [("bert_small", 0.01), ("mnist_cnn", 0.1), ("resnet50", 0.1)])
def test_three_plain_steps_lower_the_loss(name: str, rate: float) -> None:
    workload = make(name)
    torch.manual_seed(0)
    model = workload.build().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    batch = workload.collate(examples(workload, 8))
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss, weight = workload.loss(model(*batch.args, **batch.kwargs), batch.targets)
        (loss / weight).backward()
        optimizer.step()
        losses.append((loss / weight).item())
    assert losses == sorted(losses, reverse=True)


def test_optimizers() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    mnist, resnet, bert = (make(name).optimizer(parameters) for name in ("mnist_cnn", "resnet50", "bert_small"))
    assert (type(mnist), mnist.defaults["lr"], mnist.defaults["momentum"]) == (torch.optim.SGD, 0.01, 0)
    assert (type(resnet), resnet.defaults["lr"], resnet.defaults["momentum"]) == (torch.optim.SGD, 0.1, 0.9)
    assert (type(bert), bert.defaults["lr"]) == (torch.optim.AdamW, 1e-4)


def test_one_root_serves_every_workload(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "images" / "cat").mkdir(parents=True)
    Image.new("RGB", (80, 70), (9, 9, 9)).save(tmp_path / "images" / "cat" / "1.png")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("so many words and words again\n" * 50)
    for name in NAMES:
        workload = make(name)
        source = workload.prepare("real", tmp_path, tmp_path / "cache")
        assert source.kind == "real" and source.num_samples == len(workload.dataset(source, 0))  # type: ignore[arg-type]
        batch = workload.collate([workload.dataset(source, 0)[0]])
        output = model_of(name).eval()(*batch.args, **batch.kwargs)
        assert workload.loss(output, batch.targets)[0].isfinite()


@pytest.mark.parametrize("name", ["resnet50", "bert_small"])
def test_real_data_without_a_root(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name it with --data-root, or use --data synthetic"):
        make(name).prepare("real", None, tmp_path)
