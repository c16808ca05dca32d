"""Local test servers: scripted answers, the faults of real networks, and a MediaWiki that behaves as it documents.

    with LocalServer(FakeMediaWiki({"Tea": "Tea is a drink."})) as server:
        ... server.url, server.requests ...

A server runs in its own thread, so the same `with` serves sync and async tests.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, quote, urlsplit

JSON_TYPE = "application/json; charset=utf-8"
HTML_TYPE = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the server saw it; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `fault` says how it goes wrong on the way; see the functions below."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    fault: Literal["cut", "reset", "dribble", "silence"] | None = None


Step = Reply | Callable[[Request], Reply]


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Answer with `value` as JSON."""
    return Reply(status, {"content-type": JSON_TYPE, **(headers or {})}, json.dumps(value).encode())


def html_reply(text: str = "<!doctype html><title>Down for maintenance</title>", status: int = 200) -> Reply:
    """Answer with a web page."""
    return Reply(status, {"content-type": HTML_TYPE}, text.encode())


def cut(value: Any) -> Reply:
    """Announce the whole of `value` as JSON, send half of it and close."""
    return Reply(200, {"content-type": JSON_TYPE}, json.dumps(value).encode(), "cut")


def reset() -> Reply:
    """Take the request and reset the connection."""
    return Reply(fault="reset")


def dribble() -> Reply:
    """Answer 200 and send one byte after the other until the client leaves."""
    return Reply(200, {"content-type": JSON_TYPE}, fault="dribble")


def silence() -> Reply:
    """Take the request and never answer."""
    return Reply(fault="silence")


def refused_url() -> str:
    """Return an address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return _url(unused)


class LocalServer:
    """Plays `script` on 127.0.0.1, one step a request; the last step answers all further requests."""

    def __init__(self, *script: Step, tls: ssl.SSLContext | None = None) -> None:
        """With `tls`, it speaks HTTPS."""
        self.requests: list[Request] = []
        self.url = ""
        self._script = script
        self._tls = tls
        self._open: set[asyncio.Task[None]] = set()
        self._running = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        """Start to listen, and let `url` say where."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = _url(self._socket, "https" if self._tls else "http")
        self._thread.start()
        self._running.wait()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Hang up on everybody and stop."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connection, sock=self._socket, ssl=self._tls)
        self._running.set()
        await self._stop.wait()
        self._loop.remove_reader(self._socket)
        await _settled()  # a connection may have been accepted that has no task yet
        server.close()
        for connection in self._open:
            connection.cancel()
        await _settled()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            request = await _read(reader)
            self.requests.append(request)
            step = self._script[min(len(self.requests), len(self._script)) - 1]
            await _send(reader, writer, step if isinstance(step, Reply) else step(request))
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the server stops
        finally:
            writer.transport.abort()
            self._open.discard(task)


