"""One warm process from which all tests of this folder fork their ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torchgroup import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()
