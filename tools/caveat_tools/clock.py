"""Time and chance, in one object that tests replace: the only place that sleeps or reads a clock."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the product knows of time and chance."""

    def now(self) -> datetime:
        """Return the wall clock, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def wait_until(self, moment: float) -> None:
        """Return once `monotonic()` has come to `moment`; a clock that stands still is not moved by it."""

    def random(self) -> float:
        """Return a number from 0 up to 1, for jitter."""


@dataclass
class SystemClock:
    """The real clock."""

    _random: random.Random = field(default_factory=random.Random)

    def now(self) -> datetime:
        """Return the wall clock, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def wait_until(self, moment: float) -> None:
        """Return once `monotonic()` has come to `moment`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, moment - self.monotonic())):
                await asyncio.get_running_loop().create_future()

    def random(self) -> float:
        """Return a number from 0 up to 1, for jitter."""
        return self._random.random()


@dataclass
class FakeClock:
    """A clock for tests and replays: sleeping takes no time, but is remembered and moves the clock."""

    start: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    slept: list[float] = field(default_factory=list)
    _alarms: list[tuple[float, asyncio.Event]] = field(default_factory=list)

    def now(self) -> datetime:
        """Return the start plus all that was slept."""
        return datetime.fromtimestamp(self.start.timestamp() + sum(self.slept), UTC)

    def monotonic(self) -> float:
        """Return the seconds slept so far."""
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        """Remember the wait and let other tasks run."""
        self.slept.append(seconds)
        for moment, alarm in self._alarms:
            if self.monotonic() >= moment:
                alarm.set()
        await asyncio.sleep(0)

    async def wait_until(self, moment: float) -> None:
        """Return once so much has been slept elsewhere that `monotonic()` has come to `moment`."""
        alarm = asyncio.Event()
        self._alarms.append((moment, alarm))
        if self.monotonic() < moment:
            await alarm.wait()

    def random(self) -> float:
        """Return one half, always."""
        return 0.5
