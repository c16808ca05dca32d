"""What a replay may not do: connect to anything, or wait in real time."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NoReturn
from unittest import mock

_real_sleep: Final = asyncio.sleep
_REAL_SECONDS: Final = 0.05
_JUMPS: Final = 16


@contextmanager
def isolated(refuse: Callable[[str], NoReturn]) -> Iterator[None]:
    """Inside, no socket of Python's connects to a host, and sleeping takes no real time.

    `refuse` is called for each connection that is tried, with what to say of it, and raises. What is not reached:
    sockets of other processes and of event loops that have their own (uvloop), and a `sleep` that was imported by its
    name (`from time import sleep`).
    """

    def refused(address: Any) -> NoReturn:
        refuse(f"a connection to {address!r} was tried in a replay: what made it is not on the cassette")

    def guarded(connect: Any) -> Any:
        def connect_here(this: socket.socket, address: Any) -> Any:
            return connect(this, address) if this.family == getattr(socket, "AF_UNIX", None) else refused(address)

        return connect_here

    patches: list[Any] = [
        mock.patch.object(socket.socket, "connect", guarded(socket.socket.connect)),
        mock.patch.object(socket.socket, "connect_ex", guarded(socket.socket.connect_ex)),
        mock.patch.object(socket, "getaddrinfo", lambda host, *_, **__: refused(host)),
        mock.patch.object(time, "sleep", return_value=None),
        mock.patch.object(asyncio, "sleep", _no_sleep),
    ]
    if "anyio" in sys.modules:  # the SDK waits with it
        patches.append(mock.patch.object(sys.modules["anyio"], "sleep", _no_sleep))
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


async def until_cancelled(seconds: float) -> None:
    """Wait as a call does that its caller gave up after `seconds`, in next to no real time.

    The event loop's clock jumps ahead, further each time, until the deadline that ended the recorded call ends this
    one: it may have begun long before the call. Before each jump there is a short real wait, in which calls beside this
    one end. Returns where nothing cancels, and where the event loop is not Python's own after `seconds`.
    """
    loop = asyncio.get_running_loop()
    ahead = max(seconds, 0.1)
    try:
        for _ in range(_JUMPS):
            await _real_sleep(_REAL_SECONDS)
            loop.time = _later(loop.time, ahead)  # type: ignore[method-assign]
            ahead *= 2
        await _real_sleep(_REAL_SECONDS)
    except AttributeError:
        await _real_sleep(seconds)


def _later(time: Callable[[], float], seconds: float) -> Callable[[], float]:
    return lambda: time() + seconds


async def _no_sleep(delay: float, result: Any = None) -> Any:
    """Stand in for asyncio.sleep."""
    del delay
    return await _real_sleep(0, result)
