"""dpbench: which data-parallel strategy, for this model on this machine, and how sure are we?

`bench.load("results")` gives every measured case as a pandas DataFrame. Importing `bench`
itself imports neither torch nor pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.analysis.load import load

__version__: str
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    if name == "load":
        from bench.analysis.load import load

        return load
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("dpbench")
        except PackageNotFoundError:
            return "0+unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
