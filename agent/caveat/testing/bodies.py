"""Bodies of requests and responses: as bytes, and as the structure that stands for them in a file.

    json: {…}             # JSON, where the structure says all that the text says
    events: [{…}, {…}]    # a server-sent-events stream: each its name, if it has one, and its data
    rest: "event: con"    # what a cut stream ends with
    text: …               # any other text
    base64: …             # what is not UTF-8

JSON and events come back with the same meaning, everything else byte for byte: what a structure would change stands as
text.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 64
"""How deeply a body may be nested to stand as structure. Deeper ones stand as text."""
MAX_UNCOMPRESSED: Final = 64 * 2**20
"""The largest body, in bytes, that compression is undone for."""


class CassetteFileError(ValueError):
    """A file that is no cassette, or an answer that none can hold; the message says what to do."""


def body_of(response: Mapping[str, Any]) -> bytes:
    """Return the bytes of a response's body; none are b""."""
    stored = response["body"].get("string") or b""
    return stored.encode() if isinstance(stored, str) else bytes(stored)


def body_entry(body: bytes, content_type: str = "") -> dict[str, Any]:
    """Return what stands for a body in a file."""
    text = _as_text(body)
    if text is None:
        return {"base64": base64.encodebytes(body).decode()}
    if text.lstrip()[:1] in {"{", "["}:
        with suppress(ValueError):
            return {"json": json_value(text)}
    elif content_type.lower().startswith("text/event-stream") or text.startswith(("event:", "data:")):
        found = events_in(text)
        if found:
            events, rest = found
            return {"events": events, "rest": rest} if rest else {"events": events}
    return {"text": text}


def body_bytes(entry: Mapping[str, Any]) -> bytes:
    """Return the body that an entry of a file stands for. Raises ValueError for what stands for none."""
    try:
        match entry:
            case {"json": value, **other} if not other:
                return json_text(value).encode()
            case {"events": [*events], "rest": str(rest), **other} if not other:
                return (events_text(events) + rest).encode()
            case {"events": [*events], **other} if not other:
                return events_text(events).encode()
            case {"text": str(text), **other} if not other:
                return text.encode()
            case {"base64": str(text), **other} if not other:
                return base64.b64decode("".join(text.split()), validate=True)
            case {**nothing} if not nothing:
                return b""
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from error
    raise ValueError("no known form")


# ---- JSON


def json_value(text: str) -> Any:
    """Return what a JSON text says. Raises ValueError for what would not say the same once it is written again.

    That is: names that stand twice, NaN, numbers beyond double precision, lone surrogates, depth beyond MAX_DEPTH.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_float=_exact_number, parse_constant=_no_number)
        if "\\u" in text:
            json_text(value).encode()  # raises for a lone surrogate
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError("nested too deeply")


def json_text(value: Any) -> str:
    """Return a JSON value as text in one line, for every reader's idea of a line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _LINE_END.sub(escaped, text)


def unescaped(text: str) -> str:
    """Return a text without the escapes of JSON, however deep JSON stands in it. Backslashes may be left over."""
    if "\\u" in text:
        text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    for escape, character in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t"), ('\\"', '"'), ("\\/", "/")):
        text = text.replace(escape, character)
    return text


def escaped(character: re.Match[str]) -> str:
    r"""Return a character as JSON and YAML escape it: \u2028."""
    return f"\\u{ord(character[0]):04x}"


def _inside(outer: dict[str, Any] | list[Any]) -> Any:
    return outer.values() if isinstance(outer, dict) else outer


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return value


def _exact_number(digits: str) -> float:
    value = float(digits)
    if Decimal(repr(value)) != Decimal(digits):
        raise ValueError("a number has more digits than a double holds")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_ESCAPED: Final = re.compile(r"\\+u([0-9A-Fa-f]{4})")
_LINE_END: Final = re.compile("[\x85\u2028\u2029]")


# ---- server-sent events


