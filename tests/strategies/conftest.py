"""Every way of splitting a batch that the tests of host replicas go through."""

from __future__ import annotations

import pytest

from tests.strategies.replica_support import (
    SPLITS,
    Split,
)


@pytest.fixture(params=list(SPLITS.values()), ids=list(SPLITS))
def split(request: pytest.FixtureRequest) -> Split:
    return request.param  # type: ignore[no-any-return]
