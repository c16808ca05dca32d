"""The file of a cassette: what goes in comes out, it reads well in a diff, and no file does harm."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from vcr.request import Request
from vcr.serialize import serialize
from vcr.serializers import yamlserializer

from caveat.testing.bodies import MAX_DEPTH
from caveat.testing.cassette_file import CassetteFileError, from_text, to_text
from caveat.testing.cassette_yaml import read_yaml

CASSETTES = Path(__file__).parent.parent / "cassettes"
FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MESSAGES = "https://api.anthropic.com/v1/messages"


def answer(body: bytes = b"", status: int = 200, **headers: str) -> dict[str, Any]:
    """A response as vcrpy has it."""
    named = {name.replace("_", "-"): [value] for name, value in headers.items()}
    return {"status": {"code": status, "message": "OK"}, "headers": named, "body": {"string": body}}


def packed(body: bytes) -> bytes:
    """A body in gzip, without the time of day: each process of a test run collects the same tests."""
    return gzip.compress(body, mtime=0)


def written(body: bytes, response: dict[str, Any] | None = None, **header: Any) -> str:
    """The file of one interaction."""
    return to_text(header, [Request("POST", MESSAGES, body, {})], [response or answer()])


def kept(body: bytes, response: dict[str, Any] | None = None) -> tuple[bytes, dict[str, Any]]:
    """What comes back of one interaction; its file is the same when it is written again."""
    text = written(body, response)
    header, requests, responses = from_text(text)
    assert to_text(header, requests, responses) == text
    assert yaml.load(text, FAST_LOADER) == read_yaml(text)[0]  # noqa: S506 - it is a safe one
    return requests[0].body or b"", responses[0]


def body_lines(body: bytes) -> str:
    """How a request's body stands in the file."""
    return written(body).partition("    body:\n")[2].partition("  response:")[0]


# ---- what it looks like


def test_a_cassette_reads_as_a_conversation() -> None:
    """Prompts are blocks of lines, JSON is structure, nothing empty is there, and the order is the one it came in."""
    body = {"model": "relay", "system": "You are ☕ 🦊.\n\tUse tools. \n", "tools": [], "max_tokens": 9, "ratio": 1.0}
    stream = b'event: ping\ndata: {"type": "ping"}\n\ndata: [DONE]\n\nevent: content_blo'
    response = answer(stream, content_type="text/event-stream") | {
        "raises": {"error": "ReadTimeout", "message": "no data", "after_seconds": 0.5}
    }
    assert written(json.dumps(body).encode(), response, model="relay", recorded="2026-12-01") == (
        "caveat_cassette: 1\n"
        "model: relay\n"
        'recorded: "2026-12-01"\n'
        "interactions:\n"
        "- request:\n"
        "    method: POST\n"
        f"    uri: {MESSAGES}\n"
        "    body:\n"
        "      json:\n"
        "        model: relay\n"
        "        system: |\n"
        "          You are ☕ 🦊.\n"
        "          \tUse tools. \n"
        "        tools: []\n"
        "        max_tokens: 9\n"
        "        ratio: 1.0\n"
        "  response:\n"
        "    status: 200\n"
        "    headers:\n"
        "      content-type: text/event-stream\n"
        "    body:\n"
        "      events:\n"
        "      - event: ping\n"
        "        data:\n"
        "          type: ping\n"
        '      - data: "[DONE]"\n'
        '      rest: "event: content_blo"\n'
        "    raises:\n"
        "      error: ReadTimeout\n"
        "      message: no data\n"
        "      after_seconds: 0.5\n"
        "...\n"
    )


def test_json_text_inside_json_stays_a_text() -> None:
    """A tool's result is what the model was sent: a text, not a structure."""
    assert body_lines(b'{"content": "{\\"a\\": 1}"}') == "      json:\n        content: '{\"a\": 1}'\n"


def test_long_lines_are_not_folded() -> None:
    """A line of a prompt is a line of the file."""
    assert f"{'word ' * 999}end\n" in body_lines(json.dumps({"a": "word " * 999 + "end"}).encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": 0.10000000000000000001}',
        b'{"a": "\\ud800"}',
        b'{"a": 1',
        b'"text"',
        b"5",
        b'{"a": ' + b"9" * 5_000 + b"}",
        b"[" * 9_999 + b"]" * 9_999,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"\xef\xbb\xbf{}",
        b"event: a\r\ndata: 1\r\n\r\n",
        b": a comment\n\ndata: 1\n\n",
        b"id: 7\ndata: 1\n\n",
        b"data: 1\ndata: 2\n\n",
        b"data: 1\n\n\ndata: 2\n\n",
        b"event: ping\n\n",
        b"data: 1\n",
        b"<p>\xc2\x85\xe2\x80\xa8\x00\x7f</p>\n",
    ],
)
def test_what_structure_would_change_stands_as_text(body: bytes) -> None:
    """Names that stand twice, numbers beyond a double, comments in a stream and the like come back byte for byte."""
    assert body_lines(body).startswith("      text: ")
    assert kept(body)[0] == body


