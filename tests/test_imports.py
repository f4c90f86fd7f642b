"""Imports run one way (design, section 2), and the page needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What each part stands on. It may import everything below that, too, and nothing else of ours.
FOUNDATION = ("structure", "remaking", "schema", "registry", "errors", "data", "host", "balance", "series")
STANDS_ON: dict[str, tuple[str, ...]] = {
    "scenarios": ("pytest_plugin",),
    "__main__": ("commands",),
    "commands": ("running", "doctor"),
    "pytest_plugin": ("running",),
    "running": ("planning", "reporting"),
    "planning": ("measuring",),
    "doctor": ("measuring", "recording"),
    "measuring": ("strategies", "workloads", "metrics", "levers", "watching"),
    "strategies": FOUNDATION,
    "workloads": FOUNDATION,
    "metrics": FOUNDATION,
    "levers": FOUNDATION,
    "reporting": ("analysis",),
    "analysis": ("recording", "balance", "series"),
    "recording": ("schema", "errors", "host"),
    "data": ("structure", "schema", "errors"),
    "registry": ("errors",),
    "structure": (),
    "remaking": ("errors",),
    "schema": (),
    "errors": (),
    "watching": ("nvml", "schema", "errors", "host"),
    "nvml": ("errors",),
    "balance": (),
    "series": (),
    "host": (),
}
# `bench/__init__.py` offers `bench.load`; everybody may ask it for the version.
PACKAGE, PACKAGE_STANDS_ON = "bench", ("analysis",)
WITHOUT_TORCH = ("reporting", "analysis", "recording")
TORCH = {"torch", "torchvision", "transformers", "functorch", "triton"}


def allowed(part: str) -> set[str]:
    """Everything below a part, and the part itself."""
    below = PACKAGE_STANDS_ON if part == PACKAGE else STANDS_ON[part]
    return {part, PACKAGE, *below}.union(*(allowed(other) for other in below))


def files() -> list[Path]:
    found = [*ROOT.joinpath("bench").rglob("*.py"), *ROOT.joinpath("scenarios").rglob("*.py")]
    return [path for path in found if "__pycache__" not in path.parts]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in files()}


def part_of(module: str) -> str:
    """`bench.measuring.step` belongs to `measuring`, everything in scenarios/ to `scenarios`."""
    words = module.split(".")
    return words[1] if words[0] == "bench" and len(words) > 1 else words[0]


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that a file imports anywhere in it, inside functions too; ours as far as they are files."""
    tree = ast.parse(MODULES[module].read_text())
    return frozenset(name for node in ast.walk(tree) for name in _imported(node, module))


def _imported(node: ast.AST, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module} imports relatively; write the whole name"
        assert node.module is not None
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in MODULES else node.module


def ours(module: str) -> frozenset[str]:
    return frozenset(name for name in imports(module) if name.split(".")[0] in ("bench", "scenarios"))


def test_every_part_is_in_the_table() -> None:
    assert {part_of(module) for module in MODULES} - {PACKAGE} == set(STANDS_ON)


def test_the_table_itself_runs_one_way() -> None:
    for part in STANDS_ON:
        for other in allowed(part) - {part, PACKAGE}:
            assert part not in allowed(other), f"{part} and {other} stand on each other"


@pytest.mark.parametrize("part", [PACKAGE, *STANDS_ON])
def test_imports_run_one_way(part: str) -> None:
    wrong = [
        f"{module} imports {name}"
        for module in sorted(MODULES)
        if part_of(module) == part
        for name in sorted(ours(module))
        if part_of(name) not in allowed(part)
    ]
    assert wrong == []


@pytest.mark.parametrize("part", ["strategies", "workloads", "metrics"])
def test_strategies_workloads_and_metrics_never_import_one_another(part: str) -> None:
    others = {"strategies", "workloads", "metrics"} - {part}
    reached = {name for module in MODULES if part_of(module) == part for name in reachable(module)}
    assert {name for name in reached if part_of(name) in others} == set()


def reachable(module: str) -> set[str]:
    """A module and all of ours that importing it, or calling what it holds, may import."""
    found, waiting = {module}, [module]
    while waiting:
        for name in ours(waiting.pop()):
            if name in MODULES and name not in found:
                found.add(name)
                waiting.append(name)
    return found


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_the_page_never_imports_torch_directly_or_indirectly(part: str) -> None:
    wrong = [
        f"{module} reaches {name}, which imports torch"
        for module in sorted(MODULES)
        if part_of(module) == part
        for name in sorted(reachable(module))
        if {imported.split(".")[0] for imported in imports(name)} & TORCH
    ]
    assert wrong == []


def test_schema_and_errors_need_the_standard_library_only() -> None:
    for module in ("bench.schema", "bench.errors", "bench.registry", "bench.host", "bench.series"):
        outside = {name.split(".")[0] for name in imports(module)} - {"bench"}
        assert outside <= sys.stdlib_module_names, module


def test_page_tables_and_analysis_import_with_torch_blocked() -> None:
    modules = sorted(module for module in MODULES if part_of(module) in WITHOUT_TORCH)
    assert len(modules) > 10
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in sorted(TORCH))
    code = f"import sys; {blocked}; import bench, {', '.join(modules)}; bench.load; print('imported')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert run.stdout.strip() == "imported", run.stderr


def test_importing_bench_costs_no_heavy_import() -> None:
    code = "import sys, bench; print([name for name in ('torch', 'pandas', 'pyarrow') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert run.stdout.strip() == "[]", run.stderr
