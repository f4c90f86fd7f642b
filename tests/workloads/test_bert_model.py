"""BERT is the real model, and runs where its parameters are plain attributes (DataParallel's replicas)."""

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import scatter_gather

from bench.workloads import Batch, registry

WORKLOAD = registry.get("bert_small")("quick")


@cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return WORKLOAD.build().eval()


def batch(count: int = 3) -> Batch:
    dataset = WORKLOAD.dataset(WORKLOAD.prepare("synthetic", None, Path("unused")), 0)
    return WORKLOAD.collate([dataset[index] for index in range(count)])


def replicate(network: nn.Module) -> nn.Module:
    """One host replica with the marks of `torch.nn.parallel.replicate`: parameters are non-leaf attributes."""
    copies = {module: module._replicate_for_data_parallel() for module in network.modules()}
    parameters = {parameter: parameter.view_as(parameter) for parameter in network.parameters()}
    for module, replica in copies.items():
        replica._former_parameters = {}
        for key, child in module._modules.items():
            setattr(replica, key, None if child is None else copies[child])
        for key, parameter in module._parameters.items():
            setattr(replica, key, None if parameter is None else parameters[parameter])
        for key, buffer in module._buffers.items():
            setattr(replica, key, None if buffer is None else buffer.clone())
    return copies[network]


def test_it_is_the_real_model_with_a_tied_decoder_and_no_pooler() -> None:
    from transformers import BertForMaskedLM

    assert type(model()) is BertForMaskedLM
    decoder = model().get_parameter("cls.predictions.decoder.weight")
    assert decoder is model().get_parameter("bert.embeddings.word_embeddings.weight")
    assert model().get_submodule("bert").pooler is None
    assert model().config._attn_implementation == "sdpa"  # type: ignore[union-attr]


@pytest.mark.parametrize("training", [False, True])
def test_a_replica_without_parameters_runs_and_trains(training: bool) -> None:
    inputs = batch()
    results: list[tuple[Tensor, list[Tensor]]] = []
    for make in (lambda: model(), lambda: replicate(model())):
        model().train(training).zero_grad()
        network = make()
        torch.manual_seed(1)  # dropout
        loss, weight = WORKLOAD.loss(network(**inputs.kwargs), inputs.targets)
        (loss / weight).backward()
        results.append((loss.detach(), [p.grad for p in model().parameters() if p.grad is not None]))
    model().eval()
    assert list(replicate(model()).parameters()) == []
    (loss, gradients), (replica_loss, replica_gradients) = results
    assert len(gradients) == len(replica_gradients) == len(list(model().parameters()))
    torch.testing.assert_close(replica_loss, loss)
    torch.testing.assert_close(replica_gradients, gradients)


def test_a_replica_runs_under_autocast() -> None:
    inputs = batch()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = replicate(model())(**inputs.kwargs).logits
        loss, _ = WORKLOAD.loss(model()(**inputs.kwargs), inputs.targets)
    assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32


def test_torchs_own_gather_joins_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    class HostGather:
        @staticmethod
        def apply(_device: object, dim: int, *tensors: Tensor) -> Tensor:
            return torch.cat(tensors, dim)

    monkeypatch.setattr(scatter_gather, "Gather", HostGather)
    inputs = batch(5)
    with torch.no_grad():
        outputs = [
            model()(**{key: value[part] for key, value in inputs.kwargs.items()}) for part in (slice(0, 2), slice(2, 5))
        ]
        joined = scatter_gather.gather(outputs, torch.device("cpu"))
        whole = model()(**inputs.kwargs)
    assert type(joined) is type(whole)
    torch.testing.assert_close(joined.logits, whole.logits)
    torch.testing.assert_close(WORKLOAD.loss(joined, inputs.targets), WORKLOAD.loss(whole, inputs.targets))


def test_padding_changes_nothing_before_it() -> None:
    inputs = batch(2).kwargs
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    longer = {key: nn.functional.pad(value, (0, 6)) for key, value in inputs.items()}
    with torch.no_grad():
        plain, padded = model()(**inputs).logits, replicate(model())(**longer).logits
    torch.testing.assert_close(padded[:, :-6], plain, atol=1e-4, rtol=1e-4)


def test_weight_is_known_without_making_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = WORKLOAD.dataset(WORKLOAD.prepare("synthetic", None, Path("unused")), 0)
    by_hand = sum(int((dataset[index].targets != -100).sum()) for index in (4, 9, 2))
    wrapped = torch.utils.data.Subset(dataset, [4, 9, 2])
    assert WORKLOAD.weight(wrapped, range(3)) == by_hand
    monkeypatch.setattr(type(dataset), "__getitem__", lambda *_: pytest.fail("made a sample"))
    assert WORKLOAD.weight(dataset, (4, 9, 2)) == by_hand
