"""One stack of HTTP transports, outermost first: fault injection → the one transport that a cassette records.

A fault that the network makes is an exception, as the real one is, before the answer or in the middle of its body. It
is raised inside an `httpx2.MockTransport`, which a cassette records and replays like any other transport
(`caveat.testing`); so the calls that were struck are struck again in a replay, whatever their order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import httpx2

from caveat_tools.faults import STATUS_FAULTS, FaultPlan

_EXCEPTIONS: Final[dict[str, tuple[type[httpx2.TransportError], str]]] = {
    "timeout": (httpx2.ReadTimeout, "no answer in time"),
    "refused": (httpx2.ConnectError, "connection refused"),
    "reset": (httpx2.ReadError, "connection reset by peer"),
    "dribble": (httpx2.ReadTimeout, "the answer dribbled in and was not complete in time"),
    "cut": (httpx2.RemoteProtocolError, "peer closed connection without sending complete message body"),
    "stream_cut": (httpx2.RemoteProtocolError, "peer closed connection without sending complete message body"),
}
Answer: TypeAlias = tuple[str, bytes]
"""The content type and the body of what is sent under a fault, or of the part that arrives before it breaks off."""

_AT_ONCE: Final = frozenset({"timeout", "refused", "reset"})
_JSON: Final = "application/json; charset=utf-8"
_HALF: Final[Answer] = (_JSON, b'{"injected": [1, 2,')
_ANSWERS: Final[Mapping[str, Answer]] = {
    "dribble": _HALF,
    "cut": _HALF,
    "badjson": _HALF,
    "html": (
        "text/html; charset=utf-8",
        b"<!doctype html><title>Maintenance</title><p>Down for maintenance (injected).",
    ),
    "empty": (_JSON, b"{}"),
    **{status: (_JSON, f'{{"injected": {status}}}'.encode()) for status in STATUS_FAULTS},
}


class FaultTransport(httpx2.AsyncBaseTransport):
    """The outer layer: a call that the plan strikes meets the fault, all others are passed on."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        plan: FaultPlan,
        target: str,
        answers: Mapping[str, Answer] = MappingProxyType({}),
    ) -> None:
        """`inner` must be of a class that a cassette records.

        `answers` (fault name → content type and body) makes a fault look as it does at this service; it overrides the
        plain answers to the faults of a source, and must hold every other fault that the plan can name.
        """
        self._inner = inner
        self._plan = plan
        self._target = target
        self._answers = {**_ANSWERS, **answers}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Meet the fault that the plan names for this call, else pass the request on."""
        fault = self._plan.take(self._target)
        if fault is None:
            return await self._inner.handle_async_request(request)
        struck = httpx2.MockTransport(lambda _: _under(fault, request, self._answers))
        return await struck.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the layers below."""
        await self._inner.aclose()


def _under(fault: str, request: httpx2.Request, answers: Mapping[str, Answer]) -> httpx2.Response:
    """Return what a server under this fault sends, or raise what the network makes of it."""
    kind, message = _EXCEPTIONS.get(fault, (None, ""))
    error = kind(message, request=request) if kind else None
    if error and fault in _AT_ONCE:
        raise error
    content_type, body = answers[fault]
    headers = {"content-type": content_type}
    if error:
        return httpx2.Response(200, headers=headers, stream=_ThenRaise(body, error))
    if fault == "429":
        headers["retry-after"] = "1"
    return httpx2.Response(int(fault) if fault.isdigit() else 200, headers=headers, content=body)


class _ThenRaise(httpx2.AsyncByteStream):
    def __init__(self, body: bytes, error: httpx2.TransportError) -> None:
        self._body = body
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body
        raise self._error
