"""The file of a cassette: YAML in which bodies stand as structure, so that a diff says what has changed.

    caveat_cassette: 1
    model: relay                      # the header: whatever the recorder says of the recording
    interactions:
    - request:
        method: POST
        uri: https://api.anthropic.com/v1/messages
        body:
          json: {…}                   # or text: (a block scalar), or base64: (what is not UTF-8)
      response:
        status: 200
        headers:
          content-type: text/event-stream
        body:
          events:                     # a server-sent-events stream: a list of {event, data}
          - {…}
          rest: "event: content_blo"  # what a cut stream ends with
        raises: {error: ReadTimeout, …}
    ...

What is empty is left out; the last line is YAML's mark for the end of a document, so that a cut file is told. JSON and
events come back with the same meaning, everything else byte for byte. Cassettes of vcrpy itself are read, too.

The writer is our own. Of PyYAML's two, the one in Python breaks a block scalar that holds U+0085 and takes twenty times
as long; libyaml's puts every text with an emoji in it on one escaped line. Both do that to a text with a tab, or with a
space at the end of a line. Reading is PyYAML's parser, and libyaml's where there is one.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from http import HTTPStatus
from typing import Any, Final, NoReturn, TypeVar

import yaml
from vcr.request import Request

VERSION: Final = 1
MAX_DEPTH: Final = 64
"""How deeply a body may be nested to stand as structure. Deeper ones stand as text."""
MAX_UNCOMPRESSED: Final = 64 * 2**20
"""The largest body, in bytes, that compression is undone for."""

_AGAIN: Final = "record the cassette anew"
_T = TypeVar("_T")


class CassetteFileError(ValueError):
    """A file that is no cassette, or an answer that none can hold; the message says what to do."""


def to_text(header: Mapping[str, Any], requests: Sequence[Request], responses: Sequence[dict[str, Any]]) -> str:
    """Return a cassette as the text of its file.

    The header's values are JSON values. Raises CassetteFileError for an answer in a compression that cannot be undone.
    """
    interactions = [
        {"request": _request_entry(request), "response": _response_entry(uncompressed(response))}
        for request, response in zip(requests, responses, strict=True)
    ]
    lines: list[str] = []
    _write_mapping(lines, {"caveat_cassette": VERSION, **header, "interactions": interactions}, "", 0)
    return "\n".join([*lines, "...", ""])


def from_text(text: str) -> tuple[dict[str, Any], list[Request], list[dict[str, Any]]]:
    """Return header, requests and responses of a cassette from the text of its file, ours or vcrpy's.

    Raises CassetteFileError for everything that is no whole cassette.
    """
    document, ended = read_yaml(text)
    if not isinstance(document, dict) or not isinstance(document.get("interactions"), list):
        raise CassetteFileError("the file is no cassette: it has no list of interactions; name another file")
    version = document.pop("caveat_cassette", None)
    if version is not None and (type(version) is not int or version != VERSION):
        raise CassetteFileError(
            f"the cassette has the form {version!r:.20}, and this caveat reads {VERSION}; install a newer caveat"
        )
    if version is None and document.pop("version", None) != 1:
        raise CassetteFileError("the file is no cassette: it has neither caveat_cassette nor version: 1; name another")
    if version is not None and not ended:
        raise CassetteFileError(f"the cassette is cut: its last line, '...', is missing; restore it, or {_AGAIN}")
    read = _interaction if version is not None else _interaction_of_vcrpy
    pairs = [read(entry, f"interaction {n}") for n, entry in enumerate(document.pop("interactions"), 1)]
    return document, [request for request, _ in pairs], [response for _, response in pairs]


# ---- what an interaction says


def _request_entry(request: Request) -> dict[str, Any]:
    entry: dict[str, Any] = {"method": request.method, "uri": request.uri}
    if request.body_bytes:
        entry["body"] = _body_entry(request.body_bytes, "")
    return entry


def _response_entry(response: Mapping[str, Any]) -> dict[str, Any]:
    headers = {name: _as_list(values) for name, values in response["headers"].items()}
    kind = next((values[0] for name, values in headers.items() if name.lower() == "content-type" and values), "")
    body = body_of(response)
    parts = {
        "status": response["status"]["code"],
        "headers": {name: values[0] if len(values) == 1 else values for name, values in headers.items() if values},
        "body": _body_entry(body, kind) if body else None,
        "raises": response.get("raises"),
    }
    return {name: part for name, part in parts.items() if part}


def _interaction(entry: Any, where: str) -> tuple[Request, dict[str, Any]]:
    asked = _part(entry, "request", dict, where)
    answered = _part(entry, "response", dict, where)
    body = _part(asked, "body", dict, where, {})
    request = Request(
        _part(asked, "method", str, where), _part(asked, "uri", str, where), _body(body, where) if body else None, {}
    )
    code = _part(answered, "status", int, where, 0)
    response = {
        "status": {"code": code, "message": _phrase(code)},
        "headers": _headers(_part(answered, "headers", dict, where, {}), where),
        "body": {"string": _body(_part(answered, "body", dict, where, {}), where)},
    }
    if "raises" in answered:
        response["raises"] = _part(answered, "raises", dict, where)
    return request, response


def _interaction_of_vcrpy(entry: Any, where: str) -> tuple[Request, dict[str, Any]]:
    asked = _part(entry, "request", dict, where)
    answered = _part(entry, "response", dict, where)
    status = _part(answered, "status", dict, where)
    headers = {name: values[0] for name, values in _headers(_part(asked, "headers", dict, where, {}), where).items()}
    request = Request(
        _part(asked, "method", str, where),
        _part(asked, "uri", str, where),
        _stored_bytes(asked.get("body"), where) or None,
        headers,
    )
    return request, {
        "status": {"code": _part(status, "code", int, where), "message": str(status.get("message") or "")},
        "headers": _headers(_part(answered, "headers", dict, where, {}), where),
        "body": {"string": _stored_bytes(answered.get("body"), where)},
    }


def _part(holder: Any, name: str, kind: type[_T], where: str, default: _T | None = None) -> _T:
    """Return a named part of a mapping. Raises CassetteFileError where it is missing or something else."""
    part = holder.get(name, default) if isinstance(holder, dict) else None
    if part is None and default is not None:
        return default
    if not isinstance(part, kind) or isinstance(part, bool):
        raise CassetteFileError(f"{where} of the cassette has no {name} that is right; correct it, or {_AGAIN}")
    return part


def _headers(stored: Mapping[str, Any], where: str) -> dict[str, list[str]]:
    headers = {name: [str(value) for value in _as_list(values)] for name, values in stored.items()}
    for name, values in headers.items():
        if not values:
            raise CassetteFileError(f"{where} of the cassette has a header {name!r:.60} without a value; delete it")
    return headers


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return ""


# ---- bodies


def body_of(response: Mapping[str, Any]) -> bytes:
    """Return the bytes of a response's body; none are b""."""
    stored = response["body"].get("string") or b""
    return stored.encode() if isinstance(stored, str) else bytes(stored)