async def _settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader) -> Request:
    first = await reader.readexactly(1)
    if not first.isalpha():
        raise ConnectionError("not HTTP: a TLS handshake begins with another byte")
    head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Request(method, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), headers, body)


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply) -> None:
    if reply.fault == "silence":
        await reader.read()
        return
    if reply.fault == "reset":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        return
    length = 1_000_000 if reply.fault == "dribble" else len(reply.body)
    headers = {**reply.headers, "content-length": str(length), "connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {reply.status} Scripted\r\n{head}\r\n".encode("latin-1"))
    while reply.fault == "dribble":
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.005)
    writer.write(reply.body[: len(reply.body) // 2] if reply.fault == "cut" else reply.body)
    await writer.drain()


def _url(listening: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"


class TunnelProxy(LocalServer):
    """A proxy for HTTPS: joins the client to the server that CONNECT names, and remembers what was asked of it."""

    def __init__(self, refusal: Reply | None = None) -> None:
        """`refusal` is answered in place of a tunnel."""
        super().__init__(Reply())
        self._refusal = refusal

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await _read(reader)
        self.requests.append(request)
        try:
            if self._refusal is not None:
                await _send(reader, writer, self._refusal)
                return
            host, port = request.path.rsplit(":", 1)
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Joined\r\n\r\n")
            await asyncio.gather(_copied(reader, far_writer), _copied(far_reader, writer))
        finally:
            writer.transport.abort()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()
    except ConnectionError:
        pass  # one side left


def mediawiki_error(code: str, info: str, *, plaintext: bool = True, headers: Mapping[str, str] | None = None) -> Reply:
    """Answer as MediaWiki does to almost every error: status 200, a header, and an object in one of two forms."""
    body: dict[str, Any] = {"error": {"code": code, "info": info}}
    if plaintext:
        body = {"errors": [{"code": code, "text": info, "module": "query+search"}]}
    return json_reply(body, headers={"mediawiki-api-error": code, **(headers or {})})


class FakeMediaWiki:
    """The part of api.php that a search needs, over titles and texts; a text's first paragraph is its introduction.

    An article matches when its title and text hold every word of the query. Articles keep their order.
    """

    def __init__(self, articles: Mapping[str, str], host: str = "") -> None:
        """`host` stands in the articles' addresses, in place of the one that was asked."""
        self._articles = dict(articles)
        self._host = host

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        asked = request.query
        plaintext = asked.get("errorformat") == "plaintext"
        if re.match(r"python|$", request.headers.get("user-agent", "")):
            return Reply(403, {"content-type": "text/plain"}, b"Please set a user-agent that names you.")
        if asked.get("action") != "query":
            return mediawiki_error("unknown_action", "Unrecognized value for action.", plaintext=plaintext)
        search = asked.get("srsearch", "")
        if not search.strip():
            return mediawiki_error("missingparam", 'The "srsearch" parameter must be set.', plaintext=plaintext)
        if len(search) > 300:
            return mediawiki_error("cirrussearch-query-too-long", "Search request is too long.", plaintext=plaintext)
        return json_reply(self._answer(asked, search, self._host or request.headers.get("host", "")))

    def _answer(self, asked: Mapping[str, str], search: str, host: str) -> dict[str, Any]:
        words = re.findall(r"\w+", search.casefold())
        numbered = enumerate(self._articles.items(), start=1)
        hits = [
            (number, title, text)
            for number, (title, text) in numbered
            if all(word in f"{title} {text}".casefold() for word in words)
        ]
        first, size = int(asked.get("sroffset", "0")), int(asked.get("srlimit", "10"))
        shown = hits[first : first + size]
        rows = [
            {
                "ns": 0,
                "title": title,
                "pageid": number,
                "snippet": _snippet(text, words),
                "timestamp": "2026-01-02T03:04:05Z",
            }
            for number, title, text in shown
        ]
        query: dict[str, Any] = {"searchinfo": {"totalhits": len(hits)}, "search": rows}
        new = asked.get("formatversion") == "2"
        if shown and asked.get("generator") == "search":
            pages = [_page(number, title, text, host) for number, title, text in shown]
            pages.sort(key=lambda page: -int(page["pageid"]))  # the order of pages is not that of the rows
            query["pages"] = pages if new else {str(page["pageid"]): page for page in pages}
        answer: dict[str, Any] = {"batchcomplete": True if new else "", "query": query}
        if first + size < len(hits):
            answer["continue"] = {"sroffset": first + size, "gsroffset": first + size, "continue": "gsroffset||"}
        return answer


def _page(number: int, title: str, text: str, host: str) -> dict[str, Any]:
    address = f"http://{host}/wiki/{quote(title.replace(' ', '_'))}"
    return {"pageid": number, "ns": 0, "title": title, "extract": text.split("\n\n", maxsplit=1)[0], "fullurl": address}


def _snippet(text: str, words: list[str]) -> str:
    """Return some words around the first match, with each match in a span, as HTML."""
    start = min((at for word in words if (at := text.casefold().find(word)) >= 0), default=0)
    shown = text[start : start + 150]
    window = html.escape(shown.rsplit(" ", 1)[0] if len(text) > start + 150 else shown)
    return re.sub("|".join(words), r'<span class="searchmatch">\g<0></span>', window, flags=re.IGNORECASE)
