"""Host replicas against the plain module: same outputs, same gradients, torch's replica semantics."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from bench.strategies._host_replicas import HostDataParallel
from bench.strategies.balanced_dp import split_sizes
from bench.strategies.dp import torch_chunks

Split = Callable[[int], Sequence[int]]


def even(num_devices: int) -> Split:
    return lambda batch: torch_chunks(batch, num_devices)


def balanced(num_devices: int, gpu0_bsz: int) -> Split:
    return lambda batch: split_sizes(batch, num_devices, gpu0_bsz)


SPLITS = {"even": even(2), "three": even(3), "first takes fewer": balanced(3, 1), "first takes none": balanced(3, 0)}


@pytest.fixture(params=list(SPLITS.values()), ids=list(SPLITS))
def split(request: pytest.FixtureRequest) -> Split:
    return request.param  # type: ignore[no-any-return]


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def images(count: int = 7) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(1))


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name.removeprefix("module."): parameter.grad for name, parameter in module.named_parameters()}


def assert_same_gradients(plain: nn.Module, wrapped: nn.Module) -> None:
    expected, got = gradients(plain), gradients(wrapped)
    assert expected.keys() == got.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert got[name] is None, name
        else:
            found = got[name]
            assert found is not None, name
            assert float((found - gradient).norm()) <= 1e-6 * max(1.0, float(gradient.norm())), name


def train_both(module: nn.Module, split: Split, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Outputs of the module and of its wrapped twin, after a backward through each and a look at the gradients."""
    plain, wrapped = module, HostDataParallel(copy.deepcopy(module), split)
    expected, got = plain(*args, **kwargs), wrapped(*args, **kwargs)
    for output in (expected, got):
        weighted(output).backward()
    assert_same_gradients(plain, wrapped)
    return expected, got


def weighted(output: Any) -> Tensor:
    """A loss that weighs every element differently, so that no permutation of samples goes unnoticed."""
    tensors = [output] if isinstance(output, Tensor) else [value for value in output if isinstance(value, Tensor)]
    parts = [value.flatten() for value in tensors if value.requires_grad]
    joined = torch.cat(parts)
    return (joined.square() * torch.arange(1.0, 1 + len(joined))).sum()


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


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Both:
    images: Tensor
    name: str


class Nested(nn.Module):
    """Picks its images out of containers, and checks what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, inputs: dict[str, Any], flag: str, nothing: None, number: int, *, more: Both) -> Tensor:
        pair, (first, second) = inputs["pair"], inputs["list"]
        assert isinstance(pair, Pair) and isinstance(inputs["list"], list)
        assert (flag, nothing, number, more.name) == ("as it was", None, 3, "name")
        assert len(pair.left) == len(pair.right) == len(first) == len(second) == len(more.images)
        total: Tensor = self.net(pair.left + 2 * pair.right + 3 * first + 5 * second[:, :4] + 7 * more.images)
        return total


def test_nested_containers_and_arguments_that_are_no_tensors(split: Split) -> None:
    x = images()
    inputs = {"pair": Pair(x, x + 1), "list": [x * 2, torch.cat([x, x], dim=1)]}
    more = Both(images=x - 1, name="name")
    expected, got = train_both(Nested(), split, inputs, "as it was", None, 3, more=more)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert len(more.images) == 7  # the caller's own containers stay whole


class Shaped(nn.Module):
    """Puts its output into the container that `shape` makes of two tensors."""

    def __init__(self, shape: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.net, self.shape = make_net(), shape

    def forward(self, x: Tensor) -> Any:
        return self.shape(self.net(x), x.sum(dim=1))


SHAPES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"a": a, "b": [b, None]},
    "namedtuple": Pair,
    "ModelOutput": lambda a, b: MaskedLMOutput(logits=a, hidden_states=(a * 2, b)),
}


class SometimesConstant(nn.Module):
    """The second output depends on its layer for samples above 0 only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.other(x) if bool((x > 0).all()) else torch.zeros(len(x), 3)


