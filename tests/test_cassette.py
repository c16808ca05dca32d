"""A cassette in use: what was recorded comes back, failures included, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
import trustme

from caveat.testing.cassette import Cassette, use_cassette
from caveat.testing.cassette_file import CassetteFileError
from caveat.testing.miss import CassetteError, CassetteMissError
from scripted import message, sse, stream_of, text
from servers import LocalServer, Reply, Request, cut, dribble, json_reply, refused_url, reset, silence


def written(tape: Path) -> str:
    """Return what stands in a cassette; nothing where there is none."""
    return tape.read_text() if tape.exists() else ""


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """Where the cassette of this test is."""
    return tmp_path / "cassettes" / "session.yaml"


async def outcome(url: str, *, patience: float = 0.3, verify: ssl.SSLContext | bool = True) -> tuple[Any, ...]:
    """Return what a GET comes to: status and body, or the part of it, the exception's class, words and last cause."""
    body = b""
    try:
        async with (
            httpx2.AsyncClient(timeout=patience, verify=verify) as client,
            client.stream("GET", url) as response,
        ):
            async for part in response.aiter_bytes():
                body += part
    except httpx2.TransportError as error:
        cause: BaseException = error
        while cause.__cause__ or cause.__context__:
            cause = cause.__cause__ or cause.__context__ or cause
        named = (
            type(cause).__name__ if isinstance(cause, ConnectionRefusedError | ssl.SSLError | socket.gaierror) else ""
        )
        return body, type(error), str(error), named
    return response.status_code, body


FAULTS: dict[str, Callable[[], Reply]] = {"reset": reset, "cut": lambda: cut({"words": "x" * 500}), "silence": silence}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_call_that_failed_fails_again_at_the_same_place(fault: str, tape: Path) -> None:
    """A reset, a body that is cut, an answer that never comes: the same exception, after the same part of the body."""
    with LocalServer(FAULTS[fault]()) as server:
        url = server.url
        live = await outcome(url)
        with use_cassette(tape, "once"):
            recorded = await outcome(url)
    with use_cassette(tape) as cassette:
        replayed = await outcome(url)
    assert live == recorded == replayed
    assert issubclass(replayed[1], httpx2.TransportError)
    assert cassette.all_played