def test_bytes_that_are_no_text_stand_as_base64() -> None:
    """A picture comes back as it was."""
    assert body_lines(b"\xff\xfe") == "      base64: |\n        //4=\n"
    assert kept(b"\xff\xfe")[0] == b"\xff\xfe"


def test_the_answer_that_never_came_has_neither_status_nor_body() -> None:
    """A refused connection is the exception alone."""
    raises = {"error": "ConnectError", "message": "refused", "after_seconds": 0.0}
    response = {**answer(status=0), "raises": raises}
    assert kept(b"", response)[1] == {**answer(status=0), "status": {"code": 0, "message": ""}, "raises": raises}


def test_headers_of_several_values_come_back_in_order() -> None:
    """One value stands by itself, several as a list."""
    headers = {"link": ["<a>", "<b>"], "retry-after": ["2"]}
    text = written(b"", {**answer(), "headers": headers})
    assert '      link:\n      - "<a>"\n      - "<b>"\n      retry-after: "2"\n' in text
    assert from_text(text)[2][0]["headers"] == headers
    assert from_text(text.replace('"2"', "2"))[2][0]["headers"] == headers


# ---- compression


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", packed(b"[1]")),
        ("GZIP", packed(b"[") + packed(b"1]")),
        ("deflate", zlib.compress(b"[1]")),
        ("deflate", zlib.compress(b"[1]")[2:-4]),
        ("gzip, deflate", zlib.compress(packed(b"[1]"))),
        ("gzip", b"[1]"),
        ("br", b"[1]"),
        ("identity", b"[1]"),
    ],
)
def test_compression_is_undone(coding: str, body: bytes) -> None:
    """The file holds the text, and no header that speaks of compression; a body decoded already stays."""
    response = answer(body, content_encoding=coding, content_length="99", etag="x")
    assert kept(b"", response)[1] == answer(b"[1]", etag="x")


def test_of_a_cut_compressed_body_there_is_what_can_be_had() -> None:
    """A connection that broke in the middle of gzip is replayed with the part that arrived."""
    whole = "".join(chr(65 + n * n % 26) for n in range(9_000)).encode()
    cut = packed(whole)[:-20]
    part = kept(b"", answer(cut, content_encoding="gzip"))[1]["body"]["string"]
    assert part
    assert whole.startswith(part)


@pytest.mark.parametrize(
    ("coding", "body", "why"),
    [
        ("br", b"\x8b\x00\x80", "accept-encoding: identity"),
        ("zstd", b"\x28\xb5\x2f\xfd", "accept-encoding: identity"),
        ("gzip", packed(b"[1]")[:10] + b"\xff" * 20, "damaged"),
        ("gzip", packed(bytes(2**20)) * 65, "64 MB"),
    ],
)
def test_what_cannot_be_undone_is_refused(coding: str, body: bytes, why: str) -> None:
    """Nobody finds an unreadable or huge cassette later: recording it says what to do."""
    with pytest.raises(CassetteFileError, match=why):
        written(b"", answer(body, content_encoding=coding))


# ---- any input


