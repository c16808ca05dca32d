"""A stop that a person or a deadline asks for: what is under way ends, what is done is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal, TypeAlias, TypeVar

T = TypeVar("T")
StopReason: TypeAlias = Literal["request", "time"]


class Stopped(Exception):  # noqa: N818 - a request that was granted, not an error
    """Raised out of `Stop.race` when the stop came first."""


class Stop:
    """Ask for a stop with `ask()`; run what must end then inside `race()`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason: StopReason = "request"
        """Why: somebody asked, or the time is over. The first to ask says."""

    def ask(self, reason: StopReason = "request") -> None:
        """Stop all work that runs inside `race`, now and from now on."""
        if not self.asked:
            self.reason = reason
        self._event.set()

    @property
    def asked(self) -> bool:
        """True once somebody has asked."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when somebody has asked."""
        await self._event.wait()

    async def race(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns, or cancel it and raise Stopped when the stop comes first."""
        if self.asked:
            work.close()
            raise Stopped
        task = asyncio.ensure_future(work)
        bell = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait({task, bell}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            bell.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
