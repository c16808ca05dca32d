"""What every test gets."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from scripted import close_stores

collect_ignore = ["sample_project"]  # it is run by `make package`, in an environment of its own

# A busy machine makes no example wrong: speed is measured by `make bench`, not by a test's deadline.
settings.register_profile("caveat", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", settings.get_profile("caveat"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "caveat"))


ENDLESS_SECONDS = 20.0


@pytest.fixture
def _ends() -> Iterator[None]:
    """Let a test fail that works on and on, in processor time: a guard against what never ends, no measure of speed.

    Inputs are made so large that what they are about takes a fraction of a second where time grows with length, and
    minutes where it grows with the square of it. (`make bench` measures speed.)
    """

    def give_up(*_: object) -> None:
        raise AssertionError(f"still at work after {ENDLESS_SECONDS:.0f} s")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, ENDLESS_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


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