awkward = st.text(
    st.sampled_from([*"\n\n\n\t\r -:#?&*!|>'\"%@`{}[],~=<.0123yesnou\\", "\x85", "\u2028", "\ufeff", "\x00", "🦊", "é"])
)
texts = st.one_of(
    st.text(), awkward, st.sampled_from(["yes", "NULL", "1_0", "0x1f", "1:30", "2026-01-01", "---", "<<"])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def same(value: Any) -> str:
    """JSON that tells 1 from 1.0 and true."""
    return json.dumps(value)


@given(st.dictionaries(texts, values) | st.lists(values))
@example({"x" * 2_000: 1, "\n": {"y" * 2_000: ["\n", ["\n\n", [[" \n"]]]]}})
@example([1e16, 1e-7, -0.0, 5e-324, 10**400])
def test_any_json_value_comes_back(value: Any) -> None:
    """Also from the bare YAML, read with PyYAML's own safe loaders, in C (`kept` compares) and in Python."""
    body = json.dumps(value).encode()
    assert same(json.loads(kept(body)[0])) == same(value)
    text = written(body)
    assert written(json.dumps(value, ensure_ascii=False).encode()) == text
    assert yaml.safe_load(text) == read_yaml(text)[0]


@given(st.binary() | awkward.map(str.encode))
def test_any_bytes_come_back(body: bytes) -> None:
    """Byte for byte, unless they are JSON or events."""
    again = kept(b"", answer(body))[1]["body"]["string"]
    form = next(iter(read_yaml(written(body))[0]["interactions"][0]["request"].get("body", {"text": ""})))
    if form == "json":
        assert same(json.loads(again)) == same(json.loads(body))
    elif form == "events":
        assert meaning(again) == meaning(body)
    else:
        assert again == body


def meaning(stream: bytes) -> list[tuple[str, Any]]:
    """Events as a reader sees them: WHATWG HTML, 9.2.6."""
    found, name, data = [], "", list[str]()
    for line in stream.decode().split("\n"):
        field, _, value = line.partition(":")
        if not line:
            if data:
                found.append((name, parsed("\n".join(data))))
            name, data = "", []
        elif field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
    return found


def parsed(data: str) -> Any:
    """Data as JSON, where it is some."""
    try:
        return same(json.loads(data))
    except (ValueError, RecursionError):
        return data


one_line = texts.map(lambda text: "".join(text.split("\n")).replace("\r", ""))
streams = st.lists(
    st.builds(
        lambda name, data, gap: (f"event:{gap}{name}\n" if name else "") + f"data:{gap}{data}\n\n",
        one_line,
        values.map(json.dumps) | one_line,
        st.sampled_from(["", " ", "  "]),
    )
).map("".join)


@given(streams, st.integers(0, 40))
@example("data:\n\nevent: \ndata:\n\n", 0)
def test_any_stream_of_events_comes_back(stream: str, missing: int) -> None:
    """The same names and the same data in the same order, and of a cut stream the rest as well."""
    body = stream.encode(errors="replace")
    cut = body[: len(body) - missing]
    again = kept(b"", answer(cut, content_type="text/event-stream; charset=utf-8"))[1]["body"]["string"]
    assert again == cut or meaning(again) == meaning(cut)
    assert again.rpartition(b"\n\n")[2] == cut.rpartition(b"\n\n")[2]


def test_line_ends_of_other_alphabets_split_no_event() -> None:
    """Readers that split lines as Python's str does see the stream as it was: U+2028 stands escaped in JSON."""
    stream = b'data: {"a":"\\u2028\\u0085"}\n\n'
    assert kept(b"", answer(stream))[1]["body"]["string"] == stream


@given(st.text() | awkward)
def test_any_text_gives_a_cassette_or_an_error_that_says_so(text: str) -> None:
    """Never a traceback of something else."""
    for start in ("", "caveat_cassette: 1\ninteractions:\n- ", "version: 1\ninteractions:\n"):
        try:
            from_text(start + text)
        except CassetteFileError as error:
            assert str(error)


LINES = """caveat_cassette: 1
version: 1
interactions:
- request:
    method: GET
    uri: http://a
    body:
      json: 1
      json: .inf
      json: 1e999
      json: !!binary YQ==
      text: a
      events:
      - data: 1
      - 5
      base64: .
      rest: 1
      string: !!binary YQ=
  response:
    status: 200
    status: true
    status: {code: 200}
    headers:
      a: []
      a: 1
    headers: 5
    raises: 1
    body: a
..."""
pieces = st.lists(st.sampled_from(LINES.split("\n")), max_size=14).map("\n".join)


@given(pieces)
def test_any_wrong_cassette_gives_an_error_that_says_so(text: str) -> None:
    """The form is checked: what is accepted can be written."""
    try:
        header, requests, responses = from_text(text)
    except CassetteFileError:
        return
    to_text(header, requests, responses)


# ---- files that are no good

WHOLE = written(b'{"a": 1}', answer(b"x"), model="relay")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no cassette"),
        ("- a", "no cassette"),
        ("interactions: 5", "no cassette"),
        ("interactions: []", "no cassette"),
        ("version: 2\ninteractions: []", "no cassette"),
        (WHOLE.replace("caveat_cassette: 1", "caveat_cassette: 2"), "has the form 2, .* newer caveat"),
        (WHOLE.replace("caveat_cassette: 1", "caveat_cassette: true"), "has the form True"),
        (WHOLE.removesuffix("...\n"), "is cut"),
        (WHOLE[: WHOLE.index("  response")], "is cut"),
        (WHOLE + "a: 1\n", "document"),
        (WHOLE.replace("200", "[200"), "not YAML in line"),
        (WHOLE.replace("status: 200", "status: fine"), "interaction 1 .* status"),
        (WHOLE.replace("POST", "5"), "interaction 1 .* method"),
        (WHOLE.replace("      json:\n        a: 1\n", "      json: 1\n      text: a\n"), "interaction 1 .* form"),
        (WHOLE.replace("a: 1", f"a: {'9' * 5_000}"), "value"),
        (WHOLE.replace("a: 1", "a: 1\n        a: 2"), "stands twice"),
        (WHOLE.replace("a: 1", "[a]: 1"), "no text"),
        (WHOLE.replace("a: 1", "a: \x00"), "characters|YAML"),
        (WHOLE.replace("a: 1", "a: !!python/object/apply:os.system [ls]"), "tag"),
        (WHOLE.replace("a: 1", "a: !!set {b}"), "tag"),
        (WHOLE.replace("a: 1", f"a: {'[' * 200}{']' * 200}"), "deeply"),
    ],
)
def test_a_file_that_is_no_whole_cassette_is_refused_with_what_to_do(text: str, why: str) -> None:
    """One sentence: what is wrong, and what to do."""
    with pytest.raises(CassetteFileError, match=why) as caught:
        from_text(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("length", range(1, len(WHOLE) - 4, 7))
def test_no_part_of_a_file_passes_for_the_whole(length: int) -> None:
    """A file that was cut anywhere is told."""
    with pytest.raises(CassetteFileError):
        from_text(WHOLE[:length])


@pytest.mark.usefixtures("_ends")
@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\ninteractions: [*c]\n",
        "[" * 1_000_000,
        "- " * 1_000_000,
        "{a: " * 1_000_000,
        "? " * 1_000_000,
        "&a " * 300_000,
        "'" * 1_000_001,
        '"\\' * 500_000,
        "|\n" * 500_000,
        "%TAG ! a\n" * 100_000,
        "a: 1\n" * 200_000,
        "\n".join(" " * n + "a:" for n in range(2_000)),
    ],
    ids=range(12),
)
def test_a_hostile_file_is_refused_at_once(text: str) -> None:
    """Aliases that explode, depth, and floods of signs."""
    with pytest.raises(CassetteFileError):
        from_text(text)


