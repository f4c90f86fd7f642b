"""BalancedDataParallel's own logic, with CPU stand-ins for the four phases that only CUDA has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.strategies import balanced_dp
from bench.strategies.balanced_dp import BalancedDataParallel
from bench.structure import tensors_of, with_tensors


@dataclass
class Phases:
    """What the stand-ins were asked to do."""

    scattered: list[tuple[list[int], list[int]]] = field(default_factory=list)
    replicated: list[list[int]] = field(default_factory=list)
    applied: list[list[int]] = field(default_factory=list)
    gathered_on: list[int] = field(default_factory=list)
    plain_forwards: int = 0


def linked_replica(module: nn.Module, own_buffers: bool) -> nn.Module:
    """What torch's replicate makes: parameters are plain attributes that lead back to the module's own."""
    clones = {child: child._replicate_for_data_parallel() for child in module.modules()}
    for child, clone in clones.items():
        for name, inner in child._modules.items():
            clone._modules[name] = None if inner is None else clones[inner]
        for name, parameter in child._parameters.items():
            if parameter is not None:
                setattr(clone, name, parameter.clone())
        if not own_buffers:
            clone._buffers = {name: copy.deepcopy(buffer) for name, buffer in child._buffers.items()}
    return clones[module]


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> Phases:
    seen = Phases()

    def init(self: Any, module: nn.Module, device_ids: Sequence[int] | None = None) -> None:
        nn.Module.__init__(self)
        assert device_ids is not None
        self.module, self.device_ids = module, list(device_ids)
        self.output_device, self.dim = self.device_ids[0], 0

    def plain_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        seen.plain_forwards += 1
        return self.module(*inputs, **kwargs)

    class CpuScatter:
        @staticmethod
        def apply(devices: list[int], sizes: list[int], dim: int, tensor: Tensor) -> Sequence[Tensor]:
            seen.scattered.append((list(devices), list(sizes)))
            return tensor.split(list(sizes), dim)

    def replicate(self: Any, module: nn.Module, device_ids: Sequence[int]) -> list[nn.Module]:
        seen.replicated.append(list(device_ids))
        return [linked_replica(module, own_buffers=number == 0) for number in range(len(device_ids))]

    def apply(modules: list[nn.Module], inputs: list[Any], kwargs: list[Any], devices: list[int]) -> list[Any]:
        assert len(modules) == len(inputs) == len(kwargs) == len(devices)
        seen.applied.append(list(devices))
        return [module(*args, **named) for module, args, named in zip(modules, inputs, kwargs, strict=True)]

    def gather(self: Any, outputs: list[Any], device: int) -> Any:
        seen.gathered_on.append(device)
        columns = zip(*(tensors_of(output) for output in outputs), strict=True)
        return with_tensors(outputs[0], [torch.cat(column) for column in columns])

    monkeypatch.setattr(nn.DataParallel, "__init__", init)
    monkeypatch.setattr(nn.DataParallel, "forward", plain_forward)
    monkeypatch.setattr(nn.DataParallel, "replicate", replicate)
    monkeypatch.setattr(nn.DataParallel, "gather", gather)
    monkeypatch.setattr(balanced_dp, "Scatter", CpuScatter)
    monkeypatch.setattr(balanced_dp, "parallel_apply", apply)
    return seen


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def images(count: int) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("batch", "gpu0_bsz", "devices", "sizes"),
    [
        (22, 4, [0, 1, 2, 3], [4, 6, 6, 6]),
        (22, 100, [0, 1, 2, 3], [5, 6, 6, 5]),  # 22 // 4 = 5 at the most, 17 = 6 + 6 + 5
        (5, 1, [0, 1, 2, 3], [1, 2, 1, 1]),
        (9, 0, [1, 2, 3], [3, 3, 3]),
        (3, 4, [1, 2, 3], [1, 1, 1]),
        (2, 0, [1, 2], [1, 1]),
        (1, 4, [1], [1]),
    ],
)
def test_only_devices_with_samples_take_part(
    phases: Phases, batch: int, gpu0_bsz: int, devices: list[int], sizes: list[int]
) -> None:
    net = make_net()
    output = BalancedDataParallel(net, gpu0_bsz, device_ids=[0, 1, 2, 3])(images(batch))
    assert phases.scattered == [(devices, sizes)]
    assert phases.applied == [devices]
    # The broadcast starts from the first device, which holds the parameters, also where it stays idle.
    assert phases.replicated == [devices if devices[0] == 0 else [0, *devices]]
    assert phases.gathered_on == [0]
    torch.testing.assert_close(output, net(images(batch)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gpu0_bsz", [0, 1, 4])
def test_gradients_are_those_of_the_plain_module(phases: Phases, gpu0_bsz: int) -> None:
    plain, wrapped = make_net(), BalancedDataParallel(make_net(), gpu0_bsz, device_ids=[0, 1, 2])
    for module in (plain, wrapped):
        output = module(images(13))
        (output.square() * torch.arange(1.0, 14).unsqueeze(1)).mean().backward()
    for one, other in zip(plain.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-6, atol=1e-6)


def test_one_device_takes_all_through_torchs_own_forward(phases: Phases) -> None:
    output = BalancedDataParallel(make_net(), 4, device_ids=[0])(images(8))
    assert (phases.plain_forwards, phases.scattered, len(output)) == (1, [], 8)


class Keywords(nn.Module):
    """Takes keywords only, with containers and values that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, *, pixels: dict[str, list[Tensor]], scale: float, text: str | None = None) -> dict[str, Tensor]:
        (first, second) = pixels["list"]
        assert text == "as it was" and len(first) == len(second)
        return {"logits": self.net(first + 2 * second) * scale}


