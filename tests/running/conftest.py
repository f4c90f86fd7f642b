"""The suite's scenarios for tests that run pytest inside a test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """The suite's scenarios and conftest.py in a folder of their own."""
    shutil.copytree(ROOT / "scenarios", pytester.path / "scenarios", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "conftest.py", pytester.path)
    return pytester
