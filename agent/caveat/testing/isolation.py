"""What a replay may not do: connect to anything, or wait in real time."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NoReturn
from unittest import mock

from caveat.settings import KEY_VARIABLES

_real_sleep: Final = asyncio.sleep
_REAL_SECONDS: Final = 0.05
_JUMPS: Final = 16


@contextmanager
def isolated(refuse: Callable[[str], NoReturn]) -> Iterator[None]:
    """Inside, no socket of Python's connects to a host, and sleeping takes no real time.

    `refuse` is called for each attempt to connect, with what to say of it, and raises. What is not reached: sockets of
    other processes and of event loops that have their own (uvloop), and a `sleep` that was imported by its name
    (`from time import sleep`).
    """

    def refused(address: Any, *_: Any, **__: Any) -> NoReturn:
        refuse(f"a connection to {address!r} was tried in a replay: what made it is not on the cassette")

    methods = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex", "sendto")}
    look_ups = ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr")
    patches: list[Any] = [
        *(mock.patch.object(socket.socket, name, _guarded(method, refused)) for name, method in methods.items()),
        *(mock.patch.object(socket, name, refused) for name in look_ups),
        mock.patch.object(time, "sleep", _no_wait),
        mock.patch.object(asyncio, "sleep", _no_sleep),
    ]
    if "anyio" in sys.modules:  # the SDK waits with it
        patches.append(mock.patch.object(sys.modules["anyio"], "sleep", _no_sleep))
    if not any(os.environ.get(name) for name in KEY_VARIABLES):  # the SDK makes no client without one
        patches.append(mock.patch.dict(os.environ, {KEY_VARIABLES[0]: "not-needed-in-a-replay"}))
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


async def until_cancelled(seconds: float) -> None:
    """Wait as a call does that its caller gave up after `seconds`, in next to no real time.

    The event loop's clock jumps ahead, first by nearly as much as the recorded call took, then to one timer after the
    other, until the deadline that ended the recorded call ends this one: it may have begun long before the call, and
    those around it must not end first. Before each jump there is a short real wait, in which calls beside this one end.
    Returns where nothing cancels, and where the event loop is not Python's own after `seconds`.
    """
    loop = asyncio.get_running_loop()
    ahead = seconds - 2 * _REAL_SECONDS
    try:
        for _ in range(_JUMPS):
            await _real_sleep(_REAL_SECONDS)
            if ahead > 0:
                loop.time = _later(loop.time, ahead)  # type: ignore[method-assign]
            ahead = _to_the_next_timer(loop)
        await _real_sleep(_REAL_SECONDS)
    except AttributeError:
        await _real_sleep(seconds)


def _to_the_next_timer(loop: asyncio.AbstractEventLoop) -> float:
    """Return the seconds to the next timer that the short real wait does not reach; 0 where there is none."""
    soon = loop.time() + _REAL_SECONDS
    timers = [timer.when() for timer in getattr(loop, "_scheduled", ()) if not timer.cancelled()]
    return min((when - loop.time() for when in timers if when > soon), default=0.0)


def _later(time: Callable[[], float], seconds: float) -> Callable[[], float]:
    return lambda: time() + seconds


def _guarded(method: Any, refused: Callable[[Any], NoReturn]) -> Any:
    def guarded(this: socket.socket, *arguments: Any) -> Any:
        if this.family == getattr(socket, "AF_UNIX", None):
            return method(this, *arguments)
        return refused(arguments[-1])  # the address, in all of them

    return guarded


def _no_wait(seconds: float) -> None:
    """Stand in for time.sleep. A mock would remember each call, and a thread that waits in a loop makes millions."""
    del seconds


async def _no_sleep(delay: float, result: Any = None) -> Any:
    """Stand in for asyncio.sleep."""
    del delay
    return await _real_sleep(0, result)
