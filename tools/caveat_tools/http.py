"""How an HTTP answer becomes a value or a `SourceError`.

The kind of a failure is decided from exception class, errno, status, content type and whether the body parses, never
from words. Everything that is not named here (a stale cassette, a bug) passes through untouched.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import ssl
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any, Final, Literal
from xml.etree.ElementTree import Element

import httpx2

from caveat_tools.network import UnreachableProxyError, is_address, without_password
from caveat_tools.outcome import ERROR_KINDS, ErrorType
from caveat_tools.plain_text import clip
from caveat_tools.safe_xml import parse_xml
from caveat_tools.source import SourceError

MAX_BODY_BYTES: Final = 5_000_000
MAX_ERROR_TEXT_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of any status, its body apart: complete, or as much of a refusal's as arrived."""

    response: httpx2.Response
    body: bytes


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """A complete 2xx answer. `value` may still be an error object of the service: its source has to look."""

    value: Any
    headers: httpx2.Headers


async def get(
    client: httpx2.AsyncClient,
    url: str,
    params: Mapping[str, str],
    *,
    timeout_seconds: float = 8.0,
    headers: Mapping[str, str] | None = None,
    hint: str = "",
) -> HttpAnswer:
    """Return what is answered at `url` with `params` added, whatever its status.

    `timeout_seconds` bounds the whole exchange with its body, so that a dribbling server is a time-out. No more than
    MAX_BODY_BYTES of a body are held, gzip undone; no other content-coding is asked for or taken. `hint` tells
    how to correct an address that looks wrong. Raises SourceError where no answer came.
    """
    try:
        address = httpx2.URL(url).copy_merge_params(dict(params))
    except httpx2.InvalidURL as error:
        raise failure("unavailable", _joined("the address cannot be read", hint)) from error
    except UnicodeEncodeError as error:
        raise failure("invalid_query", "the query holds half a character and cannot be sent") from error
    response, body = await _exchange(client, address, headers, timeout_seconds)
    return HttpAnswer(response, body)


async def get_json(
    client: httpx2.AsyncClient,
    url: str,
    params: Mapping[str, str],
    *,
    now: datetime,
    timeout_seconds: float = 8.0,
    headers: Mapping[str, str] | None = None,
    hint: str = "",
    error_text: Callable[[Any], str | None] = lambda _: None,
) -> JsonAnswer:
    """Return the JSON value at `url` with `params` added, and the answer's headers.

    `timeout_seconds`, `headers` and `hint` are those of `get`. `error_text` takes the service's own words out of the
    parsed body of an error status, where it documents a field for them. `now` (aware) is what dates in headers are
    compared with.

    Raises SourceError. NaN and Infinity are read as null, integers of more than 20 digits as floats.
    """
    answer = await get(client, url, params, timeout_seconds=timeout_seconds, headers=headers, hint=hint)
    if answer.response.is_success:
        return JsonAnswer(json_value(answer), answer.response.headers)
    body = json_or_none(answer)
    raise refusal(answer, now=now, hint=hint, text=None if body is None else error_text(body))


def json_value(answer: HttpAnswer) -> Any:
    """Return the JSON value of a 2xx answer. Raises SourceError: malformed_response, or unavailable for a web page."""
    data = _data(answer, "json")
    try:
        return _parsed(data)
    except (ValueError, RecursionError) as error:
        raise failure("malformed_response", "the answer is not valid JSON") from error


def json_or_none(answer: HttpAnswer) -> Any:
    """Return the JSON value of an answer of any status, None where it is none: for the words of a refusal."""
    try:
        return _parsed(answer.body)
    except (ValueError, RecursionError):
        return None


def xml_value(answer: HttpAnswer) -> Element:
    """Return the root element of a 2xx answer. Raises SourceError as `json_value` does; see `safe_xml` for limits."""
    data = _data(answer, "xml")
    try:
        return parse_xml(data)
    except ValueError as error:
        raise failure("malformed_response", f"the answer is not usable XML: {error}") from error


def refusal(answer: HttpAnswer, *, now: datetime, hint: str = "", text: str | None = None) -> SourceError:
    """Return what an answer with an error status stands for; `text` is what the service says of it in its body."""
    response = answer.response
    status = response.status_code
    message = with_service_text(f"answered with status {status}", text)
    if status in {400, 413, 414, 422}:
        return failure("invalid_query", message)
    if status in {401, 402, 403, 407, 451}:
        return failure("access_denied", message)
    if status == 408:
        return failure("timeout", message)
    if status == 429:
        return failure("rate_limited", message, retry_after_seconds=retry_after(response.headers, now))
    if 500 <= status < 600:
        # not the reset of a rate limit: that also stands in answers which have nothing to do with it
        return failure("unavailable", message, retry_after_seconds=delay(response.headers, now))
    redirect = ", a redirect that is not followed" if response.is_redirect else ""
    address = response.url
    return failure(
        "unavailable", _joined(f"{message}{redirect}: {address.host}{address.path} looks like a wrong address", hint)
    )