@pytest.mark.parametrize("gpu0_bsz", [0, 2])
def test_keyword_only_inputs_in_nested_containers(phases: Phases, gpu0_bsz: int) -> None:
    module = Keywords()
    inputs: dict[str, Any] = {"pixels": {"list": [images(7), images(7) + 1]}, "scale": 0.5, "text": "as it was"}
    output = BalancedDataParallel(module, gpu0_bsz, device_ids=[0, 1, 2])(**inputs)
    torch.testing.assert_close(output["logits"], module(**inputs)["logits"], rtol=1e-6, atol=1e-6)
    # The others share 7 - 2 = 3 + 2, or 7 = 4 + 3; one scatter for each of the two tensors.
    share = ([0, 1, 2], [2, 3, 2]) if gpu0_bsz else ([1, 2], [4, 3])
    assert phases.scattered == [share, share]


@pytest.mark.parametrize(("gpu0_bsz", "seen_by_first"), [(0, 4), (2, 2)])
def test_batch_norm_buffers_follow_the_first_replica_that_ran(
    phases: Phases, gpu0_bsz: int, seen_by_first: int
) -> None:
    norm, expected = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    BalancedDataParallel(norm, gpu0_bsz, device_ids=[0, 1, 2])(images(8))
    expected(images(8)[:seen_by_first])
    assert norm.running_mean is not None and norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, expected.running_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(norm.running_var, expected.running_var, rtol=1e-6, atol=1e-6)
    assert norm.num_batches_tracked == 1


def test_tensor_whose_first_dimension_is_not_the_batch_is_refused(phases: Phases) -> None:
    with pytest.raises(ValueError, match=r"\(5, 4\).* 7 samples"):
        BalancedDataParallel(make_net(), 2, device_ids=[0, 1])(images(7), images(5))


def test_exception_in_a_replica_is_raised(phases: Phases) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("planted")

    net: Any = make_net()
    net.register_forward_hook(fail)
    with pytest.raises(MemoryError, match="planted"):
        BalancedDataParallel(net, 0, device_ids=[0, 1])(images(4))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA devices")
def test_without_cuda_it_refuses_instead_of_being_the_bare_model() -> None:
    with pytest.raises(RuntimeError, match="needs CUDA"):
        BalancedDataParallel(make_net(), 2)


def test_negative_share_is_refused_with_its_number() -> None:
    make: Callable[..., nn.Module] = BalancedDataParallel
    with pytest.raises(ValueError, match="gpu0_bsz is -1"):
        make(make_net(), -1, device_ids=[0, 1])
