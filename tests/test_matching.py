"""Which requests count as the same, and in which order their recorded answers are given out."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from vcr.request import Request

from caveat.testing.matching import Index, canonical, digest, parsed, stored_url

MESSAGES = "https://api.anthropic.com/v1/messages"


def get(uri: str) -> Request:
    return Request("GET", uri, None, {})


def post(body: Any, uri: str = MESSAGES) -> Request:
    return Request("POST", uri, body if isinstance(body, bytes) else json.dumps(body).encode(), {})


def same(one: Request, other: Request) -> bool:
    return digest(one) == digest(other)


# Bodies


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1, "b": {"c": [1, 2], "d": null}}', b'{"b":{"d":null,"c":[1,2]},\n\t"a":1}'),
        (b'"\\u00e9\\/\\ud83d\\ude00"', '"é/😀"'.encode()),
        (b"[1.0, 1e2]", b"[1.00,100.0]"),
        (b"", None),
    ],
)
def test_another_way_to_write_the_same_json_is_the_same_request(one: bytes, other: bytes | None) -> None:
    """Order of keys, white space and escapes are the client's business and may change with its version."""
    assert same(Request("POST", MESSAGES, one, {}), Request("POST", MESSAGES, other, {}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b"1.0"),
        (b"1", b'"1"'),
        (b"1", b"true"),
        (b"0", b"false"),
        (b"null", b""),
        (b'""', b""),
        (b"[]", b"{}"),
        (b"[1,2]", b"[2,1]"),
        (b'{"a":null}', b"{}"),
        (b"18446744073709551616", b"18446744073709551617"),
        (b"18446744073709551616", b"1.8446744073709551616e19"),
        ('"é"'.encode(), '"e\u0301"'.encode()),
        (b'"a "', b'"a"'),
        (b"{a:1}", b"{a: 1}"),
        (b"a=1&b=2", b"b=2&a=1"),
        (b"NaN", b"nan"),
        (b"\xff\xfe", b"\xff\xfd"),
        (b'{"a":1', b'{"a": 1'),
        (b'"\\ud800"', b'"\\ud801"'),
    ],
)
def test_what_is_not_the_same_json_is_another_request(one: bytes, other: bytes) -> None:
    """Kinds of values stay apart, and a body that is no JSON counts by its bytes."""
    assert not same(post(one), post(other))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('aé😀\n"\\ '),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abé", max_size=3), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any, turn: int) -> Any:
    """Return the same value with the keys of each object in another order."""
    if isinstance(value, dict):
        keys = sorted(value, reverse=turn % 2 == 1)
        keys = keys[turn % (len(keys) or 1) :] + keys[: turn % (len(keys) or 1)]
        return {key: shuffled(value[key], turn) for key in keys}
    return [shuffled(item, turn) for item in value] if isinstance(value, list) else value


@given(JSON, st.integers(0, 5), st.sampled_from([None, 2]), st.booleans())
def test_a_json_body_can_be_written_in_any_way(value: Any, turn: int, indent: int | None, ascii_only: bool) -> None:
    """Whatever a file or a client does to the layout, the digest stays."""
    other = json.dumps(shuffled(value, turn), indent=indent, ensure_ascii=ascii_only)
    assert same(post(value), post(other.encode()))


@given(JSON, JSON)
def test_two_values_have_one_digest_only_if_they_are_one_value(one: Any, other: Any) -> None:
    """Python's 1 == 1.0 == True does not leak into what is the same request."""
    assert same(post(one), post(other)) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@given(JSON)
def test_the_canonical_text_means_the_same(value: Any) -> None:
    """What is compared is the value itself, nothing lost and nothing added."""
    assert parsed(canonical(parsed(json.dumps(value).encode()))) == value


@given(st.binary(max_size=60) | st.text('[]{}",:1e.-x \\u').map(str.encode))
def test_any_bytes_have_a_digest(body: bytes) -> None:
    """A body that somebody's agent sends is never what a test fails over."""
    assert same(post(body), post(bytes(bytearray(body))))


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 500_000,
        b"[" * 500_000 + b"]" * 500_000,
        b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
        b"9" * 100_000,
        b'{"a":"' + b"\\u00e9" * 500_000 + b'"}',
        b'"' + b"\\" * 1_000_001,
        b'{"messages":[' + b",".join([b'{"role":"user"}'] * 100_000) + b"]}",
    ],
    ids=["open", "lists", "objects", "number", "escapes", "backslashes", "many"],
)
@pytest.mark.usefixtures("_ends")
def test_a_huge_or_deep_body_has_a_digest(body: bytes) -> None:
    """No stack overflows, and time grows with length only."""
    assert same(post(body), post(body + b""))
    assert not same(post(body), post(b"x" + body))


