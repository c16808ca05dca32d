"""The way to a Messages API: no answer costs more memory than a message may, and none is followed elsewhere.

What is the same for every status is decided here, below the SDK, which reads the bodies of error statuses itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, cast

import httpx2

from caveat import model_faults
from caveat.turn import ModelError
from caveat_tools.faults import FaultPlan
from caveat_tools.network import without_password
from caveat_tools.plain_text import one_line
from caveat_tools.transport import FaultTransport

MAX_ANSWER_BYTES: Final = 20_000_000
MAX_REFUSAL_BYTES: Final = 100_000
"""What is read of an error status: its words come first."""
MAX_EVENT_BYTES: Final = 1_000_000
MAX_EVENT_LINES: Final = 1_000
STALL_SECONDS: Final = 300.0
"""How long a server may send nothing: a local one begins to answer only when it has read the whole conversation."""


def http_client(inner: httpx2.AsyncBaseTransport, faults: FaultPlan) -> httpx2.AsyncClient:
    """Return the client for the SDK, over `inner`, a transport of a class that vcrpy patches."""
    return httpx2.AsyncClient(
        transport=FaultTransport(ModelTransport(inner), faults, "model", model_faults.ANSWERS),
        timeout=httpx2.Timeout(STALL_SECONDS, connect=10.0),
        follow_redirects=False,
        headers={"accept-encoding": "identity"},
    )


class ModelTransport(httpx2.AsyncBaseTransport):
    """Bounds every body, and takes no redirect and no content-coding, since none was asked for."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass the request on. Raises ModelError for a redirect, and for a body of a 2xx status that is encoded.

        A body beyond MAX_ANSWER_BYTES ends with a ModelError. That of an error status is cut, or left out where it is
        encoded: the status says enough.
        """
        response = await self._inner.handle_async_request(request)
        if response.has_redirect_location:
            await response.aclose()
            raise _redirected(request.url, response.headers["location"])
        coding = response.headers.pop("content-encoding", "identity").strip().lower()
        is_plain = coding in {"", "identity"}
        if response.is_success and not is_plain:
            await response.aclose()
            hint = f"the model's server encoded its answer ({one_line(coding, 60)}), which was not asked for"
            raise ModelError("malformed", f"{hint}; check the server, or the proxy before it", retryable=True)
        stream = cast("httpx2.AsyncByteStream", response.stream)
        bounded = _Answer(stream) if response.is_success else _Refusal(stream, MAX_REFUSAL_BYTES if is_plain else 0)
        answer = httpx2.Response(
            response.status_code, headers=response.headers, stream=bounded, extensions=response.extensions
        )
        answer.encoding = "utf-8"  # as JSON and events are; a charset that is none (rot13) would raise in the SDK
        return answer

    async def aclose(self) -> None:
        """Close the layers below."""
        await self._inner.aclose()


def _redirected(asked: httpx2.URL, location: str) -> ModelError:
    try:
        target = str(asked.join(location))
    except (httpx2.InvalidURL, ValueError):
        target = location
    target = without_password(one_line(target, 300)).partition("?")[0].removesuffix("/v1/messages")
    hint = f"the model's server sends its callers on to {target}; set ANTHROPIC_BASE_URL to that address"
    return ModelError("request", hint, retryable=False)


class _Answer(httpx2.AsyncByteStream):
    """A body that ends, with a ModelError, where no message can be as long."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise ModelError("malformed", "the model's answer is larger than any message", retryable=False)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Refusal(httpx2.AsyncByteStream):
    """A body that is cut after some bytes."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for chunk in self._stream:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return

    async def aclose(self) -> None:
        await self._stream.aclose()


class WholeEvents:
    """A streamed body in whole events: the SDK takes time that grows with the square of an event's lines."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        """Yield one event after the other: all that the SDK's decoder asks of a response. Raises ModelError.

        The last event counts without its blank line, too: JSON that is cut is no JSON, so that half of an event is
        never taken for a whole one.
        """
        event = bytearray()
        lines = 0
        async for chunk in self._response.aiter_bytes():
            for line in chunk.splitlines(keepends=True):
                event += line
                lines += 1
                if len(event) > MAX_EVENT_BYTES or lines > MAX_EVENT_LINES:
                    hint = "the model's stream holds an event that is larger than any message"
                    raise ModelError("malformed", hint, retryable=False)
                if event.endswith((b"\r\r", b"\n\n", b"\r\n\r\n")):
                    yield bytes(event)
                    event.clear()
                    lines = 0
        if event:
            yield bytes(event) + b"\n\n"
