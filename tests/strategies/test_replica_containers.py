"""What goes into host replicas and comes out of them: containers, other arguments, outputs of every shape."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from bench.strategies._host_replicas import HostDataParallel
from tests.strategies.replica_support import (
    Split,
    assert_same_gradients,
    even,
    images,
    make_net,
    train_both,
    weighted,
)


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


def test_tensor_whose_first_dimension_is_not_the_batch_is_refused_with_its_shape() -> None:
    with pytest.raises(ValueError, match=r"\(5, 4\).* 7 samples"):
        HostDataParallel(Shaped(lambda a, b: a), even(2))({"x": images(7), "y": images(5)})
