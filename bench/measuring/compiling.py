"""Can torch.compile's default backend work here? Known before a launch, where it can be."""

from __future__ import annotations

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

COMPILERS = ("g++", "clang++", "gcc", "clang", "cc")


def cannot_compile(device_type: str) -> str | None:
    """Why not, with the remedy; None where nothing speaks against it.

    Inductor writes C++ for a CPU and Triton for a GPU; both are built against Python's headers.
    """
    compiler = os.environ.get("CXX") or os.environ.get("CC")
    if not any(shutil.which(name) for name in ([compiler] if compiler else COMPILERS)):
        return f"no C++ compiler was found ({compiler or ', '.join(COMPILERS)}); install g++"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python's headers are not installed (Python.h); install python3-dev"
    if device_type == "cuda" and find_spec("triton") is None:
        return "the package triton is not installed, in which torch.compile writes kernels for GPUs; install it"
    return None
