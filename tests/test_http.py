"""What a source gets when a server answers, does not answer, or answers with something else."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import socket
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caveat_tools.http import JsonAnswer, get_json, retry_after, user_agent
from caveat_tools.source import SourceError
from servers import (
    JSON_TYPE,
    LocalServer,
    Reply,
    Step,
    cut,
    dribble,
    html_reply,
    json_reply,
    refused_url,
    reset,
    silence,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EPOCH = NOW.timestamp()
URL = "https://example.org/api"


async def answer_of(handler: Callable[[httpx2.Request], httpx2.Response], url: str = URL, **options: Any) -> JsonAnswer:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(handler)) as client:
        return await get_json(client, url, {"q": "tea"}, now=NOW, **options)


async def answer_to(response: httpx2.Response, **options: Any) -> JsonAnswer:
    return await answer_of(lambda _: response, **options)


async def error_to(response: httpx2.Response, **options: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        await answer_to(response, **options)
    return caught.value


async def error_for(raised: Exception, url: str = URL) -> SourceError:
    def handler(_: httpx2.Request) -> httpx2.Response:
        raise raised

    with pytest.raises(SourceError) as caught:
        await answer_of(handler, url)
    return caught.value


async def error_from(*script: Step, timeout_seconds: float = 5.0) -> SourceError:
    with LocalServer(*script) as server, pytest.raises(SourceError) as caught:
        await get_over_network(server.url, timeout_seconds)
    return caught.value


async def get_over_network(url: str, timeout_seconds: float = 5.0) -> JsonAnswer:
    async with httpx2.AsyncClient(trust_env=False, verify=ssl.create_default_context(cadata="")) as client:
        return await get_json(client, url, {"q": "tea"}, now=NOW, timeout_seconds=timeout_seconds)


class Body(httpx2.AsyncByteStream):
    """A body that arrives in chunks and then, perhaps, fails."""

    def __init__(self, chunks: list[bytes], error: Exception | None = None) -> None:
        self.sent = 0
        self._chunks = chunks
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            self.sent += 1
            yield chunk
        if self._error is not None:
            raise self._error


def json_response(content: bytes, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": JSON_TYPE}, content=content)


# --- answers ---------------------------------------------------------------------------------------------------------


async def test_a_json_answer_comes_back_with_its_headers() -> None:
    """The parameters arrive, and a retry-after on an ordinary 200 is no failure."""
    with LocalServer(json_reply({"total": 3}, headers={"retry-after": "5"})) as server:
        answer = await get_over_network(f"{server.url}/api?key=1")
    assert answer.value == {"total": 3}
    assert answer.headers["retry-after"] == "5"
    assert [(r.path, r.query) for r in server.requests] == [("/api", {"key": "1", "q": "tea"})]


async def test_json_without_a_content_type_is_still_json() -> None:
    """Only a body that looks like a web page is taken for one."""
    assert (await answer_to(httpx2.Response(200, content=b" [1]"))).value == [1]


async def test_a_compressed_answer_is_read() -> None:
    """Services that compress are asked for gzip and nothing else; what follows the end of the data is dropped."""
    packed = gzip.compress(b'{"total": 3}', mtime=0)
    for coding, body in [("gzip", packed), ("X-GZIP", packed + b"\0" * 9), ("identity", b'{"total": 3}')]:
        headers = {"content-type": JSON_TYPE, "content-encoding": coding}
        with LocalServer(Reply(200, headers, body)) as server:
            assert (await get_over_network(server.url)).value == {"total": 3}
        assert server.requests[0].headers["accept-encoding"] == "gzip"


async def test_odd_numbers_do_no_harm() -> None:
    """NaN and Infinity are read as null, integers that no counter can hold as floats."""
    content = b'{"a": NaN, "b": -Infinity, "c": 1e999, "d": ' + b"9" * 5000 + b', "e": 12}'
    value = (await answer_to(json_response(content))).value
    assert value == {"a": None, "b": None, "c": math.inf, "d": math.inf, "e": 12}


async def test_half_a_character_is_replaced() -> None:
    """An escaped lone surrogate is legal JSON, but could never be written down as UTF-8."""
    value = (await answer_to(json_response(rb'{"title": "half \ud83d, whole \ud83d\ude00", "n": 1}'))).value
    assert value == {"title": "half ?, whole 😀", "n": 1}


@settings(deadline=None)
@given(content=st.binary(max_size=80), kind=st.sampled_from(["", "application/json", "text/html", "text/plain"]))
async def test_any_body_gives_a_value_or_a_named_error(content: bytes, kind: str) -> None:
    """Nothing that a server can send with status 200 ends the run."""
    response = httpx2.Response(200, headers={"content-type": kind} if kind else {}, content=content)
    outcome: JsonAnswer | SourceError
    try:
        outcome = await answer_to(response)
    except SourceError as error:
        outcome = error
    if isinstance(outcome, SourceError):
        assert outcome.error_type in {"malformed_response", "unavailable"}
        assert outcome.retryable


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error_type", "retryable"),
    [
        *((status, "invalid_query", False) for status in (400, 413, 414, 422)),
        *((status, "access_denied", False) for status in (401, 402, 403, 407, 451)),
        *((status, "unavailable", True) for status in (301, 302, 304, 404, 405, 409, 410, 418, 425)),
        *((status, "unavailable", True) for status in (500, 502, 503, 504, 529)),
        (408, "timeout", True),
        (429, "rate_limited", True),
    ],
)
async def test_a_status_decides_the_kind_of_failure(status: int, error_type: str, retryable: bool) -> None:
    """Whatever the body says, even a valid JSON value."""
    error = await error_to(json_response(b'{"results": []}', status))
    assert (error.error_type, error.retryable) == (error_type, retryable)
    assert error.message.startswith(f"answered with status {status}")


async def test_a_wrong_address_says_how_to_correct_it() -> None:
    """404 and redirects name the address without its query, and the caller's hint."""
    response = httpx2.Response(301, headers={"location": "https://example.org/new"})
    error = await error_to(response, hint="set CAVEAT_X")
    assert error.message == (
        "answered with status 301, a redirect that is not followed: "
        "example.org/api looks like a wrong address: set CAVEAT_X"
    )
    assert "looks like a wrong address" in (await error_to(httpx2.Response(404))).message