def events_in(text: str) -> tuple[list[dict[str, Any]], str] | None:
    """Return the events of a server-sent-events stream, and the rest after the last whole one.

    An event is {event, data}: its name if it has one, and its data as a JSON value, or as they stand if they are a text
    or no JSON. None if there is no event, or if anything else is in the stream (comments, ids, several lines of data).
    """
    events: list[dict[str, Any]] = []
    end = text.rfind("\n\n") + 2 if "\r" not in text and "\n\n" in text else 0
    at = 0
    while at < end:
        event = _EVENT.match(text, at)
        if event is None:
            return None
        name = {} if event["event"] is None else {"event": event["event"]}
        events.append({**name, "data": _event_data(event["data"])})
        at = event.end()
    return (events, text[end:]) if events else None


def events_text(events: Sequence[Mapping[str, Any]]) -> str:
    """Return events as a server-sent-events stream. Raises KeyError, TypeError or ValueError for what is no event."""
    lines = []
    for event in events:
        data = event["data"] if isinstance(event["data"], str) else json_text(event["data"])
        if "event" in event:
            lines.append("event: " + event["event"])
        lines += [f"data: {data}", ""]
    return "\n".join([*lines, ""]) if lines else ""


def simple_stream(text: str) -> str:
    """Return a stream without what carries nothing here: comments, ids, waits, other line ends."""
    lines = re.sub(r"\r\n?", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"^(?::|id:|retry:).*\n", "", lines, flags=re.MULTILINE)).lstrip("\n")


def _event_data(data: str) -> Any:
    try:
        value = json_value(data)
    except ValueError:
        return data
    return data if isinstance(value, str) else value


_EVENT: Final = re.compile(r"(?:event: ?+(?P<event>[^\n]+)\n)?data: ?(?P<data>[^\n]*)\n\n")


# ---- compression


def uncompressed(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response with its compression undone, and without the headers that speak of it.

    A cut body gives what can be had of it, and a body that somebody has decoded already stays as it is. Raises
    CassetteFileError for br, zstd and the like, and for what is damaged or too large.
    """
    body = body_of(response)
    for coding in reversed(_codings(response["headers"])):
        body = _decoded(body, coding)
    kept = {n: v for n, v in response["headers"].items() if n.lower() not in {"content-encoding", "content-length"}}
    return {**response, "headers": kept, "body": {"string": body}}


def _codings(headers: Mapping[str, str | Sequence[str]]) -> list[str]:
    stored = [values for name, values in headers.items() if name.lower() == "content-encoding"]
    lines = [line for values in stored for line in ([values] if isinstance(values, str) else values)]
    return [coding.strip().lower() for line in lines for coding in line.split(",")]


def _decoded(body: bytes, coding: str) -> bytes:
    if coding in {"gzip", "x-gzip"}:
        try:
            return _inflated(body, zlib.MAX_WBITS | 16) if body.startswith(_GZIP) else body
        except zlib.error:
            raise CassetteFileError("an answer's gzip is damaged; record with 'accept-encoding: identity'") from None
    if coding == "deflate":
        for bits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):  # servers send both: with zlib's frame, and without
            with suppress(zlib.error):
                return _inflated(body, bits)
    elif coding not in {"identity", ""} and _as_text(body) is None:
        raise CassetteFileError(
            f"an answer is compressed with {coding:.20}, which is not undone here; "
            "record with the request header 'accept-encoding: identity'"
        )
    return body


def _inflated(body: bytes, bits: int) -> bytes:
    parts = []
    room = MAX_UNCOMPRESSED
    while body:
        member = zlib.decompressobj(bits)
        parts.append(member.decompress(body, room))
        room -= len(parts[-1])
        if room <= 0 or member.unconsumed_tail:
            raise CassetteFileError(f"an answer has more than {MAX_UNCOMPRESSED >> 20} MB; leave it out of the test")
        body = member.unused_data if member.unused_data.startswith(_GZIP) else b""
    return b"".join(parts)


def _as_text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


_GZIP: Final = b"\x1f\x8b"