async def test_a_refused_connection_and_a_bad_certificate_come_back_with_what_caused_them(tape: Path) -> None:
    """Code that looks at the cause of an error sees it in a replay, too."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    nobody = refused_url()
    with LocalServer(Reply(), tls=tls) as server, use_cassette(tape, "once"):
        url = server.url.replace("127.0.0.1", "localhost")
        recorded = [await outcome(nobody), await outcome(f"{url}/tls")]
    with use_cassette(tape):
        assert [await outcome(nobody), await outcome(f"{url}/tls")] == recorded
    assert [last for *_, last in recorded] == ["ConnectionRefusedError", "SSLCertVerificationError"]


async def test_a_deadline_of_the_callers_own_ends_the_call_again_and_takes_no_real_time(tape: Path) -> None:
    """A call that its caller gave up is given up in a replay, too, by whatever deadline there is, at once."""
    with LocalServer(dribble()) as server:
        url = server.url
        with use_cassette(tape, "once"), pytest.raises(TimeoutError):
            await asyncio.wait_for(outcome(url, patience=5), 0.2)
    with use_cassette(tape), pytest.raises(TimeoutError):
        await asyncio.wait_for(outcome(url), 800)


def test_of_several_deadlines_the_one_ends_a_call_that_comes_first(tape: Path) -> None:
    """An agent that gives one call a minute, and all of them five, goes through the same branch in a replay."""
    tape.parent.mkdir()
    tape.write_text(
        "caveat_cassette: 1\ninteractions:\n- request:\n    method: GET\n    uri: http://localhost/\n"
        "  response:\n    raises:\n      error: Cancelled\n      after_seconds: 0.1\n...\n"
    )

    async def agent() -> None:
        async with asyncio.timeout(31):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(outcome("http://localhost/"), 30)
            await asyncio.sleep(0)

    with use_cassette(tape):
        asyncio.run(agent())


async def test_what_had_come_of_a_call_that_was_given_up_is_seen_neither_while_recorded_nor_in_a_replay(
    tape: Path,
) -> None:
    """An agent that makes do with the part that it has would go another way."""

    async def heard(url: str) -> bytes:
        body = b""
        try:
            async with asyncio.timeout(0.3), httpx2.AsyncClient() as client, client.stream("GET", url) as response:
                async for part in response.aiter_bytes():
                    body += part
        except TimeoutError:
            return body
        raise AssertionError("no deadline ended it")

    with LocalServer(dribble()) as server:
        url = server.url
        with use_cassette(tape, "once"):
            recorded = await heard(url)
    with use_cassette(tape):
        assert await heard(url) == recorded


async def test_a_call_that_was_given_up_and_is_waited_for_now_ends_the_session(tape: Path) -> None:
    """Also where the agent holds every exception."""
    with LocalServer(dribble()) as server:
        url = server.url
        with use_cassette(tape, "once"), pytest.raises(TimeoutError):
            await asyncio.wait_for(outcome(url, patience=5), 0.2)
    with use_cassette(tape) as cassette:
        await asyncio.gather(outcome(url), return_exceptions=True)
    assert "is waited for now" in str(cassette.ended_by)


async def test_a_stream_of_a_model_that_breaks_off_breaks_off_after_the_same_words(tape: Path) -> None:
    """The SDK's caller has seen the same text when the same exception comes."""
    events = sse(*stream_of(message([text("one two three " * 20)])))
    broken = Reply(200, {"content-type": "text/event-stream"}, events, "cut")

    async def heard(base_url: str) -> tuple[str, type[Exception]]:
        words = ""
        async with anthropic.AsyncAnthropic(api_key="x", base_url=base_url, max_retries=0) as client:
            try:
                async with client.messages.stream(
                    model="m", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
                ) as stream:
                    async for event in stream:
                        words += f"{event.type} "
            except httpx2.TransportError as error:
                return words, type(error)
        return words, AssertionError

    with LocalServer(broken) as server, use_cassette(tape, "once"):
        recorded = await heard(server.url)
    with use_cassette(tape):
        assert await heard("https://api.anthropic.com") == recorded
    assert recorded[0].startswith("message_start")
    assert recorded[1] is httpx2.RemoteProtocolError


async def test_identical_requests_get_their_answers_in_recorded_order_and_parallel_ones_their_own(tape: Path) -> None:
    """A retry sees the failure first and the answer second; parallel requests never swap answers."""

    def echo(request: Request) -> Reply:
        return json_reply({"path": request.path})

    with LocalServer(Reply(503), Reply(429), echo) as server:
        url = server.url
        with use_cassette(tape, "once"):
            first = [await outcome(f"{url}/same") for _ in range(3)]
            several = await asyncio.gather(*(outcome(f"{url}/{n}") for n in range(9)))
    with use_cassette(tape) as cassette:
        again = await asyncio.gather(*(outcome(f"{url}/{n}") for n in reversed(range(9))))
        assert list(reversed(again)) == several
        assert [await outcome(f"{url}/same") for _ in range(3)] == first
    assert [status for status, _ in first] == [503, 429, 200]
    assert cassette.all_played


async def test_identical_requests_beside_each_other_find_their_own_answers(tape: Path) -> None:
    """They are recorded in the order in which they were asked, whichever was answered first."""
    second_has_come = threading.Event()
    numbers = count(1)

    def first_asked_last_answered(_: Request) -> Reply:
        number = next(numbers)
        if number == 1:
            second_has_come.wait(5)
        return json_reply({"number": number})

    async def both(url: str, first_is_asked: Callable[[], Any]) -> list[Any]:
        first = asyncio.ensure_future(outcome(url, patience=9))
        while not first_is_asked():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
        second = await outcome(url, patience=9)
        second_has_come.set()
        return [await first, second]

    with LocalServer(first_asked_last_answered) as server, use_cassette(tape, "once"):
        url = server.url
        recorded = await both(url, lambda: server.requests)
    with use_cassette(tape) as cassette:
        assert await both(url, lambda: cassette.asked) == recorded