async def test_the_time_to_wait_is_read_from_the_headers() -> None:
    """429 may name it in any form; for a 503 only Retry-After counts, since a window's end says nothing of it."""
    headers = {"x-ratelimit-reset": str(int(EPOCH) + 60)}
    assert (await error_to(httpx2.Response(429, headers=headers))).retry_after_seconds == 60
    assert (await error_to(httpx2.Response(503, headers=headers))).retry_after_seconds is None
    assert (await error_to(httpx2.Response(503, headers={"retry-after": "7"}))).retry_after_seconds == 7


async def test_the_services_own_words_are_added_where_it_documents_a_field() -> None:
    """They are put in one line and shortened to 200 characters; a body that does not parse adds nothing."""

    def message(body: Any) -> str | None:
        return body.get("message") if isinstance(body, dict) else None

    long = json.dumps({"message": "no\nsuch field, " * 50}).encode()
    error = await error_to(json_response(long, 400), error_text=message)
    assert error.message.startswith("answered with status 400: no such field, no such field,")
    assert len(error.message) <= len("answered with status 400: ") + 200
    error = await error_to(httpx2.Response(400, content=b"[" * 100_000), error_text=message)
    assert error.message == "answered with status 400"


async def test_a_refusal_with_a_broken_body_is_still_that_refusal() -> None:
    """The status says enough."""
    broken = Body([b"slow "], httpx2.ReadError("gone"))
    assert (await error_to(httpx2.Response(429, stream=broken))).error_type == "rate_limited"


# --- a 2xx that is no answer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "response",
    [
        httpx2.Response(200, headers={"content-type": "text/html; charset=utf-8"}, content=b"Just a moment"),
        httpx2.Response(202, headers={"content-type": "Text/HTML"}, content=b"<html>captcha"),
        httpx2.Response(200, headers={"content-type": "text/plain"}, content=b"\n <!doctype html>"),
        httpx2.Response(200, headers={"content-type": "application/xml"}, content=b"\xef\xbb\xbf<error/>"),
        httpx2.Response(200, content=b"<!-- no type --><html>"),
    ],
)
async def test_a_web_page_where_data_was_due_is_an_outage(response: httpx2.Response) -> None:
    """A bot wall or a maintenance page with status 200 is never an answer without a match."""
    error = await error_to(response)
    assert error.error_type == "unavailable"
    assert error.message == "answered with a web page instead of data: a maintenance page or a bot wall"


