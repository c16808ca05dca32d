"""What makes two requests the same: one digest each, so that a long cassette is searched in no time.

The order of keys and the white space of JSON do not count, nor where a Messages API or a server of this machine was.
All else does.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections import defaultdict, deque
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit
from weakref import WeakKeyDictionary

import msgspec

if TYPE_CHECKING:
    from vcr.request import Request

MESSAGES_API: Final = "messages.invalid"
"""Stands for the host of every Messages API but the hosted one: an address of one's own is nobody else's business."""

HOSTED: Final = "api.anthropic.com"

_MESSAGES: Final = re.compile(r"/v1/messages(?:/count_tokens|/batches(?:/[^/]+(?:/(?:results|cancel))?)?)?/?$")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def digest(request: Request) -> str:
    """Return the SHA-256, in hex, of what is asked: method, place, path, query as sorted pairs, and body.

    The place is host and port. A Messages API is one place wherever it is, and so is this machine on any port. A body
    that is JSON counts by what it means, any other by its bytes. The result is kept for as long as the request object
    lives, and is computed again where method, address or body have been set to something else.
    """
    key = (request.method, request.uri, request.body_bytes)
    known = _digests.get(request)
    if known is None or known[0] != key:
        known = _digests[request] = (key, _digest(*key))
    return known[1]


_digests: Final[WeakKeyDictionary[Request, tuple[tuple[str, str, bytes | None], str]]] = WeakKeyDictionary()


def _digest(method: str, uri: str, body: bytes | None) -> str:
    asked = hashlib.sha256(json.dumps([method, place(uri), path(uri), sorted(query(uri))]).encode())
    try:
        asked.update(canonical(parsed(body or b"")))
    except ValueError:
        asked.update(body or b"")
    return asked.hexdigest()


def place(uri: str) -> str:
    """Return what counts of the host and port of an address."""
    if is_messages_api(uri):
        return MESSAGES_API
    url = _split(uri)
    host = _host(url)
    return "localhost" if _is_loopback(host) else f"{host}:{url.port or _DEFAULT_PORTS.get(url.scheme, '')}"


def path(uri: str) -> str:
    """Return what counts of the path of an address: of a Messages API, what begins with /v1/."""
    messages = _MESSAGES.search(_split(uri).path)
    return messages[0] if messages else _split(uri).path or "/"


def query(uri: str) -> list[tuple[str, str]]:
    """Return names and values of the query of an address, as they stand there."""
    return parse_qsl(_split(uri).query, keep_blank_values=True, errors="surrogateescape")


def is_messages_api(uri: str) -> bool:
    """Say whether an address is one of the Messages API: messages, counting of tokens, batches."""
    return _MESSAGES.search(_split(uri).path) is not None


def stored_url(uri: str) -> str:
    """Return the address as a file should hold it: the digest stays, a login and the fragment go.

    Of a Messages API, the host is kept where it is the hosted one. This machine is http://localhost.
    """
    url = _split(uri)
    host = _host(url)
    if not host:
        return uri
    if is_messages_api(uri):
        root = f"https://{HOSTED if host == HOSTED else MESSAGES_API}"
    elif _is_loopback(host):
        root = "http://localhost"
    else:
        root = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
    return root + path(uri) + (f"?{url.query}" if url.query else "")


def _split(uri: str) -> SplitResult:
    """Take an address apart. One that cannot be, as it may stand in a file written by hand, is all path."""
    try:
        url = urlsplit(uri)
        _ = url.port, url.hostname
    except ValueError:
        return SplitResult("", "", uri, "", "")
    return url


def _host(url: SplitResult) -> str:
    return (url.hostname or "").rstrip(".")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parsed(body: bytes) -> Any:
    """Return the meaning of a JSON text; of a key that an object has twice, the last one counts.

    Raises ValueError where it is no JSON by RFC 8259, or nested deeper than Python's stack.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"this is not read as JSON: {error}") from error


def canonical(value: Any) -> bytes:
    """Return the one JSON text of a parsed value: keys sorted, no white space; 1, 1.0, "1" and true stay apart.

    Raises ValueError where it is nested deeper than Python's stack.
    """
    try:
        return _CANONICAL.encode(value)
    except RecursionError as error:
        raise ValueError(f"this is not written as JSON: {error}") from error


_CANONICAL: Final = msgspec.json.Encoder(order="sorted")


class Index:
    """Recorded requests by digest, given out once each. Safe to use from several threads."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = Lock()
        self._count = 0
        self._unplayed: defaultdict[str, deque[int]] = defaultdict(deque)
        self._played: set[int] = set()

    def add(self, request: Request) -> int:
        """Take in a recorded request, and return its position: 0 for the first."""
        key = digest(request)
        with self._lock:
            position = self._count
            self._count += 1
            self._unplayed[key].append(position)
        return position

    def take(self, request: Request) -> int | None:
        """Return the position of the first equal one that is not played yet, which is played now; None without one."""
        key = digest(request)
        with self._lock:
            if not self._unplayed.get(key):
                return None
            position = self._unplayed[key].popleft()
            self._played.add(position)
        return position

    def has(self, request: Request) -> bool:
        """Say whether an equal one is not played yet."""
        return bool(self._unplayed.get(digest(request)))

    @property
    def played(self) -> frozenset[int]:
        """The positions that were given out."""
        with self._lock:
            return frozenset(self._played)


def message_request(request: Request) -> dict[str, Any] | None:
    """Return what a request asks a Messages API for, as JSON; None where it does not ask for a turn."""
    if request.method != "POST" or path(request.uri).rstrip("/") != "/v1/messages":
        return None
    try:
        body = parsed(request.body_bytes or b"")
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
