"""`--memory-limit`: sizes that are none, or that could not bind, and that it is asked for again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.errors import UsageError
from bench.planning import memory
from bench.planning.arguments import arguments
from tests.planning.made_up_machines import cpu, gpus, plan_of

GIB = 2**30


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "host_memory_bytes", lambda: 8 * GIB)


def h100s() -> Any:
    machine = gpus(2)
    return replace(machine, devices=tuple(replace(device, memory_bytes=80 * GIB) for device in machine.devices))


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 * GIB), ("1.5GiB", 3 * 2**29), ("500MB", 500_000_000), ("500 mib", 500 * 2**20), ("1TB", None)],
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(UsageError, match="this machine has 8 GiB"):
            plan_of(cpu(), memory_limit=text)
    else:
        assert plan_of(cpu(), memory_limit=text).memory_limit_bytes == size


def test_none_without_the_option() -> None:
    assert plan_of(cpu()).memory_limit_bytes is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("much", "'much' is no size; write a number with a unit, e.g. 2GiB or 500MB"),
        ("2", "'2' is no size"),
        ("-2GiB", "is no size"),
        ("40%", "is no size"),
        ("31MiB", "less than the 32 MiB that a process needs"),
        ("5GiB", "for 2 CPU workers is 10 GiB, but this machine has 8 GiB, .* give at most 4 GiB"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan_of(cpu(), memory_limit=text)


def test_a_gpu_cannot_be_given_more_than_it_has() -> None:
    assert plan_of(h100s(), memory_limit="24GiB").memory_limit_bytes == 24 * GIB
    with pytest.raises(UsageError, match="81GiB is more than the 80 GiB of device 0"):
        plan_of(h100s(), memory_limit="81GiB")


def test_it_is_asked_for_again() -> None:
    assert "--memory-limit=2GiB" in arguments(plan_of(cpu(), memory_limit="2GiB").options)