@pytest.mark.parametrize(
    "response",
    [
        httpx2.Response(204),
        httpx2.Response(205, headers={"content-type": JSON_TYPE}),
        httpx2.Response(200, content=b" \n"),
        json_response(b'{"query": {"sea'),
        json_response(b"<html>claims to be JSON</html>"),
        json_response(b'{"title": "caf\xe9"}'),
        json_response(b"[" * 200_000),
        httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=Body([b"not compressed"])),
        httpx2.Response(200, headers={"content-type": "text/plain"}, content=b"Service OK"),
    ],
)
async def test_a_body_that_is_not_what_it_should_be_is_malformed(response: httpx2.Response) -> None:
    """Nothing of it is used."""
    error = await error_to(response)
    assert (error.error_type, error.retryable) == ("malformed_response", True)


async def test_a_huge_body_is_not_read_to_its_end() -> None:
    """After 5 MB the connection is closed."""
    body = Body([b" " * 1_000_000] * 1_000)
    error = await error_to(httpx2.Response(200, headers={"content-type": JSON_TYPE}, stream=body))
    assert error.error_type == "malformed_response"
    assert error.message == "the answer is larger than 5 MB"
    assert body.sent == 6


BOMB = gzip.compress(b" " * 100_000_000, mtime=0)


@pytest.mark.parametrize(
    ("coding", "bomb", "message"),
    [
        ("gzip", BOMB, "the answer is larger than 5 MB"),
        ("gzip, gzip", gzip.compress(BOMB, mtime=0), "the answer's content-encoding could not be undone"),
    ],
    ids=["once", "twice"],
)
async def test_a_small_body_that_unpacks_to_a_huge_one_costs_little_memory(
    coding: str, bomb: bytes, message: str
) -> None:
    """However much it would become, little more than the 5 MB that are allowed is ever held."""
    response = httpx2.Response(200, headers={"content-encoding": coding}, stream=Body([bomb]))
    tracemalloc.start()
    error = await error_to(response)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (error.error_type, error.message) == ("malformed_response", message)
    assert peak < 20_000_000


PACKED = gzip.compress(b'{"total": 3}', mtime=0)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip, gzip", gzip.compress(PACKED, mtime=0)),
        ("gzip, identity", PACKED),
        ("deflate", zlib.compress(b'{"total": 3}')),
        ("br", b'{"total": 3}'),
        ("zstd", b'{"total": 3}'),
        ("gzip", PACKED[:-4]),
        ("gzip", b""),
        ("gzip", b'{"total": 3}'),
    ],
)
async def test_a_content_coding_that_was_not_asked_for_is_malformed(coding: str, body: bytes) -> None:
    """Also gzip that is done twice, is cut or is none; a refusal in such a coding is still that refusal."""
    headers = {"content-type": JSON_TYPE, "content-encoding": coding}
    error = await error_to(httpx2.Response(200, headers=headers, stream=Body([body])))
    assert error.error_type == "malformed_response"
    assert error.message == "the answer's content-encoding could not be undone"
    refusal = await error_to(httpx2.Response(429, headers=headers, stream=Body([body])))
    assert refusal.error_type == "rate_limited"


@pytest.mark.parametrize("broken", [httpx2.ReadError("gone"), httpx2.RemoteProtocolError("incomplete")])
async def test_a_body_that_breaks_off_is_malformed(broken: Exception) -> None:
    """The service did answer, so it is not called unavailable."""
    error = await error_to(httpx2.Response(200, stream=Body([b'{"a"'], broken)))
    assert (error.error_type, error.message) == ("malformed_response", "the answer broke off before its end")


