"""What every test gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from scripted import close_stores

# A busy machine makes no example wrong: speed is measured by `make bench`, not by a test's deadline.
settings.register_profile("caveat", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("caveat")


_PROXIES = [f"{name}_PROXY" for name in ("HTTP", "HTTPS", "ALL", "NO")]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the proxies of the person who runs the tests: the servers of the tests are on this machine."""
    for name in (*_PROXIES, *map(str.lower, _PROXIES)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _stores_are_closed() -> Iterator[None]:
    """Close the stores that a test has made with `memory_store`."""
    yield
    close_stores()
