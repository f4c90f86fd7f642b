"""One launcher for all tests that start real workers: the first start is the slow one."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from bench.measuring.launcher import Launcher
from tests.measuring.support import await_true


@pytest.fixture(scope="session")
def session_launcher() -> Launcher:
    return Launcher(threads_per_worker=1)


@pytest.fixture
def launcher(session_launcher: Launcher) -> Iterator[Launcher]:
    """The session's launcher; afterwards no worker of this test may be left."""
    yield session_launcher
    assert await_true(lambda: not workers(), seconds=5), f"left behind: {workers()}"


def workers() -> list[psutil.Process]:
    """Children of the forkserver: pytest's own children are it and the resource tracker."""
    found = [worker for child in psutil.Process().children() for worker in child.children(recursive=True)]
    return [worker for worker in found if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]