# --- no answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [silence(), dribble()], ids=["silent", "dribbling"])
async def test_a_slow_server_is_a_time_out(step: Step) -> None:
    """Also one that keeps sending a byte now and then."""
    error = await error_from(step, timeout_seconds=0.05)
    assert (error.error_type, error.retryable) == ("timeout", True)
    assert error.message == "no complete answer within 0.05 s"


@pytest.mark.parametrize("kind", [httpx2.ConnectTimeout, httpx2.ReadTimeout, httpx2.WriteTimeout, httpx2.PoolTimeout])
async def test_every_time_out_of_the_client_is_a_time_out(kind: type[httpx2.TimeoutException]) -> None:
    """Whatever was being waited for."""
    assert (await error_for(kind("late"))).error_type == "timeout"


async def test_a_body_that_is_cut_on_the_wire_is_malformed() -> None:
    """Content-Length promised more."""
    assert (await error_from(cut({"a": "b" * 100}))).error_type == "malformed_response"


async def test_a_reset_connection_is_an_outage() -> None:
    """The message names the host."""
    error = await error_from(reset())
    assert (error.error_type, error.message) == ("unavailable", "127.0.0.1 reset the connection")


async def test_a_refused_connection_is_an_outage() -> None:
    """The message says that it was refused."""
    with pytest.raises(SourceError) as caught:
        await get_over_network(refused_url())
    assert (caught.value.error_type, caught.value.retryable) == ("unavailable", True)
    assert caught.value.message == "127.0.0.1 refused the connection"


async def test_a_server_without_tls_is_an_outage() -> None:
    """The message says that it was the TLS handshake."""
    with LocalServer(html_reply()) as server, pytest.raises(SourceError) as caught:
        await get_over_network(server.url.replace("http:", "https:"))
    assert (caught.value.error_type, caught.value.message) == ("unavailable", "the TLS handshake with 127.0.0.1 failed")


@pytest.mark.parametrize(
    ("raised", "cause", "message"),
    [
        (httpx2.ConnectError(""), socket.gaierror(-2, "no"), "the name example.org was not found"),
        (httpx2.ConnectError(""), ssl.SSLCertVerificationError(1, "no"), "the certificate of example.org was not"),
        (
            httpx2.ConnectError(""),
            ExceptionGroup("all", [OSError(101, "net"), ConnectionRefusedError(111, "no")]),
            "example.org refused the connection",
        ),
        (httpx2.ConnectError("refused"), None, "example.org could not be reached"),
        (httpx2.ProxyError("403"), None, "the proxy on the way to example.org refused the connection"),
        (httpx2.RemoteProtocolError("hung up"), None, "example.org hung up or broke the protocol"),
        (httpx2.ReadError("gone"), None, "the connection to example.org broke before it answered"),
        (httpx2.WriteError("gone"), None, "the connection to example.org broke before it answered"),
    ],
)
async def test_an_outage_is_named_by_its_cause(raised: Exception, cause: Exception | None, message: str) -> None:
    """By exception class, never by the words of an exception."""
    raised.__cause__ = cause
    error = await error_for(raised)
    assert error.error_type == "unavailable"
    assert error.message.startswith(message)


@pytest.mark.parametrize("url", ["ftp://example.org/", "nonsense", "http://[::1/"])
async def test_an_address_that_cannot_be_used_is_an_outage(url: str) -> None:
    """Not a crash."""
    with pytest.raises(SourceError) as caught:
        await get_over_network(url)
    assert caught.value.error_type == "unavailable"


async def test_a_query_that_cannot_be_sent_is_invalid() -> None:
    """Half of a surrogate pair has no UTF-8 form."""
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(200))) as client:
        with pytest.raises(SourceError) as caught:
            await get_json(client, URL, {"q": "\ud83d"}, now=NOW)
    assert caught.value.error_type == "invalid_query"


# --- what is not ours passes through ---------------------------------------------------------------------------------


class StaleCassetteError(Exception):
    """Stands for vcrpy's complaint that a request was never recorded."""


@pytest.mark.parametrize("raised", [StaleCassetteError(), TimeoutError("not ours"), KeyError("a bug")])
async def test_a_stale_cassette_and_a_bug_are_not_outages(raised: Exception) -> None:
    """They come out as they are."""

    def handler(_: httpx2.Request) -> httpx2.Response:
        raise raised

    with pytest.raises(type(raised)) as caught:
        await answer_of(handler)
    assert caught.value is raised


