"""What stands in for the transports of httpx2 and httpx while a cassette is in use.

vcrpy's own stand-ins keep answers only. These keep what a transport raises, too: before the answer or in the middle of
its body, and a call that its caller gave up. The caller gets what was recorded already while it is recorded, so that
recording and replay are the same to it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn
from unittest import mock

from vcr.request import Request

from caveat.testing.isolation import until_cancelled
from caveat.testing.miss import CassetteError

if TYPE_CHECKING:
    from caveat.testing.cassette import Cassette

LIBRARIES: Final = ("httpx2", "httpx")
"""vcrpy's names of the stand-ins that these take the place of."""

_CANCELLED: Final = "Cancelled"
_is_sending: Final = ContextVar("_is_sending", default=False)
"""True below a transport that hands a request on to another one: it is one request, and recorded once."""
_BOUNDARY: Final = re.compile(r"multipart/.*\bboundary=\"?(?P<of>[^\s\";]{16,70})", re.IGNORECASE)
"""What stands between the parts of an upload: RFC 2046, 5.1.1. One that somebody made up by hand is shorter."""
_CAUSES: Final[dict[str, type[OSError]]] = {
    kind.__name__: kind
    for kind in (
        ConnectionRefusedError,
        ConnectionResetError,
        ConnectionAbortedError,
        BrokenPipeError,
        socket.gaierror,
        ssl.SSLCertVerificationError,
        ssl.SSLError,
    )
}
"""What an error of a transport can come from, where callers look at it."""


@contextmanager
def recorded_transports(cassette: Cassette) -> Iterator[None]:
    """Inside, every request of httpx2 and of httpx goes over the cassette."""
    with ExitStack() as patches:
        for name in LIBRARIES:
            try:
                library = importlib.import_module(name)
            except ImportError:  # httpx need not be there
                continue
            for transport in (library.AsyncHTTPTransport, library.MockTransport):
                stand_in = _async(cassette, transport.handle_async_request, library)
                patches.enter_context(mock.patch.object(transport, "handle_async_request", stand_in))
            for transport in (library.HTTPTransport, library.MockTransport):
                stand_in = _sync(cassette, transport.handle_request, library)
                patches.enter_context(mock.patch.object(transport, "handle_request", stand_in))
        yield


def _async(cassette: Cassette, send: Any, library: ModuleType) -> Any:
    async def handle_async_request(transport: Any, request: Any) -> Any:
        if _is_sending.get():
            return await send(transport, request)
        asked = _asked(request, b"".join([part async for part in request.stream]), library)
        answer = cassette.answer(asked)
        if answer is None:
            exchange = _Exchange()
            try:
                await exchange.send(send, transport, request)
            except library.TransportError as error:
                exchange.error = error
            except asyncio.CancelledError as error:
                exchange.error = error
                cassette.record(asked, exchange.answer())
                raise
            answer = cassette.record(asked, exchange.answer())
        raises = answer.get("raises")
        if raises and raises["error"] == _CANCELLED:
            await _given_up(cassette, raises["after_seconds"], request)
        if raises and not answer["status"]["code"]:
            raise _exception(raises, request, library)
        return _response(answer, request, library)

    return handle_async_request


def _sync(cassette: Cassette, send: Any, library: ModuleType) -> Any:
    def handle_request(transport: Any, request: Any) -> Any:
        if _is_sending.get():
            return send(transport, request)
        asked = _asked(request, b"".join(request.stream), library)
        answer = cassette.answer(asked)
        if answer is None:
            exchange = _Exchange()
            try:
                exchange.send_sync(send, transport, request)
            except library.TransportError as error:
                exchange.error = error
            answer = cassette.record(asked, exchange.answer())
        if "raises" in answer and not answer["status"]["code"]:
            raise _exception(answer["raises"], request, library)
        return _response(answer, request, library)

    return handle_request


def _asked(request: Any, body: bytes, library: ModuleType) -> Request:
    """Return a request as vcrpy holds it. A compressed answer is not asked for: a cassette is to be readable."""
    request.stream = library.ByteStream(body)
    request.headers["accept-encoding"] = "identity"
    boundary = _BOUNDARY.search(request.headers.get("content-type", ""))
    if boundary:  # it is a random one in each request
        body = body.replace(boundary["of"].encode(), b"boundary")
    return Request(request.method, str(request.url), body, {})


