"""One stack of HTTP transports, outermost first: marker → fault injection → the one transport that vcrpy patches.

vcrpy stores responses, not exceptions. So a fault is a *marker*: a response with status 599 and a header that names
the exception it stands for. It is made by an `httpx2.MockTransport`, which vcrpy records and replays like any other,
and the outermost layer turns it back into the exception, before the body or in the middle of it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2

from caveat_tools.faults import FaultPlan

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
_JSON = "application/json; charset=utf-8"
_EVENTS = "text/event-stream; charset=utf-8"
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    529: "overloaded_error",
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
        self, inner: httpx2.AsyncBaseTransport, plan: FaultPlan, target: str, empty_answer: bytes = b"{}"
    ) -> None:
        """`empty_answer` is the service's own valid JSON answer without a match."""
        self._inner = inner
        self._plan = plan
        self._target = target
        self._empty_answer = empty_answer

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer with the fault that the plan names for this call, else pass the request on."""
        fault = self._plan.take(self._target)
        if fault is None:
            return await self._inner.handle_async_request(request)
        struck = httpx2.MockTransport(
            lambda _: fault_response(fault, self._empty_answer, stream=_wants_stream(request))
        )
        return await struck.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the layers below."""
        await self._inner.aclose()


def stacked(
    inner: httpx2.AsyncBaseTransport, plan: FaultPlan, target: str, empty_answer: bytes = b"{}"
) -> httpx2.AsyncBaseTransport:
    """Return the whole stack around `inner`, which must be of a class that vcrpy patches."""
    return MarkerTransport(FaultTransport(inner, plan, target, empty_answer))


def fault_response(fault: str, empty_answer: bytes, *, stream: bool) -> httpx2.Response:
    """Return what a server under this fault sends, or the marker of what the network does.

    `stream` says that the client asked for server-sent events, so that a cut comes in the middle of one.
    """
    if fault in {"timeout", "refused", "reset"}:
        return httpx2.Response(MARKER_STATUS, headers={RAISE_HEADER: fault})
    if fault in _MODEL_STREAMS:
        return httpx2.Response(200, headers={"content-type": _EVENTS}, content=_MODEL_STREAMS[fault])
    if fault in {"dribble", "cut", "stream_cut"}:
        part, kind = (_opening_events(), _EVENTS) if stream else (b'{"batchcomplete": true, "qu', _JSON)
        return httpx2.Response(MARKER_STATUS, headers={AFTER_BODY_HEADER: fault, "content-type": kind}, content=part)
    if fault.isdigit():
        body = {"type": "error", "error": {"type": _ERROR_TYPES[int(fault)], "message": f"injected {fault}"}}
        headers = {"content-type": _JSON} | ({"retry-after": "1"} if fault == "429" else {})
        return httpx2.Response(int(fault), headers=headers, content=json.dumps(body).encode())
    kind, content = {
        "html": (
            "text/html; charset=utf-8",
            b"<!doctype html><title>Maintenance</title><p>Down for maintenance (injected).",
        ),
        "badjson": (_JSON, b'{"injected": [1, 2,'),
        "empty": (_JSON, empty_answer),
    }[fault]
    return httpx2.Response(200, headers={"content-type": kind}, content=content)


def _exception(name: str, request: httpx2.Request) -> httpx2.TransportError:
    kind, message = _EXCEPTIONS[name]
    return kind(message, request=request)


def _wants_stream(request: httpx2.Request) -> bool:
    return request.method == "POST" and b'"stream":true' in request.content.replace(b'"stream": true', b'"stream":true')


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


def _events(*events: dict[str, Any]) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


_START: Final[dict[str, Any]] = {
    "type": "message_start",
    "message": {
        "id": "msg_injected",
        "type": "message",
        "role": "assistant",
        "model": "injected",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    },
}


def _opening_events() -> bytes:
    return _events(
        _START,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I will first"}},
    )


def _ended(stop_reason: str, partial_json: str | None = None) -> bytes:
    call: tuple[dict[str, Any], ...] = ()
    if partial_json is not None:
        block = {"type": "tool_use", "id": "toolu_injected", "name": "search", "input": {}}
        call = (
            {"type": "content_block_start", "index": 0, "content_block": block},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": partial_json},
            },
            {"type": "content_block_stop", "index": 0},
        )
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": stop_reason, "stop_sequence": None},
        "usage": {"output_tokens": 0},
    }
    return _events(_START, *call, end, {"type": "message_stop"})


_MODEL_STREAMS: Final[dict[str, bytes]] = {
    "stream_error": _opening_events()
    + _events({"type": "error", "error": {"type": "overloaded_error", "message": "injected overload"}}),
    "refusal": _ended("refusal"),
    "max_tokens": _ended("max_tokens", '{"topic_id": "T1", "sou'),
    "bad_args": _ended("tool_use", '{"topic_id": "T1", "nonsense": true}'),
}
