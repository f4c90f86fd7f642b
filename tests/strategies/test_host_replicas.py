"""Host replicas against the plain module: same outputs, same gradients, torch's replica semantics."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.strategies._host_replicas import HostDataParallel
from tests.strategies.replica_support import (
    Split,
    assert_same_gradients,
    balanced,
    even,
    images,
    make_net,
    train_both,
    weighted,
)


@pytest.mark.parametrize("batch", [1, 2, 7, 12])
def test_outputs_and_gradients_are_those_of_the_plain_module(split: Split, batch: int) -> None:
    expected, got = train_both(make_net(), split, images(batch))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_batch_smaller_than_the_number_of_replicas() -> None:
    expected, got = train_both(make_net(), even(5), images(2))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_as_many_replicas_run_as_there_are_chunks() -> None:
    seen: list[int] = []
    net = make_net()
    net.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    HostDataParallel(net, even(4))(images(9))
    assert sorted(seen) == [3, 3, 3]


class Keywords(nn.Module):
    """Takes keywords only, as `model(**batch)` calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, *, images: Tensor, scale: float) -> Tensor:
        return self.net(images) * scale  # type: ignore[no-any-return]


def test_keyword_only_forward(split: Split) -> None:
    expected, got = train_both(Keywords(), split, images=images(), scale=0.5)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


class Tied(nn.Module):
    """A decoder that shares the weight of the encoder, and a module used under two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.decoder.weight = self.encoder.weight
        self.again = self.encoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.again(self.encoder(x))))  # type: ignore[no-any-return]


def test_tied_weights_get_the_sum_of_all_their_uses(split: Split) -> None:
    expected, got = train_both(Tied(), split, images())
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_tied_weights_are_one_tensor_in_a_replica() -> None:
    same: list[bool] = []
    module = Tied()
    module.register_forward_hook(lambda m, i, o: same.append(m.decoder.weight is m.encoder.weight))
    HostDataParallel(module, even(2))(images())
    assert same == [True, True]


def test_frozen_parameters_stay_without_a_gradient(split: Split) -> None:
    module = make_net()
    module[0].weight.requires_grad_(False)  # type: ignore[index]
    train_both(module, split, images())


class PartlyUsed(nn.Module):
    """A layer that forward leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.unused = make_net(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def test_parameter_that_forward_does_not_use_has_no_gradient(split: Split) -> None:
    module = PartlyUsed()
    train_both(module, split, images())
    assert module.unused.weight.grad is None


def test_gradients_add_up_over_two_backward_passes() -> None:
    plain, wrapped = make_net(), HostDataParallel(make_net(), even(2))
    for module in (plain, wrapped):
        for part in (images(6), images(8) + 1):
            weighted(module(part)).backward()
    assert_same_gradients(plain, wrapped)


def test_a_step_of_the_optimizer_reaches_the_next_forward() -> None:
    plain, wrapped = make_net(), HostDataParallel(make_net(), even(2))
    for module in (plain, wrapped):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            (module(images()).square().mean()).backward()
            optimizer.step()
    torch.testing.assert_close(wrapped(images()), plain(images()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("first", [0, 2])
def test_batch_norm_buffers_follow_the_first_replica_that_ran(first: int) -> None:
    x = images(8)
    wrapped = HostDataParallel(nn.BatchNorm1d(4), balanced(3, first))
    wrapped(x)
    # (0, 4, 4) or (2, 3, 3): the first that runs sees the first 4 or 2 samples.
    expected = nn.BatchNorm1d(4)
    expected(x[: first or 4])
    assert isinstance(wrapped.module, nn.BatchNorm1d)
    torch.testing.assert_close(wrapped.module.running_mean, expected.running_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(wrapped.module.running_var, expected.running_var, rtol=1e-6, atol=1e-6)
    assert wrapped.module.num_batches_tracked == 1


class Failing(nn.Module):
    """Raises in the replica whose samples contain a marked one."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.net, self.error = make_net(), error

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 100).any()):
            raise self.error
        return self.net(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("error", [ValueError("planted"), MemoryError("planted"), SystemExit(0)], ids=repr)
@pytest.mark.parametrize("position", [0, -1])
def test_exception_in_a_replica_is_raised(error: BaseException, position: int) -> None:
    x = images(6)
    x[position] = 1000
    with pytest.raises(type(error)) as raised:
        HostDataParallel(Failing(error), even(2))(x)
    assert raised.value is error


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("planted in backward")


class FailsInBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = FailingBackward.apply(self.net(x))
        return output


def test_exception_in_a_replicas_backward_is_raised() -> None:
    with pytest.raises(ValueError, match="planted in backward"):
        HostDataParallel(FailsInBackward(), even(2))(images()).sum().backward()


class LooksAtParameters(nn.Module):
    """What old transformers models do to find their dtype: it breaks in a replica of DataParallel."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.counts: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.counts.append(len(list(self.parameters())) + len(list(self.net.parameters())))
        next(self.parameters())
        return self.net(x)  # type: ignore[no-any-return]


def test_replicas_have_no_parameters_as_on_cuda() -> None:
    module = LooksAtParameters()
    with pytest.raises(StopIteration):
        HostDataParallel(module, even(2))(images())
    assert module.counts == [0, 0]
    assert len(list(module.parameters())) == 4  # the module itself is untouched


def test_parameters_of_a_replica_are_plain_attributes() -> None:
    kinds: list[tuple[bool, bool]] = []
    net = nn.Linear(4, 3)
    net.register_forward_hook(
        lambda module, i, o: kinds.append((isinstance(module.weight, nn.Parameter), module.weight.requires_grad))
    )
    HostDataParallel(net, even(2))(images())
    assert kinds == [(False, True), (False, True)]


def test_no_grad_mode_reaches_the_replicas() -> None:
    modes: list[bool] = []
    net = make_net()
    net.register_forward_hook(lambda module, inputs, output: modes.append(torch.is_grad_enabled()))
    wrapped = HostDataParallel(net, even(2))
    with torch.no_grad():
        output = wrapped(images())
    assert modes == [False, False]
    assert not output.requires_grad
    assert wrapped(images()).requires_grad
    torch.testing.assert_close(output, net(images()), rtol=1e-6, atol=1e-6)


def test_evaluation_mode_reaches_the_replicas() -> None:
    torch.manual_seed(0)
    wrapped = HostDataParallel(nn.Sequential(nn.Dropout(0.9), nn.Linear(4, 3)), even(2)).eval()
    torch.testing.assert_close(wrapped(images()), wrapped(images()))


def test_replicas_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=20)  # breaks, and raises, unless all three are inside at once
    net = make_net()

    def meet(module: nn.Module, inputs: Any, output: Any) -> None:
        barrier.wait()

    net.register_forward_hook(meet)
    assert len(HostDataParallel(net, even(3))(images(6))) == 6
