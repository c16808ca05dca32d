"""The pace at which a public service may be asked, kept by all callers in this process together.

    turn      wait for a place (so many requests at once), then for its time (so many seconds after the last one)

A `Pace` belongs to one service, not to one research: two of them, in one event loop or in two threads, wait for each
other. Their clocks must be the same; see `paces_for`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from caveat_tools.clock import Clock, SystemClock


class LateTurnError(Exception):
    """A turn would come later than the caller can wait. Nothing was sent; `seconds` is how long it would take."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the next turn comes in {seconds:.1f} s")
        self.seconds = seconds


class Pace:
    """At most one request every `seconds`, and `at_once` of them under way. Safe across threads and event loops."""

    def __init__(self, seconds: float, *, at_once: int = 1) -> None:
        """`seconds` lie between the beginnings of two requests."""
        self.seconds = seconds
        self._free_places = at_once
        self._waiting: deque[tuple[Future[None], asyncio.AbstractEventLoop]] = deque()
        self._next = 0.0
        self._lock = threading.Lock()

    @asynccontextmanager
    async def turn(
        self, clock: Clock, *, within: float, on_wait: Callable[[float], None] = lambda _: None
    ) -> AsyncIterator[None]:
        """Wait for a turn, first come, first served, and hold it for as long as the block runs.

        `on_wait` is told the seconds of a wait before it begins: at least so many, since a request under way may take
        longer than `seconds`. Raises LateTurnError where the turn would come later than `within` (seconds); can be
        cancelled at any time.
        """
        asked_at = clock.monotonic()
        place, wait = self._queued(asked_at)
        try:
            if wait > within:
                raise LateTurnError(wait)
            if wait > 0:
                on_wait(wait)
            if not place.done():
                await _granted(place, within)
            await self._its_time(clock, asked_at + within)
            yield
        finally:
            self._give_back(place)

    def _queued(self, now: float) -> tuple[Future[None], float]:
        """Take a place, or one in the queue for it, and estimate the wait in seconds."""
        place: Future[None] = Future()
        with self._lock:
            wait = max(0.0, self._next - now) + len(self._waiting) * self.seconds
            if self._free_places:
                self._free_places -= 1
                place.set_result(None)
            else:
                self._waiting.append((place, asyncio.get_running_loop()))
        return place, wait

    async def _its_time(self, clock: Clock, latest: float) -> None:
        with self._lock:
            now = clock.monotonic()
            start = max(now, self._next)
            if start > max(now, latest):
                raise LateTurnError(start - now)
            self._next = start + self.seconds
        if start > now:
            await clock.sleep(start - now)
            with self._lock:  # the sleeper may have overslept, and the next one counts from the real beginning
                self._next = max(self._next, clock.monotonic() + self.seconds)

    def _give_back(self, place: Future[None]) -> None:
        """Hand the place to the next who still waits for one; one that was never granted is only taken off."""
        with self._lock:
            if place.cancel():
                self._waiting = deque(waiting for waiting in self._waiting if waiting[0] is not place)
                return
            while self._waiting:
                following, loop = self._waiting.popleft()
                if not loop.is_closed() and following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._free_places += 1


async def _granted(place: Future[None], within: float) -> None:
    """Wait until somebody gives back the place; in real time, since how long a request takes is real."""
    try:
        async with asyncio.timeout(within):
            await asyncio.wrap_future(place)
    except TimeoutError:
        raise LateTurnError(within) from None


def published() -> dict[str, Pace]:
    """Return new paces by host, as the services publish them.

    arXiv: one request every three seconds over one connection (https://info.arxiv.org/help/api/tou.html). Crossref:
    for lists, one a second, one at a time, in the pool without a contact, and three in the polite one
    (https://www.crossref.org/documentation/retrieve-metadata/rest-api/access-and-authentication/); the first is kept
    for both. OpenAlex: 100 a second, beside a daily budget (https://developers.openalex.org); a tenth of it is kept.
    """
    arxiv = Pace(3.0)
    return {
        "export.arxiv.org": arxiv,
        "arxiv.org": arxiv,
        "api.crossref.org": Pace(1.0),
        "api.openalex.org": Pace(0.1, at_once=2),
    }


SHARED: Final = published()
"""The paces of this process. The one global: a service counts requests by address, not by research."""


def paces_for(clock: Clock) -> Mapping[str, Pace]:
    """Return the paces of the process for its own clock; for any other one, whose time nobody shares, new ones."""
    return SHARED if isinstance(clock, SystemClock) else published()


def host_of(place: str) -> str:
    """Return the host of an address; "" for a folder or any other place that has none."""
    try:
        return urlsplit(place).hostname or ""
    except ValueError:
        return ""