def test_urllib_sees_already_while_recorded_what_a_replay_has(tape: Path) -> None:
    """JSON is written anew in a cassette. An agent that passes the text on would ask something else in a replay."""

    def seen(url: str) -> bytes:
        with urllib.request.urlopen(url) as response:  # noqa: S310 - an address of this test
            body: bytes = response.read()
            return body

    spaced = Reply(200, {"content-type": "application/json"}, b'{"a":    1}')
    with LocalServer(spaced) as server, use_cassette(tape, "once"):
        url = server.url
        recorded = seen(url)
    with use_cassette(tape):
        assert seen(url) == recorded


def test_an_upload_is_found_again_although_its_boundary_is_another_one_each_time(tape: Path) -> None:
    """Clients of HTTP make up what stands between the parts."""
    with LocalServer(json_reply({"id": "file_1"})) as server:
        url = server.url
        with use_cassette(tape, "once"):
            httpx2.post(url, files={"file": ("a.txt", b"hello")})
    with use_cassette(tape):
        assert httpx2.post(url, files={"file": ("a.txt", b"hello")}).json() == {"id": "file_1"}
    with use_cassette(tape), pytest.raises(CassetteMissError):
        httpx2.post(url, files={"file": ("a.txt", b"goodbye")})


def test_sync_clients_and_threads_and_other_libraries_are_on_the_same_cassette(tape: Path) -> None:
    """httpx2's own client from a thread pool, and urllib through vcrpy's stand-in."""

    def with_urllib(url: str) -> bytes:
        with urllib.request.urlopen(url) as response:  # noqa: S310 - an address of this test
            body: bytes = response.read()
            return body

    def asked(url: str) -> list[Any]:
        with httpx2.Client() as client, ThreadPoolExecutor(4) as pool:
            bodies = list(pool.map(lambda n: client.get(f"{url}/{n}").content, range(8)))
        return [json.loads(body) for body in (*bodies, with_urllib(f"{url}/urllib"))]

    with LocalServer(lambda request: json_reply({"path": request.path})) as server, use_cassette(tape, "once"):
        recorded = asked(server.url)
    with use_cassette(tape) as cassette:
        assert asked(server.url) == recorded
    assert len(cassette) == 9
    assert recorded[-1] == {"path": "/urllib"}


async def said(client: anthropic.AsyncAnthropic, words: str) -> str:
    """Ask a model as a careless agent does, which takes every exception for an outage."""
    try:
        await client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": words}])
    except Exception:  # noqa: BLE001 - that is the point
        return "the model cannot be reached"
    return "answered"


async def test_a_request_that_is_not_there_is_never_an_outage(tape: Path) -> None:
    """No `except Exception` of an agent, and no retry of the SDK, holds it; and every later request ends likewise."""
    with LocalServer(json_reply(message([text("hi")]))) as server, use_cassette(tape, "once"):
        async with anthropic.AsyncAnthropic(api_key="x", base_url=server.url) as client:
            assert await said(client, "hello") == "answered"
    with use_cassette(tape) as cassette:
        async with anthropic.AsyncAnthropic(api_key="x") as client:
            with pytest.raises(CassetteMissError, match="hello") as caught:
                await said(client, "bye")
            with pytest.raises(CassetteError):
                await said(client, "hello")
    assert str(caught.value) == cassette.ended_by
    assert not cassette.all_played


async def test_an_answer_that_cannot_be_recorded_ends_the_recording(tape: Path) -> None:
    """A body in a coding that nobody asked for would be unreadable; no agent takes that for an outage, either."""
    zstd = Reply(200, {"content-type": "application/json", "content-encoding": "zstd"}, b"(\xb5/\xfd")
    with LocalServer(zstd) as server:
        async with anthropic.AsyncAnthropic(api_key="x", base_url=server.url) as client:
            with pytest.raises(CassetteError, match="cannot be recorded"), use_cassette(tape, "once"):
                await said(client, "hello")
    assert not written(tape)


