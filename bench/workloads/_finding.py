"""From what `--workload` says to a workload class.

This is the only place that imports what a command line names.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.errors import BenchError, UsageError
from bench.schema import DEFAULT_SIZES
from bench.workloads._adapters import torchvision_models, transformers_models
from bench.workloads._adapters.spec import NAME, near, parse
from bench.workloads.base import Workload, registry

FORMS = (
    "package.module:Class, path/to/file.py:Class, torchvision:resnet18, "
    "transformers:BertForMaskedLM?num_hidden_layers=2 or transformers:path/to/config_folder"
)
ADAPTERS = {"torchvision": torchvision_models.adapt, "transformers": transformers_models.adapt}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """What an adapter worked out, for other processes: trying a large model without its memory takes many seconds."""

    address: str
    class_name: str
    base: type[Workload]
    declared: Mapping[str, Any]

    def workload(self) -> type[Workload]:
        """The class, registered, as `find` would give it here."""
        known = next((cls for cls in registry if cls.address == self.address), None)
        return known or _adopt(type(self.class_name, (self.base,), dict(self.declared)), self.address)


def adapted(cls: type[Workload]) -> Adapted | None:
    """`cls` for another process, where an adapter made it."""
    if cls.address is None or cls.address.partition(":")[0] not in ADAPTERS:
        return None
    declared = {key: value for key, value in vars(cls).items() if not key.startswith("_") or key == "__doc__"}
    return Adapted(address=cls.address, class_name=cls.__name__, base=cls.__bases__[0], declared=declared)


def find(address: str) -> type[Workload]:
    """The class that `address` means, registered under its `name`; its own `address` works from any folder.

    Runs the code that the address names. UsageError says what is wrong with it and what there is.
    """
    address = address.strip()
    known = next((cls for cls in registry if address in (cls.address, cls.name)), None)
    if known is not None and known.address is not None:
        return known
    if known is not None:
        raise UsageError(f"--workload {address} is a workload of the suite; write --workloads {address}")
    where, colon, name = address.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"--workload {address!r} is not one of the forms: {FORMS}")
    library, _, rest = address.partition(":")
    if library in ADAPTERS:
        try:
            return _adopt(*ADAPTERS[library](parse(rest)))
        except BenchError:
            raise
        except Exception as error:  # a model that is put together in a way that the adapter does not know
            raise UsageError(
                f"--workload: {address} cannot be used as it is: {type(error).__name__}: {error}; write a workload of "
                "your own, see docs/workloads.md"
            ) from error
    if where.endswith(".py"):
        path = Path(where).expanduser().resolve()
        return _adopt(_class_in(_module_of_file(path), name), f"{path}:{name}")
    return _adopt(_class_in(_module_called(where), name), address)


def _adopt(cls: type[Workload], address: str) -> type[Workload]:
    """Register a class under its name, unless a workload from elsewhere has it."""
    registry.load()
    adapted = address.partition(":")[0] in ADAPTERS
    rename = f"add {NAME}=OTHER after a ?" if adapted else "give the class another `name`"
    # Lists among an adapter's overrides have brackets and commas; a short name has no need of them.
    if not isinstance(cls.name, str) or not re.fullmatch(r"\S+" if adapted else r"[^\s,\[\]]+", cls.name):
        raise UsageError(
            f"--workload: {cls.__name__}.name is {cls.name!r}; a name has no blank, comma or bracket; {rename}"
        )
    same_name = next((known for known in registry if known.name == cls.name), cls)
    if same_name.address is not None and same_name.address == address:
        return same_name
    if same_name is not cls:
        owner = f"--workload {same_name.address}" if same_name.address else "a workload of the suite"
        raise UsageError(f"--workload: {cls.__name__} has the name {cls.name!r} of {owner}; {rename}")
    cls.address = address
    return registry.add(cls.name, cls)


def _module_of_file(path: Path) -> ModuleType:
    """The module in a file, which may import what lies beside it."""
    if not path.is_file():
        beside = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
        raise UsageError(f"--workload: there is no file {path}; {near(path.name, beside) or 'correct the path'}")
    name = f"dpbench_own_{path.stem}_{zlib.crc32(os.fsencode(path)):08x}"
    if name in sys.modules:
        return sys.modules[name]
    _importable(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a path that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _not_imported(str(path), error) from error
    return module


def _module_called(name: str) -> ModuleType:
    """An importable module; the folder of the command counts, as with `python -m`."""
    _importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _not_imported(name, error) from error


def _importable(folder: Path) -> None:
    """Put a folder last, so that it hides nothing that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _not_imported(what: str, error: BaseException) -> BenchError:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
    place = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    if isinstance(error, BenchError):
        return UsageError(f"--workload: {what} cannot be used{place}: {error}")
    remedy = "; put the folder that holds it on PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
    if "attempted relative import" in str(error):
        remedy = "; name a class in a package as package.module:Class"
    return UsageError(f"--workload: importing {what} failed{place}: {type(error).__name__}: {error}{remedy}")


def _class_in(module: ModuleType, name: str) -> type[Workload]:
    """The workload class of a module; it must be complete."""
    found: Any = getattr(module, name, None)
    where = module.__file__ or module.__name__
    if not (inspect.isclass(found) and issubclass(found, Workload)) or found is Workload:
        there = [
            key
            for key, value in vars(module).items()
            if inspect.isclass(value) and issubclass(value, Workload) and value is not Workload
        ]
        is_not = "there is no class" if found is None else "this is no subclass of bench.workloads.Workload:"
        raise UsageError(
            f"--workload: {is_not} {name} in {where}; "
            f"{near(name, there) or 'it holds no workload, see docs/workloads.md'}"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise UsageError(f"--workload: class {name} in {where} lacks {missing}(); write it, see docs/workloads.md")
    if found.example is Workload.example and found.dataset is Workload.dataset:
        raise UsageError(
            f"--workload: class {name} in {where} has neither example() nor dataset(); write example(self, index), "
            "which returns one unbatched sample as a Batch"
        )
    _check_sizes(found, f"class {name} in {where}")
    return found


def _check_sizes(cls: type[Workload], what: str) -> None:
    """UsageError where the class cannot be made at one of the sizes that presets ask for, or a size has no batch."""
    for size in DEFAULT_SIZES.values():
        try:
            batches = cls(size).size
        except Exception as error:
            raise UsageError(
                f"--workload: {what} cannot be made at size {size!r}: {type(error).__name__}: {error}; its "
                "__init__ takes the size alone and calls super().__init__(size), and `sizes` has standard and quick"
            ) from error
        if batches.global_batch_size is None and batches.batch_per_device is None:
            raise UsageError(f"--workload: {what} has no batch at size {size!r}; give its Size one of the two batches")