def uncompressed(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response with its compression undone, and without the headers that speak of it.

    A cut body gives what can be had of it, and a body that somebody has decoded already stays as it is. Raises
    CassetteFileError for br, zstd and the like, and for what is damaged or too large.
    """
    codings = [
        coding.strip().lower()
        for name, values in response["headers"].items()
        if name.lower() == "content-encoding"
        for value in _as_list(values)
        for coding in value.split(",")
    ]
    kept = {n: v for n, v in response["headers"].items() if n.lower() not in {"content-encoding", "content-length"}}
    body = body_of(response)
    for coding in reversed(codings):
        body = _decoded(body, coding)
    return {**response, "headers": kept, "body": {"string": body}}


def _decoded(body: bytes, coding: str) -> bytes:
    if coding in {"gzip", "x-gzip"} and body.startswith(b"\x1f\x8b"):
        return _inflated(body, zlib.MAX_WBITS | 16)
    if coding == "deflate":
        for bits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):  # servers send both: with zlib's frame, and without
            try:
                return _inflated(body, bits)
            except zlib.error:
                continue
    elif coding not in {"gzip", "x-gzip", "identity", ""} and not _is_text(body):
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
        try:
            parts.append(member.decompress(body, room))
        except zlib.error:
            if bits <= zlib.MAX_WBITS:
                raise
            raise CassetteFileError("an answer's gzip is damaged; record with 'accept-encoding: identity'") from None
        room -= len(parts[-1])
        if room <= 0 or member.unconsumed_tail:
            raise CassetteFileError(f"an answer has more than {MAX_UNCOMPRESSED >> 20} MB; leave it out of the test")
        body = member.unused_data if member.unused_data.startswith(b"\x1f\x8b") else b""
    return b"".join(parts)


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _body_entry(body: bytes, content_type: str) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.encodebytes(body).decode()}
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return {"json": json_value(text)}
        except ValueError:
            return {"text": text}
    if content_type.lower().startswith("text/event-stream") or text.startswith(("event:", "data:")):
        found = events_in(text)
        if found:
            events, rest = found
            return {"events": events, "rest": rest} if rest else {"events": events}
    return {"text": text}


def _body(entry: Mapping[str, Any], where: str) -> bytes:
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
    except (TypeError, ValueError, KeyError) as error:
        raise CassetteFileError(
            f"{where} of the cassette has a body that cannot be sent ({error!s:.80}); correct it, or {_AGAIN}"
        ) from error
    raise CassetteFileError(f"{where} of the cassette has a body of no known form; correct it, or {_AGAIN}")


def _stored_bytes(stored: Any, where: str) -> bytes:
    """Return a body as vcrpy stores it: text or bytes, with {string: …} around it or without."""
    if isinstance(stored, dict):
        stored = stored.get("string", stored)
    if stored is None or isinstance(stored, bytes):
        return stored or b""
    if isinstance(stored, str):
        return stored.encode(errors="surrogatepass")
    raise CassetteFileError(f"{where} of the cassette has a body that is no text; {_AGAIN}")


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


def json_text(value: Any) -> str:
    """Return a JSON value as text in one line, for every reader's idea of a line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _LINE_END.sub(_escaped, text)


_LINE_END: Final = re.compile("[\x85\u2028\u2029]")
_EVENT: Final = re.compile(r"(?:event: ?+(?P<event>[^\n]+)\n)?data: ?(?P<data>[^\n]*)\n\n")


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


def _event_data(data: str) -> Any:
    try:
        value = json_value(data)
    except ValueError:
        return data
    return data if isinstance(value, str) else value


def events_text(events: Sequence[Mapping[str, Any]]) -> str:
    """Return events as a server-sent-events stream. Raises KeyError, TypeError or ValueError for what is no event."""
    lines = []
    for event in events:
        data = event["data"] if isinstance(event["data"], str) else json_text(event["data"])
        if "event" in event:
            lines.append("event: " + event["event"])
        lines += [f"data: {data}", ""]
    return "\n".join([*lines, ""]) if lines else ""


# ---- writing YAML


def _write_mapping(lines: list[str], value: Mapping[str, Any], first: str, column: int) -> None:
    """Write a mapping; `first` stands before its first name, and the others begin in `column`."""
    pad = " " * column
    for name, inner in value.items():
        written = _written(name, "")
        if len(written) > _LONGEST_NAME:
            written = f"? {written}\n{pad}"
        _write(lines, f"{first}{written}:", inner, column)
        first = pad


def _write(lines: list[str], lead: str, value: Any, column: int) -> None:
    """Write a value after `lead` ("name:" or "-"), which stands in `column`."""
    if isinstance(value, Mapping) and value:
        is_item = lead.endswith("-")
        if not is_item:
            lines.append(lead)
        _write_mapping(lines, value, f"{lead} " if is_item else " " * (column + 2), column + 2)
    elif isinstance(value, list | tuple) and value:
        is_item = lead.endswith("-")
        if is_item:
            column += 2
        lines.append(lead)
        for item in value:
            _write(lines, f"{' ' * column}-", item, column)
    else:
        lines.append(f"{lead} {_written(value, ' ' * (column + 2))}")


def _written(value: Any, pad: str) -> str:
    """Return a scalar or an empty collection as YAML, in several lines where it is a text of several."""
    if isinstance(value, str):
        return _text(value, pad)
    if isinstance(value, float):
        digits = repr(value)
        return digits if "." in digits else digits.replace("e", ".0e")  # YAML 1.1 has no 1e+16
    return json.dumps(value, allow_nan=False)


def _text(text: str, pad: str) -> str:
    unseen = _NOT_AS_ITSELF.search(text)
    if "\n" in text and pad and not unseen:
        return _block(text, pad)
    if unseen or "\n" in text:
        return _quoted(text)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return "'" + text.replace("'", "''") + "'" if '"' in text or "\\" in text else f'"{text}"'


def _block(text: str, pad: str) -> str:
    """Return a literal block scalar: YAML 1.1, chapter 9.3."""
    content = text.rstrip("\n")
    breaks = len(text) - len(content)
    indicator = str(_STEP) if text[0] in " \t\n" else ""
    chomping = "-" if breaks == 0 else "" if breaks == 1 and content else "+"
    body = _LINE.sub(pad, content)
    return f"|{indicator}{chomping}\n{body}" + "\n" * (breaks - 1)


def _quoted(text: str) -> str:
    return _NOT_AS_ITSELF.sub(_escaped, json.dumps(text, ensure_ascii=False))


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


_STEP: Final = 2
_LONGEST_NAME: Final = 500
"""YAML takes at most 1 024 characters for a name that has no question mark before it."""
_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_PLAIN: Final = re.compile(r"[^\W\d_](?:[^:#\t]|:(?! |\Z)|(?<! )#)*+(?<! )")
_NOT_AS_ITSELF: Final = re.compile("[^\t\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_LINE: Final = re.compile(r"^(?=[^\n])", re.MULTILINE)


# ---- reading YAML


def plain_scalar(event: yaml.ScalarEvent) -> Any:
    """Return what a scalar says, as JSON has it: a text, a number, true, false, null; or bytes, for vcrpy's bodies."""
    text: str = event.value
    if event.tag == _BINARY:
        return base64.b64decode("".join(text.split()), validate=True)
    if not event.implicit[0]:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    number = _NUMBER.fullmatch(text)
    return text if number is None else float(text) if number["fraction"] or number["power"] else int(text)


def read_yaml(text: str, scalar: Callable[[yaml.ScalarEvent], Any] = plain_scalar) -> tuple[Any, bool]:
    """Return what one YAML document says, and whether its end is marked. `scalar` makes a value of each scalar.

    Goes through the parser's events, so that nothing grows beyond the text. Raises CassetteFileError where the text is
    not YAML, or makes use of anchors, tags, depth or names that no cassette needs.
    """
    try:
        return _read_yaml(text, scalar)
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise CassetteFileError(
            f"the cassette is not YAML{line} ({error.problem or error.context}); restore it, or {_AGAIN}"
        ) from error
    except yaml.YAMLError as error:
        raise CassetteFileError(f"the cassette holds characters that YAML has not; restore it, or {_AGAIN}") from error
    except CassetteFileError:
        raise
    except ValueError as error:  # a number of many thousand digits, base64 that is none, a lone surrogate
        raise CassetteFileError(f"the cassette holds a value that cannot be read ({error!s:.80}); {_AGAIN}") from error


def _read_yaml(text: str, scalar: Callable[[yaml.ScalarEvent], Any]) -> tuple[Any, bool]:
    tree = _Tree(scalar)
    ended = False
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.NodeEvent):
            tree.add(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            tree.close()
        elif isinstance(event, yaml.DocumentEndEvent):
            ended = bool(event.explicit)
    if len(tree.documents) > 1:
        raise CassetteFileError(f"the file holds several YAML documents; restore it, or {_AGAIN}")
    return (tree.documents[0] if tree.documents else None), ended


class _Tree:
    """Puts values together, event by event; `holders` are those that are still open, `names` what is named in each."""

    def __init__(self, scalar: Callable[[yaml.ScalarEvent], Any]) -> None:
        self.documents: list[Any] = []
        self._scalar = scalar
        self._holders: list[Any] = [self.documents]
        self._names: list[str | None] = [None]

    def add(self, event: yaml.NodeEvent) -> None:
        if event.anchor is not None or getattr(event, "tag", None) not in {None, _BINARY}:
            raise _refused(event, "an anchor, an alias or a tag, which no cassette has")
        holder, name = self._holders[-1], self._names[-1]
        if isinstance(holder, dict) and name is None:
            if not isinstance(event, yaml.ScalarEvent) or event.value in holder:
                raise _refused(event, "a name that is no text or stands twice")
            said = self._scalar(event)
            self._names[-1] = said if isinstance(said, str) else event.value
            return
        value = self._scalar(event) if isinstance(event, yaml.ScalarEvent) else _empty(event)
        if isinstance(holder, dict):
            holder[name] = value
            self._names[-1] = None
        else:
            holder.append(value)
        if isinstance(event, yaml.CollectionStartEvent):
            if len(self._holders) > _MAX_OPEN:
                raise _refused(event, "something nested too deeply")
            self._holders.append(value)
            self._names.append(None)

    def close(self) -> None:
        self._holders.pop()
        self._names.pop()


def _empty(event: yaml.Event) -> Any:
    return {} if isinstance(event, yaml.MappingStartEvent) else []


def line_of(event: yaml.Event) -> int:
    """Return the number of the line where an event begins."""
    return event.start_mark.line + 1 if event.start_mark else 0


def _refused(event: yaml.Event, what: str) -> CassetteFileError:
    return CassetteFileError(f"line {line_of(event)} of the cassette has {what}; {_AGAIN}")


_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BINARY: Final = "tag:yaml.org,2002:binary"
_MAX_OPEN: Final = MAX_DEPTH + 16
_CONSTANTS: Final[Mapping[str, bool | None]] = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?P<fraction>\.\d+)?(?P<power>[eE][-+]?\d+)?", re.ASCII)
