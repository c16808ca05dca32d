"""One stack of HTTP transports, outermost first: marker → fault injection → the one transport that vcrpy patches.

vcrpy stores responses, not exceptions. So a fault is a *marker*: a response with status 599 and a header that names
the exception it stands for. It is made by an `httpx2.MockTransport`, which vcrpy records and replays like any other,
and the outermost layer turns it back into the exception, before the body or in the middle of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import httpx2

from caveat_tools.faults import STATUS_FAULTS, FaultPlan

MARKER_STATUS: Final = 599
RAISE_HEADER: Final = "x-caveat-raise"
AFTER_BODY_HEADER: Final = "x-caveat-raise-after-body"
MAX_PART_BYTES: Final = 100_000

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


class MarkerTransport(httpx2.AsyncBaseTransport):
    """The outermost layer: turns a marker response back into the httpx2 exception that it stands for."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass the request on; raise or set up to raise what a marker says."""
        response = await self._inner.handle_async_request(request)
        if response.status_code != MARKER_STATUS:
            return response
        name = response.headers.get(RAISE_HEADER)
        if name in _EXCEPTIONS:
            raise _exception(name, request)
        name = response.headers.get(AFTER_BODY_HEADER)
        if name in _EXCEPTIONS:
            return httpx2.Response(
                200,
                headers={"content-type": response.headers["content-type"]},
                stream=_ThenRaise(await _beginning(response), _exception(name, request)),
            )
        return response

    async def aclose(self) -> None:
        """Close the layers below."""
        await self._inner.aclose()


class FaultTransport(httpx2.AsyncBaseTransport):
    """The middle layer: a call that the plan strikes is answered by the fault, all others are passed on."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, plan: FaultPlan, target: str, answers: Mapping[str, Answer]
    ) -> None:
        """`answers` gives the service's own answer to a fault, by the fault's name."""
        self._inner = inner
        self._plan = plan
        self._target = target
        self._answers = answers

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer with the fault that the plan names for this call, else pass the request on."""
        fault = self._plan.take(self._target)
        if fault is None:
            return await self._inner.handle_async_request(request)
        struck = httpx2.MockTransport(lambda _: fault_response(fault, self._answers))
        return await struck.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the layers below."""
        await self._inner.aclose()


def stacked(
    inner: httpx2.AsyncBaseTransport,
    plan: FaultPlan,
    target: str,
    answers: Mapping[str, Answer] = MappingProxyType({}),
) -> httpx2.AsyncBaseTransport:
    """Return the whole stack around `inner`, which must be of a class that vcrpy patches.

    `answers` (fault name → content type and body) makes a fault look as it does at this service; it overrides the
    plain answers to the faults of a source, and must hold every other fault that the plan can name.
    """
    return MarkerTransport(FaultTransport(inner, plan, target, answers))


def fault_response(fault: str, answers: Mapping[str, Answer] = MappingProxyType({})) -> httpx2.Response:
    """Return what a server under this fault sends, or the marker of what the network does.

    `answers` is as for `stacked`. Raises KeyError for a fault that has no answer.
    """
    if fault in _AT_ONCE:
        return httpx2.Response(MARKER_STATUS, headers={RAISE_HEADER: fault})
    kind, body = answers[fault] if fault in answers else _ANSWERS[fault]
    headers = {"content-type": kind}
    if fault in _EXCEPTIONS:
        return httpx2.Response(MARKER_STATUS, headers={AFTER_BODY_HEADER: fault, **headers}, content=body)
    if fault == "429":
        headers["retry-after"] = "1"
    return httpx2.Response(int(fault) if fault.isdigit() else 200, headers=headers, content=body)


def _exception(name: str, request: httpx2.Request) -> httpx2.TransportError:
    kind, message = _EXCEPTIONS[name]
    return kind(message, request=request)


async def _beginning(response: httpx2.Response) -> bytes:
    """Return the part of an answer that a marker holds; a server that sends markers of its own gets no more room."""
    part = b""
    async for chunk in response.aiter_bytes():
        part += chunk
        if len(part) > MAX_PART_BYTES:
            break
    return part


class _ThenRaise(httpx2.AsyncByteStream):
    def __init__(self, body: bytes, error: httpx2.TransportError) -> None:
        self._body = body
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body
        raise self._error
