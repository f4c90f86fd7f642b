"""Tensors inside nested containers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.structure import map_tensors, samples_in, split_structure, tensors_of, with_tensors


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Frozen:
    inner: Any
    text: str = "kept"


LEAVES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.integers(0, 5).map(lambda n: torch.full((6,), n)))
STRUCTURES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Frozen, inner),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equality that looks into tensors, and tells containers of different types apart."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Frozen):
        return one.text == other.text and same(one.inner, other.inner)
    return bool(one == other)


@given(STRUCTURES)
def test_replacing_every_tensor_by_itself_changes_nothing(structure: Any) -> None:
    assert same(map_tensors(lambda tensor: tensor, structure), structure)
    assert same(with_tensors(structure, tensors_of(structure)), structure)


@given(STRUCTURES, st.sampled_from([[6], [2, 4], [1, 2, 3], [3, 0, 3]]))
def test_chunks_put_together_again_are_the_whole(structure: Any, sizes: list[int]) -> None:
    chunks = split_structure(structure, sizes, lambda tensor: tensor.split(sizes))
    assert len(chunks) == len(sizes)
    columns = zip(*(tensors_of(chunk) for chunk in chunks), strict=True)
    joined = with_tensors(chunks[0], [torch.cat(column) for column in columns])
    assert same(joined, structure)


def test_order_is_depth_first_through_every_kind_of_container() -> None:
    one, two, three, four = (torch.tensor([float(number)]) for number in range(4))
    structure = OrderedDict(a=[one, "x"], b=Pair((two,), {"k": three}), c=Frozen(four))
    assert [tensor.item() for tensor in tensors_of(structure)] == [0, 1, 2, 3]
    moved = map_tensors(lambda tensor: tensor + 10, structure)
    assert type(moved) is OrderedDict and moved["c"].text == "kept"
    assert [tensor.item() for tensor in tensors_of(moved)] == [10, 11, 12, 13]
    assert one.item() == 0


class Both(tuple[Any, Any]):
    """Not made from its parts."""

    def __new__(cls, one: Any, other: Any) -> Both:
        return super().__new__(cls, (one, other))


@dataclass
class Ring:
    tensor: Tensor
    ring: Any = None
    never_set: Any = field(init=False)


def test_containers_are_read_as_they_are() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    ring = Ring(two)
    ring.ring = [ring, one]
    found = tensors_of(MappingProxyType({"a": Both(one, ring), "b": ring}))
    assert [id(tensor) for tensor in found] == [id(one), id(two), id(one), id(two), id(one)]


def test_class_objects_are_leaves() -> None:
    assert map_tensors(lambda tensor: tensor, [Frozen, Pair]) == [Frozen, Pair]


def test_samples_are_those_of_the_first_tensor_with_a_dimension() -> None:
    assert samples_in(({"a": torch.tensor(3.0)}, [torch.zeros(5, 2)], torch.zeros(9))) == 5
    assert samples_in(("no tensor", 3)) == 0


def test_tensors_without_dimensions_go_to_every_chunk() -> None:
    chunks = split_structure((torch.arange(3), torch.tensor(7)), [1, 2], lambda tensor: tensor.split([1, 2]))
    assert [(first.tolist(), second.item()) for first, second in chunks] == [([0], 7), ([1, 2], 7)]


def test_tensor_with_another_number_of_samples_is_refused_with_shape_and_number() -> None:
    with pytest.raises(ValueError, match=r"\(2, 4\).*3 samples"):
        split_structure((torch.zeros(3), torch.zeros(2, 4)), [1, 2], lambda tensor: tensor.split([1, 2]))
