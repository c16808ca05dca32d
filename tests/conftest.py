"""What every test gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripted import close_stores


@pytest.fixture(autouse=True)
def _stores_are_closed() -> Iterator[None]:
    """Close the stores that a test has made with `memory_store`."""
    yield
    close_stores()