class _Exchange:
    """One request that is sent, and what has come of it so far."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._began = time.monotonic()
        self._response: Any = None
        self._parts: list[bytes] = []

    async def send(self, send: Any, transport: Any, request: Any) -> None:
        with _sending():
            self._response = await send(transport, request)
            try:
                async for part in self._response.stream:
                    self._parts.append(part)
            finally:
                await self._response.stream.aclose()

    def send_sync(self, send: Any, transport: Any, request: Any) -> None:
        with _sending():
            self._response = send(transport, request)
            try:
                for part in self._response.stream:
                    self._parts.append(part)
            finally:
                self._response.stream.close()

    def answer(self) -> dict[str, Any]:
        """Return all that came, as a cassette holds it; of a call that was given up, its caller got nothing."""
        if isinstance(self.error, asyncio.CancelledError):
            self._response, self._parts = None, []
        response = self._response
        headers: dict[str, list[str]] = {}
        for name, value in response.headers.multi_items() if response is not None else ():
            headers.setdefault(name, []).append(value)
        answer: dict[str, Any] = {
            "status": {
                "code": 0 if response is None else response.status_code,
                "message": "" if response is None else response.reason_phrase,
            },
            "headers": headers,
            "body": {"string": b"".join(self._parts)},
        }
        if self.error is not None:
            answer["raises"] = _described(self.error, time.monotonic() - self._began)
        return answer


@contextmanager
def _sending() -> Iterator[None]:
    before = _is_sending.set(True)
    try:
        yield
    finally:
        _is_sending.reset(before)


def _described(error: BaseException, seconds: float) -> dict[str, Any]:
    """Return an exception as a cassette holds it: class, words, and the error of the system that it came from."""
    if isinstance(error, asyncio.CancelledError):
        return {"error": _CANCELLED, "after_seconds": round(seconds, 3)}
    described: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
    cause: BaseException | None = error
    while cause is not None and type(cause).__name__ not in _CAUSES:
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, OSError):
        described["cause"] = {"error": type(cause).__name__, "errno": cause.errno or 0}
    return described


def is_playable(raises: dict[str, Any]) -> bool:
    """Say whether what a file has for an error is one that can be raised again."""
    cause = raises.get("cause") or {}
    return (
        isinstance(raises.get("error"), str)
        and (raises["error"] != _CANCELLED or isinstance(raises.get("after_seconds"), int | float))
        and isinstance(cause, dict)
        and isinstance(cause.get("error"), str | None)
        and isinstance(cause.get("errno", 0), int)
    )


def _exception(raises: dict[str, Any], request: Any, library: ModuleType) -> Exception:
    """Return the exception that is described. Raises CassetteError where the library has none of its name."""
    kind = getattr(library, str(raises.get("error")), None)
    if not (isinstance(kind, type) and issubclass(kind, library.TransportError)):
        raise CassetteError(f"a recorded error is {raises.get('error')!r}, which {library.__name__} does not know")
    error: Exception = kind(str(raises.get("message", "")), request=request)
    cause = raises.get("cause") or {}
    if cause.get("error") in _CAUSES:
        number = int(cause.get("errno", 0))
        error.__cause__ = _CAUSES[cause["error"]](number, os.strerror(number) if number > 0 else "")
    return error


async def _given_up(cassette: Cassette, seconds: float, request: Any) -> NoReturn:
    """Be cancelled as the recorded call was. Raises CassetteError where nothing cancels."""
    await until_cancelled(seconds)
    cassette.end(
        f"{request.method} {request.url} was given up by its caller after {seconds} s when it was recorded, and is "
        "waited for now. Record the session anew."
    )


def _response(answer: dict[str, Any], request: Any, library: ModuleType) -> Any:
    headers = [(name, value) for name, values in answer["headers"].items() for value in values]
    message = answer["status"]["message"]
    return library.Response(
        answer["status"]["code"],
        headers=headers,
        stream=_body(answer, request, library),
        extensions={"reason_phrase": message.encode("ascii", "replace")} if message else {},
    )


def _body(answer: dict[str, Any], request: Any, library: ModuleType) -> Any:
    """Return a body that ends as the recorded one did; its class is one of the library's own."""

    class Body(library.AsyncByteStream, library.SyncByteStream):  # type: ignore[name-defined, misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield answer["body"]["string"]
            if "raises" in answer:
                raise _exception(answer["raises"], request, library)

        def __iter__(self) -> Iterator[bytes]:
            yield answer["body"]["string"]
            if "raises" in answer:
                raise _exception(answer["raises"], request, library)

    return Body()