def failure(error_type: ErrorType, message: str, *, retry_after_seconds: float | None = None) -> SourceError:
    """Return the SourceError of this type; it is retryable where the table of error types lets it be."""
    retryable = True in ERROR_KINDS[error_type].retryable
    return SourceError(error_type, message, retryable=retryable, retry_after_seconds=retry_after_seconds)


def with_service_text(message: str, text: str | None) -> str:
    """Return `message`, followed by the service's own words in one line, shortened to 200 characters."""
    return _joined(message, clip(" ".join((text or "").split()), MAX_ERROR_TEXT_CHARS)[0])


def service_url(base_url: str, path: str) -> str:
    """Return the address of a service, completed with `path` where it has none.

    Raises ValueError where it is not an http or https address.
    """
    if not is_address(base_url):
        raise ValueError(f"{without_password(base_url)!r} is not an http or https address")
    url = httpx2.URL(base_url)
    return str(url.copy_with(path=path)) if url.path == "/" else base_url


def mail_address(contact: str) -> str:
    """Return the contact where it is a mail address, as services with a pool for polite callers ask for, else ""."""
    return contact if re.fullmatch(r"[!-?A-~]+@[!-?A-~]+", contact) else ""


def user_agent(contact: str = "") -> str:
    """Return the User-Agent of every request to a source, with the user's contact address in it."""
    printable = re.sub(r"[^ -~]", "?", contact.strip() or "not given")  # a header value takes nothing but ASCII
    return f"caveat/{version('caveat')} (research tool; contact: {printable}) httpx2/{httpx2.__version__}"