async def test_a_deadline_of_the_caller_stays_the_callers() -> None:
    """It is not reported as a slow service."""
    with LocalServer(silence()) as server, pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await get_over_network(server.url)


# --- Retry-After and its relatives -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "120"}, 120),
        ({"retry-after": " 0 "}, 0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "Fri, 02 Jan 2026 03:05:05 GMT"}, 60),
        ({"retry-after": "Friday, 02-Jan-26 03:05:05 GMT"}, 60),
        ({"retry-after": "Fri Jan  2 03:05:05 2026"}, 60),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"ratelimit-reset": "30"}, 30),
        ({"x-ratelimit-reset": "86399"}, 86399),
        ({"x-ratelimit-reset": str(int(EPOCH) + 90)}, 90),
        ({"x-ratelimit-reset": str(int(EPOCH) - 90)}, 0),
        ({"x-ratelimit-reset": str(int(EPOCH + 90) * 1000)}, 90),
        ({"ratelimit": "limit=100, remaining=0, reset=50"}, 50),
        ({"ratelimit": '"default";r=0;t=30'}, 30),
        ({"ratelimit": '"burst";r=0;t=30, "day";r=7000;t=80000'}, 30),
        ({"ratelimit": '"burst";r=0;t=30, "day";t=80000;r=0'}, 80000),
        ({"ratelimit": '"default";r=9;t=30'}, None),
        ({"retry-after": "2", "ratelimit-reset": "30", "ratelimit": "reset=50"}, 2),
        ({"retry-after": "garbage", "ratelimit-reset": "30"}, 30),
    ],
)
def test_every_form_of_a_time_to_wait_is_understood(headers: dict[str, str], seconds: float | None) -> None:
    """Retry-After wins, and a moment in the past is a wait of nothing."""
    assert retry_after(headers, NOW) == seconds
    assert retry_after(httpx2.Headers(headers), NOW) == seconds


HEADERS = st.sampled_from(["retry-after", "ratelimit-reset", "x-ratelimit-reset", "ratelimit"])
LATIN = st.text(st.characters(max_codepoint=255))
PIECES = st.sampled_from(
    [
        *(
            "Fri, ",
            "Friday, ",
            "Fri ",
            "02 Jan 2026",
            "31-Feb-99",
            "Jan  2 ",
            "0 Dec 99999",
            " 03:05:05",
            " 25:99",
            " 2026",
        ),
        *(" GMT", " -0000", " +9999", " +99999999999999", "limit=9, ", "reset=", '"a"', ";r=", ";t=", ", "),
        *("0", "30", "1767323045", "9" * 400, "-", ".", "e9", "nan", "²", " "),
    ]
)


@settings(deadline=None)
@given(st.dictionaries(HEADERS, LATIN | st.lists(PIECES, max_size=8).map("".join)))
def test_no_header_breaks_the_reading_of_headers(headers: dict[str, str]) -> None:
    """Any text gives a finite number of seconds from 0 up, or None."""
    seconds = retry_after(headers, NOW)
    assert seconds is None or (seconds >= 0 and math.isfinite(seconds))


# --- who asks --------------------------------------------------------------------------------------------------------


def test_a_request_says_who_asks() -> None:
    """Services refuse requests without a descriptive User-Agent; a contact that is no ASCII does not break it."""
    assert user_agent().startswith("caveat/")
    assert "(research tool; contact: not given) httpx2/" in user_agent()
    assert "contact: j?rg@example.org??x: y)" in user_agent("jörg@example.org\r\nx: y")


def test_a_test_server_stops_at_once() -> None:
    """Even while a client still waits for it."""
    with LocalServer(silence()) as server:
        host, port = server.url.removeprefix("http://").split(":")
        waiting = socket.create_connection((host, int(port)))
        waiting.sendall(b"GET / HTTP/1.1\r\n\r\n")
    waiting.settimeout(5)
    assert waiting.recv(1) == b""  # hung up on
    waiting.close()