# Addresses


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MESSAGES, "http://127.0.0.1:8787/v1/messages"),
        (MESSAGES, "https://user:word@gateway.corp.example:8443/anthropic/v1/messages#top"),
        (f"{MESSAGES}/count_tokens?beta=true", "http://model.invalid/v1/messages/count_tokens?beta=true"),
        (f"{MESSAGES}/batches/msgbatch_1/results", "http://x.example/v1/messages/batches/msgbatch_1/results"),
        ("http://127.0.0.1:8001/w/api.php", "http://localhost:9/w/api.php"),
        ("http://127.3.2.1/a", "http://[::1]:5/a"),
        ("https://localhost:8001/a", "http://LOCALHOST/a"),
        ("https://Example.org/a", "https://example.org:443/a"),
        ("https://me:word@example.org./a", "https://example.org/a#part"),
        ("https://example.org", "https://example.org/"),
        ("https://example.org/?a=1&b=2", "https://example.org/?b=2&a=1"),
        ("https://example.org/?q=a+b", "https://example.org/?q=a%20b"),
    ],
)
def test_an_address_may_be_written_in_another_way(one: str, other: str) -> None:
    """A Messages API is the same through any gateway, a local server on any port, a parameter in any place."""
    assert same(get(one), get(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MESSAGES, f"{MESSAGES}/count_tokens"),
        (MESSAGES, f"{MESSAGES}?beta=true"),
        (f"{MESSAGES}/batches/one", f"{MESSAGES}/batches/two"),
        ("https://one.example/v1/messages/7", "https://other.example/v1/messages/7"),
        ("https://one.example/v1/models", "https://other.example/v1/models"),
        ("https://one.example/a", "https://other.example/a"),
        ("https://one.example/a", "http://one.example/a"),
        ("https://one.example/a", "https://one.example:8443/a"),
        ("http://localhost/a", "http://localhost.example/a"),
        ("http://127.0.0.1/a", "http://10.0.0.1/a"),
        ("http://127.0.0.1/a", "http://127.0.0.1/b"),
        ("https://example.org/?a=1", "https://example.org/?a=1&a=1"),
        ("https://example.org/?a=", "https://example.org/"),
        ("https://example.org/?a=%ff", "https://example.org/?a=%fe"),
        ("https://example.org/a%2Fb", "https://example.org/a/b"),
    ],
)
def test_another_place_path_or_parameter_is_another_request(one: str, other: str) -> None:
    """Only what is named as not counting does not count."""
    assert not same(get(one), get(other))


def test_another_method_is_another_request() -> None:
    """To ask and to change are two things."""
    assert not same(get("https://example.org/"), Request("DELETE", "https://example.org/", None, {}))


@pytest.mark.parametrize(
    ("live", "stored"),
    [
        (MESSAGES, MESSAGES),
        ("http://10.1.2.3:8787/v1/messages?beta=true", "https://messages.invalid/v1/messages?beta=true"),
        ("http://127.0.0.1:8787/v1/messages", "https://messages.invalid/v1/messages"),
        ("https://llm.corp.example/anthropic/v1/messages/batches", "https://messages.invalid/v1/messages/batches"),
        ("https://key@api.anthropic.com/v1/messages#x", MESSAGES),
        ("http://127.0.0.1:53211/w/api.php?action=query", "http://localhost/w/api.php?action=query"),
        ("https://[::1]:8443/a", "http://localhost/a"),
        ("http://localhost:1", "http://localhost/"),
        ("https://me:word@example.org:8443/a?b=c#d", "https://example.org:8443/a?b=c"),
        ("http://[2001:db8::1]:80/a", "http://[2001:db8::1]:80/a"),
        ("http://example.org:99999/a#x", "http://example.org:99999/a#x"),
    ],
)
def test_a_file_holds_no_address_of_ones_own(live: str, stored: str) -> None:
    """Readers see the hosted API by name; a gateway, a port of this machine and a login stay out of the file."""
    assert stored_url(live) == stored
    assert same(get(live), get(stored))


