"""Fixtures that files of this folder share: made-up launches, and the scenarios for pytest inside a test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.running.made_up_launches import launches, open_session

__all__ = ["launches", "open_session", "suite"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """The suite's scenarios and conftest.py in a folder of their own."""
    shutil.copytree(ROOT / "scenarios", pytester.path / "scenarios", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "conftest.py", pytester.path)
    return pytester