def test_a_replay_connects_to_nothing_and_waits_for_nothing(tape: Path) -> None:
    """Sockets refuse in a way that no agent takes for an outage; sleeping takes no time, in threads either."""
    tape.parent.mkdir()
    tape.write_text("caveat_cassette: 1\ninteractions: []\n...\n")
    began = time.monotonic()
    with use_cassette(tape):
        time.sleep(1_000)
        asyncio.run(asyncio.sleep(1_000))
        with socket.socket() as plain:
            for connect in (
                lambda: socket.create_connection(("127.0.0.1", 9)),
                lambda: plain.connect(("127.0.0.1", 9)),
                lambda: plain.connect_ex(("127.0.0.1", 9)),
                lambda: socket.getaddrinfo("example.com", 80),
                lambda: socket.gethostbyname("example.com"),
            ):
                with pytest.raises(CassetteError, match="was tried in a replay"):
                    connect()
        with socket.socket(type=socket.SOCK_DGRAM) as plain, pytest.raises(CassetteError):
            plain.sendto(b"", ("127.0.0.1", 9))
        left, right = socket.socketpair()
        left.close()
        right.close()
    assert time.monotonic() - began < 500


async def test_a_recording_that_ends_in_an_exception_is_not_written_and_the_old_one_stays(tape: Path) -> None:
    """Half a session is no session; what was there before is still there."""
    with LocalServer(Reply(200)) as server:
        with use_cassette(tape, "once"):
            await outcome(server.url)
        before = written(tape)

        async def half() -> None:
            with use_cassette(tape, "rewrite"):
                await outcome(f"{server.url}/other")
                raise RuntimeError("half-way")

        with pytest.raises(RuntimeError, match="half-way"):
            await half()
    assert written(tape) == before != ""
    assert [path.name for path in tape.parent.iterdir()] == [tape.name]


async def test_new_episodes_keep_what_is_still_asked_for_record_the_rest_and_drop_what_is_not(tape: Path) -> None:
    """What was paid for is not paid for twice; what nobody asks for any more leaves."""
    with LocalServer(lambda request: json_reply({"path": request.path})) as server:
        url = server.url
        with use_cassette(tape, "once"):
            await outcome(f"{url}/kept")
            await outcome(f"{url}/dropped")
        with use_cassette(tape, "new_episodes"):
            await outcome(f"{url}/kept")
            await outcome(f"{url}/new")
        assert [request.path for request in server.requests] == ["/kept", "/dropped", "/new"]
    assert [request.path for request in Cassette(tape).requests] == ["/kept", "/new"]


async def test_new_episodes_drop_what_nobody_asks_for_also_where_nothing_is_new(tape: Path) -> None:
    """The test would fail ever after otherwise. When it was recorded stays as it is."""
    with LocalServer(lambda request: json_reply({"path": request.path})) as server:
        url = server.url
        with use_cassette(tape, "once"):
            await outcome(f"{url}/kept")
            await outcome(f"{url}/dropped")
        recorded = Cassette(tape).header["recorded"]
        with use_cassette(tape, "new_episodes"):
            await outcome(f"{url}/kept")
    kept = Cassette(tape)
    assert [request.path for request in kept.requests] == ["/kept"]
    assert kept.header["recorded"] == recorded


@pytest.mark.parametrize("mode", ["rewrite", "all"])
async def test_recording_anew_asks_for_everything_again_also_for_the_same_twice(mode: Any, tape: Path) -> None:
    """An answer that was recorded a moment ago is not played back while recording."""
    with LocalServer(Reply(503), Reply(200)) as server:
        for _ in range(2):
            with use_cassette(tape, mode):
                await outcome(server.url)
                await outcome(server.url)
    assert len(server.requests) == 4


