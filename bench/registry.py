"""Named things found by looking into a package: one file each, no list to keep.

A strategy, workload or metric registers itself where it is defined; `Registry.load`
imports every module of the package once, so that adding a file is all there is to do.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Generic, TypeVar

from bench.errors import BenchError, UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to declarations of one kind, in alphabetical order of their modules."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._items: dict[str, T] = {}
        self._loaded = False

    def add(self, name: str, item: T) -> T:
        """Register `item`; BenchError if another one already has this name."""
        if self._items.get(name, item) is not item:
            raise BenchError(f"two {self.kind} declarations are both called {name!r}; rename one")
        self._items[name] = item
        return item

    def get(self, name: str) -> T:
        """The declaration called `name`; UnknownNameError lists those that exist."""
        self.load()
        try:
            return self._items[name]
        except KeyError:
            raise UnknownNameError(self.kind, name, self._items) from None

    def load(self) -> None:
        """Import every public module of the package, once."""
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self._package)
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self._package}.{module.name}")

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        self.load()
        return sorted(self._items)

    def __iter__(self) -> Iterator[T]:
        self.load()
        return iter([self._items[name] for name in sorted(self._items)])
