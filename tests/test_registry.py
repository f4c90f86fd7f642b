"""Named things are found by looking into a package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import metrics, strategies, workloads
from bench.errors import BenchError, UnknownNameError, UsageError
from bench.registry import Registry


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with two public modules that register themselves, and a private one that must stay alone."""
    folder = tmp_path / "made_up_things"
    folder.mkdir()
    folder.joinpath("__init__.py").write_text(
        "from bench.registry import Registry\nregistry = Registry('thing', 'made_up_things')\n"
    )
    for name, thing in (("zebra", "apple"), ("ant", "pear")):
        folder.joinpath(f"{name}.py").write_text(
            f"from made_up_things import registry\nregistry.add({thing!r}, {name!r})\n"
        )
    folder.joinpath("_private.py").write_text("raise RuntimeError('a private module was imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("made_up_things")]:
        monkeypatch.delitem(sys.modules, name)
    return folder.name


@pytest.fixture
def things(package: str) -> Registry[str]:
    import made_up_things  # type: ignore[import-not-found]

    registry: Registry[str] = made_up_things.registry
    return registry


def test_one_file_is_all_that_a_new_thing_needs(things: Registry[str]) -> None:
    assert things.names() == ["apple", "pear"]
    assert things.get("apple") == "zebra"
    assert list(things) == ["zebra", "ant"]  # in the order of the names


def test_unknown_name_lists_those_that_exist(things: Registry[str]) -> None:
    with pytest.raises(UnknownNameError) as raised:
        things.get("plum")
    assert str(raised.value) == "unknown thing 'plum'; there is: apple, pear"
    assert isinstance(raised.value, UsageError)


def test_two_declarations_of_one_name_are_refused(things: Registry[str]) -> None:
    things.add("apple", things.get("apple"))  # the same one again is no clash
    with pytest.raises(BenchError, match="both called 'apple'"):
        things.add("apple", "another one")


def test_what_ships_is_found() -> None:
    assert {"single", "dp", "balanced_dp", "ddp", "fsdp", "fsdp1"} <= set(strategies.registry.names())
    assert {"mnist_cnn", "resnet50", "bert_small"} <= set(workloads.registry.names())
    assert {"step_seconds", "samples_per_second", "parity_error"} <= set(metrics.registry.names())