# ---- vcrpy's own cassettes


@pytest.mark.parametrize("path", sorted(CASSETTES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_cassette_of_this_repository_is_the_same_when_it_is_written_again(path: Path) -> None:
    """Nothing but what is meant changes in a diff."""
    text = path.read_text()
    assert to_text(*from_text(text)) == text


def test_bytes_and_texts_of_vcrpy_are_read() -> None:
    """As vcrpy 9 writes them: text, !!binary, headers as lists."""
    requests = [Request("POST", MESSAGES, body, {"x": "y"}) for body in (None, b"a=b", b"\xff")]
    responses = [answer(body, etag="z") for body in (b"", "é\n".encode(), b"\x80")]
    copies = [{**response, "body": {**response["body"]}} for response in responses]
    text = serialize({"requests": requests, "responses": copies}, yamlserializer)
    header, again, answered = from_text(text)
    assert header == {}
    assert [(r.method, r.uri, r.body, dict(r.headers)) for r in again] == [
        (r.method, r.uri, r.body, dict(r.headers)) for r in requests
    ]
    assert answered == responses


@pytest.mark.parametrize("stored", ["abc", "{string: abc}", f"!!binary {base64.b64encode(b'abc').decode()}"])
def test_each_way_of_vcrpy_to_store_a_body_is_read(stored: str) -> None:
    """Text or bytes, bare or with {string: …} around them."""
    text = (
        "version: 1\ninteractions:\n- request: {method: GET, uri: 'http://a/', body: BODY, headers: {}}\n"
        "  response: {status: {code: 404, message: No}, headers: {a: [b]}, body: BODY}\n"
    ).replace("BODY", stored)
    _, requests, responses = from_text(text)
    assert requests[0].body == b"abc"
    assert responses == [
        {"status": {"code": 404, "message": "No"}, "headers": {"a": ["b"]}, "body": {"string": b"abc"}}
    ]