def delay(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds that Retry-After names, and nothing else; `headers` and `now` as for `retry_after`."""
    return _delay(headers.get("retry-after"), now)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds to wait that a refusal's headers name, 0.0 for a moment that has passed, else None.

    Retry-After wins; then RateLimit-Reset and X-RateLimit-Reset (seconds, epoch seconds or epoch milliseconds); then
    both drafts of RateLimit. `headers` are looked up by lower-case name; `now` is aware. There is no upper bound.
    """
    named = delay(headers, now)
    for name in ("ratelimit-reset", "x-ratelimit-reset", "x-rate-limit-reset"):
        if named is None:
            named = _reset(headers.get(name), now)
    return _draft_reset(headers.get("ratelimit")) if named is None else named


async def _exchange(
    client: httpx2.AsyncClient, address: httpx2.URL, headers: Mapping[str, str] | None, timeout_seconds: float
) -> tuple[httpx2.Response, bytes]:
    asked = {**(headers or {}), "accept-encoding": "gzip"}
    response: httpx2.Response | None = None
    body = b""
    deadline = asyncio.timeout(timeout_seconds)
    try:
        async with (
            deadline,
            client.stream("GET", address, headers=asked, timeout=timeout_seconds, follow_redirects=False) as response,
        ):
            body = await _read(response)
    except (TimeoutError, httpx2.TransportError, httpx2.DecodingError) as error:
        if isinstance(error, TimeoutError) and not deadline.expired():
            raise  # somebody else's time-out
        if response is None or response.is_success:
            raise _broken(error, address.host, timeout_seconds, answering=response is not None) from error
        # a refusal whose body breaks off is still that refusal: its status says enough
    return response, body


async def _read(response: httpx2.Response) -> bytes:
    """Return the body, or as much of it as shows that it is too large.

    The content-coding is undone here and not by httpx2, which also undoes several at once: 2 kB sent become 1 GB held.
    Raises DecodingError.
    """
    if response.is_stream_consumed:  # it was made in memory
        return response.content
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in {"", "identity", "gzip", "x-gzip"}:
        raise httpx2.DecodingError(f"content-encoding {coding}")
    gzip = zlib.decompressobj(zlib.MAX_WBITS | 16) if coding.endswith("gzip") else None
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk if gzip is None else _inflated(gzip, chunk, MAX_BODY_BYTES + 1 - len(body))
        if len(body) > MAX_BODY_BYTES:
            return bytes(body)
    if gzip is not None and not gzip.eof:
        raise httpx2.DecodingError("the gzip stream has no end")
    return bytes(body)


def _inflated(gzip: zlib._Decompress, chunk: bytes, room: int) -> bytes:
    """Return at most `room` (≥ 1) more bytes. What follows the end of the stream is dropped, not collected."""
    if gzip.eof:
        return b""
    try:
        return gzip.decompress(chunk, room)
    except zlib.error as error:
        raise httpx2.DecodingError(str(error)) from error


def _broken(error: Exception, host: str, timeout_seconds: float, *, answering: bool) -> SourceError:
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return failure("timeout", f"no complete answer within {timeout_seconds:g} s")
    if isinstance(error, httpx2.DecodingError):
        return failure("malformed_response", "the answer's content-encoding could not be undone")
    if answering:
        return failure("malformed_response", "the answer broke off before its end")
    causes = list(_causes(error))
    words = next(words for kinds, words in _UNREACHABLE if any(isinstance(cause, kinds) for cause in causes))
    return failure("unavailable", words.format(host=host))


_UNREACHABLE: Final[tuple[tuple[type[Exception], str], ...]] = (
    (UnreachableProxyError, "the proxy on the way to {host} cannot be reached"),
    (httpx2.ProxyError, "the proxy on the way to {host} refused the connection"),
    (ssl.SSLCertVerificationError, "the certificate of {host} was not accepted (TLS)"),
    (ssl.SSLError, "the TLS handshake with {host} failed"),
    (socket.gaierror, "the name {host} was not found"),
    (ConnectionRefusedError, "{host} refused the connection"),
    (ConnectionError, "{host} reset the connection"),
    (httpx2.UnsupportedProtocol, "the address is neither http nor https"),
    (httpx2.ConnectError, "{host} could not be reached"),
    (httpx2.RemoteProtocolError, "{host} hung up or broke the protocol before it answered"),
    (Exception, "the connection to {host} broke before it answered"),
)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and what it was raised from, also where several attempts to connect failed together."""
    while error is not None:
        yield error
        for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _causes(part)
        error = error.__cause__ or error.__context__


def _data(answer: HttpAnswer, expected: Literal["json", "xml"]) -> bytes:
    """Return the body of a 2xx answer where it may be data of the expected kind."""
    body = answer.body
    if len(body) > MAX_BODY_BYTES:
        raise failure("malformed_response", f"the answer is larger than {MAX_BODY_BYTES // 1_000_000} MB")
    if not body.strip():
        raise failure("malformed_response", "answered without a body")
    kind = answer.response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in {"text/html", "application/xhtml+xml"} or _is_page(body, kind, expected):
        raise failure("unavailable", "answered with a web page instead of data: a maintenance page or a bot wall")
    return body


def _is_page(body: bytes, kind: str, expected: Literal["json", "xml"]) -> bool:
    start = body.removeprefix(b"\xef\xbb\xbf").lstrip()[:20].lower()
    if expected == "xml":
        return start.startswith((b"<!doctype html", b"<html"))
    return start.startswith(b"<") and not kind.endswith("json")


def _parsed(body: bytes) -> Any:
    text = body.decode("utf-8-sig")
    value = json.loads(text, parse_int=_whole_number, parse_constant=lambda _: None)
    if re.search(r"\\u[dD][89a-fA-F]", text):
        # an escaped half of a surrogate pair is legal JSON, but no later layer could write it as UTF-8
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        value = json.loads(whole, parse_int=_whole_number, parse_constant=lambda _: None)
    return value


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) <= 20 else float(digits)


def _joined(message: str, more: str) -> str:
    return f"{message}: {more}" if more else message


def _number(text: str | None) -> float | None:
    """Return a plain non-negative decimal; None for anything else, also for one too large for a float."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?", (text or "").strip()):
        return None
    number = float(text or "")
    return number if math.isfinite(number) else None


def _delay(text: str | None, now: datetime) -> float | None:
    """Read Retry-After: seconds, or a date in one of the three forms of RFC 9110."""
    number = _number(text)
    if number is not None or text is None or not re.search(r"[A-Za-z]{3}", text):
        return number
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())


def _reset(text: str | None, now: datetime) -> float | None:
    """Read a reset: a number is milliseconds, seconds of the epoch or seconds from now, by its size."""
    number = _number(text)
    if number is None:
        return None
    epoch = now.timestamp()
    if number > epoch * 500:
        return max(0.0, number / 1000 - epoch)
    return max(0.0, number - epoch) if number > epoch / 2 else number


def _draft_reset(text: str | None) -> float | None:
    """Read `limit=9, remaining=0, reset=50` or, of `"burst";r=0;t=30, "day";r=7;t=3600`, the limits that are spent."""
    older = re.search(r"\breset=([0-9.]+)", text or "")
    if older:
        return _number(older[1])
    limits = [dict(re.findall(r";\s*([rt])=([0-9]+)", part)) for part in (text or "").split(",")]
    waits = [_number(limit.get("t")) for limit in limits if not limit.get("r", "0").strip("0")]
    return max((wait for wait in waits if wait is not None), default=None)