ADDRESSES = st.one_of(
    st.builds(
        "{}://{}{}{}{}{}{}".format,
        st.sampled_from(["http", "https", "HTTP", "ws"]),
        st.sampled_from(["", "me:pa:ss@", "a@b@"]),
        st.sampled_from(
            ["api.anthropic.com", "localhost", "127.0.0.1", "[::1]", "[2001:db8::1]", "Example.ORG.", "10.0.0.1", ""]
        ),
        st.sampled_from(["", ":80", ":443", ":8787", ":", ":99999", ":x"]),
        st.sampled_from(["", "/", "//", "/a b", "/v1/messages", "/x/v1/messages/batches/b1/cancel", "/v1/messages/"]),
        st.sampled_from(["", "?", "?a=1&b=&a", "?q=%ff+%20", "?q=a?b/c", "?&&"]),
        st.sampled_from(["", "#", "#part?x=1"]),
    ),
    st.text("htps:/[]@?#&=.%1a\n\\é", max_size=30),
    st.text(max_size=20),
)


@given(ADDRESSES)
def test_a_request_out_of_the_file_is_the_request_that_was_sent(address: str) -> None:
    """What is stored of an address never makes a recording miss, and storing it again changes nothing."""
    try:
        live = get(address)
    except ValueError:
        reject()  # vcrpy knows no such request
    stored = stored_url(address)
    assert same(get(stored), live)
    assert stored_url(stored) == stored


# One digest for each request


def test_a_digest_follows_the_request_that_it_is_of() -> None:
    """It is kept for later questions, but a filter that changes the request is not overlooked."""
    request = post({"a": 1})
    before = digest(request)
    assert digest(request) is before
    request.body = b'{"a": 2}'
    changed = digest(request)
    request.uri = "https://example.org/"
    elsewhere = digest(request)
    request.method = "PUT"
    assert len({before, changed, elsewhere, digest(request)}) == 4


def test_a_body_that_is_a_file_or_comes_in_pieces_counts_by_what_is_in_it() -> None:
    """Other HTTP libraries hand such bodies to vcrpy."""
    assert same(Request("POST", MESSAGES, iter([b'{"a":', b"1}"]), {}), post(b'{"a":1}'))


# Which recorded request comes next


def test_identical_requests_get_their_answers_in_recorded_order_and_each_once() -> None:
    """A second page of the same question does not get the answer of the first."""
    index = Index()
    assert [index.add(post(body)) for body in (b"1", b"2", b"1", b"1")] == [0, 1, 2, 3]
    assert [index.take(post(b"1")), index.take(post(b" 1"))] == [0, 2]
    assert (index.has(post(b"1")), index.has(post(b"2")), index.has(post(b"3"))) == (True, True, False)
    assert index.played == {0, 2}
    assert [index.take(post(b"1")), index.take(post(b"1")), index.take(post(b"3"))] == [3, None, None]
    assert not index.has(post(b"1"))
    assert index.played == {0, 2, 3}


def test_a_request_that_is_recorded_meanwhile_can_be_played() -> None:
    """New recordings join the old ones."""
    index = Index()
    assert index.take(post(b"1")) is None
    assert index.add(post(b"1")) == 0
    assert index.take(post(b"1")) == 0


@given(st.lists(st.integers(0, 3), max_size=12), st.randoms())
def test_requests_in_any_order_play_everything_once(bodies: list[int], chance: Any) -> None:
    """Parallel requests that come in another order than recorded each get an answer of their own."""
    index = Index()
    for body in bodies:
        index.add(post(body))
    asked = list(bodies)
    chance.shuffle(asked)
    taken = [index.take(post(body)) for body in asked]
    assert [bodies[position] for position in taken if position is not None] == asked
    assert index.played == set(taken) == set(range(len(bodies)))


def test_threads_never_get_the_same_answer_twice() -> None:
    """An agent may ask from a pool of threads."""
    index = Index()
    for number in range(2_000):
        index.add(post(number % 2))
    with ThreadPoolExecutor(8) as pool:
        taken = Counter(pool.map(lambda number: index.take(post(number % 2)), range(2_200)))
    assert taken.pop(None) == 200
    assert set(taken.values()) == {1}
    assert len(index.played) == 2_000
