"""The bounded look at whether the devices can talk, before a sweep."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bench.measuring import preflight
from bench.measuring.launcher import Launcher
from bench.measuring.preflight import PreflightJob
from tests.measuring import bad_ends

GLOO = PreflightJob(device_type="cpu", devices=(0, 0), backend="gloo")
CAUSES = ("ACS", "IOMMU", "/dev/shm", "P2P")


def test_two_workers_that_can_talk_have_no_problem(launcher: Launcher) -> None:
    assert preflight.preflight(launcher, GLOO) is None


def test_limit_is_20_seconds() -> None:
    assert preflight.LIMIT_SECONDS == 20


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (bad_ends.preflight_that_hangs, ("within 1 s", "planted all_reduce")),
        (bad_ends.preflight_that_fails, ("planted peer copy",)),
    ],
    ids=["hang", "failure"],
)
def test_problem_is_told_in_time_with_the_usual_causes(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, task: Any, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(preflight, "try_devices", task)
    monkeypatch.setattr(preflight, "LIMIT_SECONDS", 1.0)
    started = time.monotonic()
    problem = preflight.preflight(launcher, GLOO)
    assert time.monotonic() - started < 30
    assert problem is not None
    assert [word for word in (*words, *CAUSES) if word not in problem] == []