def test_output_that_needs_a_gradient_in_one_replica_only_gets_it() -> None:
    module, x = SometimesConstant(), torch.cat([-torch.ones(2, 4), torch.ones(2, 4)])
    first, second = HostDataParallel(module, lambda batch: [2, 2])(x)
    (first.sum() + second.sum()).backward()
    # 2 samples of ones reach the other layer, in the second replica
    assert module.other.weight.grad is not None and module.other.weight.grad.equal(torch.full((3, 4), 2.0))


@pytest.mark.parametrize(
    "shape",
    [lambda a, b: {"a": a, "b": "text"}, lambda a, b: (a, 3), lambda a, b: Both(images=a, name="name")],
    ids=["text", "number", "dataclass"],
)
def test_what_torch_cannot_gather_breaks_here_too(shape: Callable[[Tensor, Tensor], Any], split: Split) -> None:
    with pytest.raises(TypeError, match="DataParallel cannot gather an output of type (str|int|Both); return tensors"):
        HostDataParallel(Shaped(shape), split)(images())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_output_containers_keep_their_type_and_hold_joined_tensors(
    shape: Callable[[Tensor, Tensor], Any], split: Split
) -> None:
    module = Shaped(shape)
    expected, got = module(images()), HostDataParallel(module, split)(images())
    assert type(got) is type(expected)
    flat_expected, flat_got = flat(expected), flat(got)
    assert len(flat_got) == len(flat_expected)
    for one, other in zip(flat_got, flat_expected, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        else:
            assert one == other


def flat(value: Any) -> list[Any]:
    if isinstance(value, Both):
        return [value.images, value.name]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in flat(item)]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def test_gradients_through_a_model_output() -> None:
    plain = Shaped(lambda a, b: MaskedLMOutput(logits=a, hidden_states=(a * 2,)))
    wrapped = HostDataParallel(copy.deepcopy(plain), even(2))
    for module in (plain, wrapped):
        output = module(images())
        (output.logits.square().sum() + output.hidden_states[0].sum()).backward()
    assert_same_gradients(plain, wrapped)


class Scalar(nn.Module):
    """Returns a scalar sum, as a loss inside a replica does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).square().sum()  # type: ignore[no-any-return]


def test_scalar_outputs_become_a_vector_with_one_entry_a_replica() -> None:
    plain, wrapped = Scalar(), HostDataParallel(Scalar(), even(3))
    expected, got = plain(images()), wrapped(images())
    assert got.shape == (3,)  # 7 samples in chunks of 3, 3, 1
    torch.testing.assert_close(got.sum(), expected, rtol=1e-6, atol=1e-6)
    expected.backward()
    got.sum().backward()
    assert_same_gradients(plain, wrapped)


class WithMask(nn.Module):
    """One output with a gradient, two without."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output = self.net(x)
        return output.argmax(dim=1), output, output.detach()


def test_outputs_that_need_no_gradient(split: Split) -> None:
    (labels, _, detached), (got_labels, got, got_detached) = train_both(WithMask(), split, images())
    assert torch.equal(got_labels, labels) and got_labels.dtype == torch.int64
    assert got.requires_grad and not got_labels.requires_grad and not got_detached.requires_grad
    torch.testing.assert_close(got_detached, detached, rtol=1e-6, atol=1e-6)


def test_outputs_that_the_loss_does_not_use() -> None:
    plain, wrapped = Shaped(lambda a, b: (a, a * 3)), HostDataParallel(Shaped(lambda a, b: (a, a * 3)), even(2))
    for module in (plain, wrapped):
        weighted(module(images())[1]).backward()
    assert_same_gradients(plain, wrapped)


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


def test_tensor_whose_first_dimension_is_not_the_batch_is_refused_with_its_shape() -> None:
    with pytest.raises(ValueError, match=r"\(5, 4\).* 7 samples"):
        HostDataParallel(Shaped(lambda a, b: a), even(2))({"x": images(7), "y": images(5)})


def test_replicas_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=20)  # breaks, and raises, unless all three are inside at once
    net = make_net()

    def meet(module: nn.Module, inputs: Any, output: Any) -> None:
        barrier.wait()

    net.register_forward_hook(meet)
    assert len(HostDataParallel(net, even(3))(images(6))) == 6