async def test_the_header_says_when_how_and_with_what_a_session_was_recorded(tape: Path) -> None:
    """Model, servers, digests of the prompts and versions of the packages; no address of this machine."""
    with LocalServer(json_reply(message([text("hi")]))) as server, use_cassette(tape, "once"):
        async with anthropic.AsyncAnthropic(api_key="x", base_url=server.url) as client:
            await client.messages.create(
                model="m-1", max_tokens=9, system="Be brief.", messages=[{"role": "user", "content": "hello"}]
            )
    recorded = Cassette(tape).header["recorded"]
    assert recorded["models"] == ["m-1"]
    assert recorded["servers"] == ["a Messages API at another address"]
    assert recorded["prompts"][0].startswith("system ")
    assert set(recorded["packages"]) == {"caveat", "anthropic", "httpx2", "vcrpy"}
    assert "127.0.0.1" not in written(tape)


def test_one_cassette_is_in_use_at_a_time(tape: Path) -> None:
    """Two would steal each other's requests."""
    with use_cassette(tape), pytest.raises(RuntimeError, match="one at a time"), use_cassette(tape):
        pass


def test_a_cassette_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path) -> None:
    """A file stands where its folder would be."""
    (tmp_path / "cassettes").write_text("")
    with (
        LocalServer(Reply(200)) as server,
        pytest.raises(CassetteFileError, match="cannot be written"),
        use_cassette(tmp_path / "cassettes" / "session.yaml", "rewrite"),
        httpx2.Client() as client,
    ):
        client.get(server.url)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"- 1",
        b"a: [",
        b"caveat_cassette: 99\ninteractions: []\n",
        b"caveat_cassette: 1\nrecorded: 5\ninteractions: []\n...\n",
    ],
)
def test_a_file_that_is_no_cassette_is_refused_in_a_sentence_and_left_alone(content: bytes, tape: Path) -> None:
    """Also when it was to be recorded to: it may be something else."""
    tape.parent.mkdir()
    tape.write_bytes(content)
    for mode in ("none", "once", "new_episodes"):
        with pytest.raises(CassetteFileError), use_cassette(tape, mode):
            pass
    assert tape.read_bytes() == content


def test_what_stands_in_for_the_network_is_gone_afterwards(tape: Path) -> None:
    """Sockets, sleep and transports are what they were, also after an exception."""
    before = (socket.socket.connect, time.sleep, asyncio.sleep, httpx2.HTTPTransport.handle_request)
    with pytest.raises(RuntimeError), use_cassette(tape):
        raise RuntimeError
    assert (socket.socket.connect, time.sleep, asyncio.sleep, httpx2.HTTPTransport.handle_request) == before
    assert threading.active_count() >= 1


async def test_a_transport_that_hands_on_to_another_is_recorded_once(tape: Path) -> None:
    """A request is one request, however many layers it goes through."""

    async def asked(url: str) -> int:
        async with httpx2.AsyncHTTPTransport() as wire:
            layer = httpx2.MockTransport(wire.handle_async_request)
            async with httpx2.AsyncClient(transport=layer) as client:
                return (await client.get(url)).status_code

    with LocalServer(Reply(204)) as server, use_cassette(tape, "once") as cassette:
        assert await asked(server.url) == 204
    with use_cassette(tape) as cassette:
        assert await asked(server.url) == 204
    assert len(cassette) == 1
    assert cassette.all_played


@pytest.mark.parametrize("key", ["", "none", "another-key-0123456789", None])
def test_a_replay_needs_no_key_wherever_a_service_wants_it(key: str | None, tape: Path) -> None:
    """In the address or in the body: what a key is set to does not count, nor whether there is one."""

    def asked(url: str, key: str | None) -> list[int]:
        with httpx2.Client() as client:
            address = f"{url}/search?q=tea" + ("" if key is None else f"&api_key={key}")
            body = {"query": "tea"} | ({} if key is None else {"api_key": key})
            return [client.get(address).status_code, client.post(f"{url}/search", json=body).status_code]

    with LocalServer(Reply(200)) as server, use_cassette(tape, "once"):
        url = server.url
        assert asked(url, "a-real-key-0123456789") == [200, 200]
    with use_cassette(tape):
        assert asked(url, key) == [200, 200]
    assert "a-real-key" not in written(tape)
    with use_cassette(tape), pytest.raises(CassetteMissError):
        asked(f"{url}/elsewhere", key)
