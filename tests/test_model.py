"""The model client: every way in which a Messages API can answer, or not."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from anthropic._streaming import ServerSentEvent
from hypothesis import given
from hypothesis import strategies as st

from caveat.model import open_model
from caveat.prices import TurnUsage
from caveat.settings import KEY_VARIABLES, SettingsError, read_settings
from caveat.turn import ModelError, Turn, assembled, checked_turn
from caveat_tools.clock import FakeClock
from caveat_tools.faults import parse_faults
from caveat_tools.retry import RetryPolicy
from scripted import OFFLINE, ScriptedModel, message, sse, sse_response, stream_of, text, tool_use
from servers import LocalServer, Reply

TOOL = {"name": "search", "description": "d", "input_schema": {"type": "object"}}
HELLO = [{"role": "user", "content": "hello"}]
ONCE = RetryPolicy(attempts=1)


async def turn_of(*replies: Any, policy: RetryPolicy = ONCE) -> Turn:
    return await ScriptedModel(replies).model(policy=policy).turn("system", HELLO, [TOOL])


async def error_of(*replies: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await turn_of(*replies)
    return caught.value


def error_response(status: int, kind: str, words: str = "words", **more: Any) -> httpx2.Response:
    headers = more.pop("headers", {})
    return httpx2.Response(
        status, headers=headers, json={"type": "error", "error": {"type": kind, "message": words, **more}}
    )


Environment = Callable[[dict[str, str]], None]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Set the variables that choose the model, and no others."""

    def only(variables: dict[str, str]) -> None:
        for name in (*KEY_VARIABLES, "ANTHROPIC_BASE_URL", "CAVEAT_MODEL", "CAVEAT_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return only


async def test_a_streamed_turn_arrives_whole() -> None:
    """Text and parallel tool calls come in order, with their arguments and the stop reason."""
    turn = await turn_of([text("I will search."), tool_use("search", q="я"), tool_use("search", q="b")])
    assert turn.text == "I will search."
    assert [block["input"] for block in turn.tool_uses] == [{"q": "я"}, {"q": "b"}]
    assert (turn.stop_reason, turn.broken) == ("tool_use", {})


async def test_the_request_is_streamed_and_its_stable_prefix_can_be_cached() -> None:
    """Long turns never hit the limit for plain requests, and the system prompt is paid for in full only once."""
    script = ScriptedModel([[text("hi")]])
    await script.model().turn("system", HELLO, [TOOL])
    (request,) = script.requests
    assert request["stream"] is True
    assert request["system"] == [{"type": "text", "text": "system", "cache_control": {"type": "ephemeral"}}]
    assert "tool_choice" not in request
    assert "temperature" not in request


async def test_a_server_that_does_not_stream_is_understood_too() -> None:
    """A plain JSON message is a turn."""
    turn = await turn_of(httpx2.Response(200, json=message([text("plain")])))
    assert turn.text == "plain"


async def test_usage_counts_cached_tokens_and_every_call() -> None:
    """The report's numbers include what the prompt cache served."""
    usage = {"input_tokens": 10, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 7}
    model = ScriptedModel([message([text("a")], usage=usage)]).model()
    await model.turn("s", HELLO, [])
    await model.turn("s", HELLO, [])
    assert (model.usage.calls, model.usage.input_tokens, model.usage.output_tokens) == (2, 210, 14)


@pytest.mark.parametrize("count", [10**400, 10**30, -5, True, "9", None, [], 1e308])
async def test_a_count_of_tokens_that_cannot_be_one_counts_nothing(count: Any) -> None:
    """A server that counts wrong neither ends the run nor spends its budget."""
    model = ScriptedModel([message([text("a")], usage={"input_tokens": count, "output_tokens": 7})]).model()
    await model.turn("s", HELLO, [])
    assert model.usage.tokens == 7


async def test_a_count_that_is_left_out_at_the_end_of_a_stream_stands_as_at_its_beginning() -> None:
    """The counts at the end are totals, which replace the first ones; null replaces nothing."""
    events = stream_of(message([text("a")], usage={"input_tokens": 10, "cache_read_input_tokens": 90}))
    events[-2]["usage"] = {"input_tokens": None, "cache_read_input_tokens": 95, "output_tokens": 7}
    usage = (await turn_of(sse_response(sse(*events)))).usage
    assert (usage.input, usage.cache_read, usage.output) == (10, 95, 7)


EVENTS = stream_of(message([text("hello there"), tool_use("search", "toolu_1", q="x")]))


@pytest.mark.parametrize("cut", range(len(EVENTS)))
async def test_a_stream_that_ends_early_is_a_passing_failure_wherever_it_was_cut(cut: int) -> None:
    """A truncated stream is never taken for a short answer."""
    error = await error_of(sse_response(sse(*EVENTS[:cut])))
    assert (error.kind, error.retryable) == ("malformed", True)


@pytest.mark.parametrize("cut", range(1, len(sse(EVENTS[-1])) + 1))
async def test_the_last_event_counts_from_the_last_byte_of_its_data(cut: int) -> None:
    """A stream without its last blank line is whole; half of `message_stop` is none."""
    body = sse(*EVENTS)[:-cut]
    if cut <= 2:
        assert (await turn_of(sse_response(body))).text == "hello there"
    else:
        assert (await error_of(sse_response(body))).retryable


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error", "rate_limit_error", "timeout_error"])
async def test_an_error_event_inside_a_200_stream_is_a_passing_failure(kind: str) -> None:
    """`overloaded` in mid-stream is retried like a 529."""
    event = {"type": "error", "error": {"type": kind, "message": "m"}}
    assert (await error_of(sse_response(sse(*EVENTS[:4], event)))).retryable


async def test_an_error_event_in_llama_cpps_form_keeps_its_words() -> None:
    """llama.cpp names the event `error` and gives the error itself as data; it is no cut stream."""
    error = {"code": 500, "message": "Failed to parse the tool call", "type": "server_error"}
    body = sse(*EVENTS[:4]) + f"event: error\ndata: {json.dumps(error)}\n\n".encode()
    caught = await error_of(sse_response(body))
    assert (caught.kind, caught.retryable) == ("unavailable", True)
    assert caught.message == "the model broke off with server_error: Failed to parse the tool call"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ({"type": "exceed_context_size_error", "message": "9 tokens > 8", "code": 400}, "-c 32768"),
        ({"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"}, "a larger one"),
        ({"type": "server_error", "message": "Context size has been exceeded.", "code": 500}, "a larger one"),
        ({"message": "too many tokens", "code": "context_length_exceeded"}, "a larger one"),
        ("The number of tokens is greater than the context length", "a larger one"),
    ],
)
@pytest.mark.parametrize("is_bare", [False, True])
async def test_a_conversation_that_is_too_long_is_named_inside_a_stream_too(
    error: Any, hint: str, *, is_bare: bool
) -> None:
    """Servers that begin a stream before they look at its length are understood, and not asked again."""
    data = error if is_bare and isinstance(error, dict) else {"type": "error", "error": error}
    body = sse(*EVENTS[:1]) + f"event: error\ndata: {json.dumps(data)}\n\n".encode()
    caught = await error_of(sse_response(body))
    assert (caught.kind, caught.retryable) == ("context_full", False)
    assert hint in caught.message


async def test_a_request_error_inside_a_stream_is_final() -> None:
    """An error event that says the request is wrong is not sent again."""
    event = {"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}
    assert not (await error_of(sse_response(sse(*EVENTS[:4], event)))).retryable


@pytest.mark.parametrize(
    "response",
    [
        httpx2.Response(200, json={}),
        httpx2.Response(200, json=[]),
        httpx2.Response(200, json=None),
        httpx2.Response(200, text="not json"),
        httpx2.Response(200, html="<html>hello</html>"),
        httpx2.Response(200, json=message([], stop_reason="end_turn") | {"stop_reason": None}),
        httpx2.Response(200, json=message([{"type": "text"}])),
        httpx2.Response(200, json={"content": [None], "stop_reason": "end_turn"}),
        httpx2.Response(200, json={"content": [{"no": "type"}], "stop_reason": "end_turn"}),
        httpx2.Response(200, json=message([tool_use("search", "same"), tool_use("search", "same")])),
        httpx2.Response(200, json=message([{"type": "tool_use", "name": "search", "input": {}}])),
        sse_response(b"event: message_start\ndata: {not json\n\n"),
        sse_response(b"event: message_start\ndata: \xff\xfe\n\n"),
        sse_response(sse({"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "x"}})),
        sse_response(sse({"type": "message_start"})),
        sse_response(b""),
    ],
)
async def test_a_body_that_is_no_message_is_a_passing_failure(response: httpx2.Response) -> None:
    """`{}`, HTML, half an event: each is retried and then named, none becomes an empty turn."""
    error = await error_of(response)
    assert (error.kind, error.retryable) == ("malformed", True)


async def test_a_web_page_says_what_to_check() -> None:
    """A base URL that answers HTML is named in the message, with the variable to set."""
    assert "ANTHROPIC_BASE_URL" in (await error_of(httpx2.Response(200, html="<html>"))).message


LARGER = ("context_full", False, "use a model or a server with a larger one")


@pytest.mark.parametrize(
    ("response", "kind", "retryable", "hint"),
    [
        (error_response(401, "authentication_error"), "refused_key", False, "ANTHROPIC_API_KEY"),
        (error_response(403, "permission_error"), "refused_key", False, "ANTHROPIC_API_KEY"),
        (error_response(402, "billing_error"), "billing", False, "limit"),
        (error_response(404, "not_found_error"), "unknown_model", False, "--model"),
        (error_response(400, "invalid_request_error"), "request", False, "400"),
        (error_response(400, "exceed_context_size_error", "9 tokens > 8"), "context_full", False, "-c 32768"),
        (error_response(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), *LARGER),
        (error_response(400, "invalid_request_error", "input length … exceed context limit: 7 + 2 > 8, …"), *LARGER),
        (error_response(400, "BadRequestError", "This model's maximum context length is 8 tokens. …"), *LARGER),
        (error_response(413, "request_too_large"), *LARGER),
        (httpx2.Response(413, html="<html>too large</html>"), "request", False, "413"),
        (error_response(400, "invalid_request_error", "too many tokens", code="context_length_exceeded"), *LARGER),
        (
            httpx2.Response(400, json={"error": "The number of tokens to keep is greater than the context length"}),
            *LARGER,
        ),
        (httpx2.Response(500, json={"error": "the input length exceeds the context length"}), *LARGER),
        (error_response(400, "invalid_request_error", code={}), "request", False, "400"),
        (error_response(429, "rate_limit_error"), "rate_limited", True, "later"),
        (
            error_response(429, "rate_limit_error", details={"error_code": "enforced_spend_limit_reached"}),
            "billing",
            False,
            "raise it",
        ),
        (error_response(429, "rate_limit_error", headers={"x-should-retry": "false"}), "rate_limited", False, "later"),
        (error_response(500, "api_error"), "unavailable", True, "500"),
        (error_response(503, "api_error"), "unavailable", True, "503"),
        (error_response(529, "overloaded_error"), "overloaded", True, "529"),
        (httpx2.Response(502, html="<html>bad gateway</html>"), "unavailable", True, "502"),
    ],
)
async def test_each_status_is_passing_or_final_and_says_what_to_do(
    response: httpx2.Response, kind: str, retryable: bool, hint: str
) -> None:
    """A wrong key is not retried, an overload is, and a spend limit is not mistaken for a rate limit."""
    error = await error_of(response)
    assert (error.kind, error.retryable) == (kind, retryable)
    assert hint in error.message
    assert "\n" not in error.message


async def test_retry_after_of_the_model_is_honoured() -> None:
    """A 429 that names nine seconds is asked again after nine seconds."""
    clock = FakeClock()
    script = ScriptedModel([error_response(429, "rate_limit_error", headers={"retry-after": "9"}), [text("hi")]])
    turn = await script.model(clock, RetryPolicy(attempts=2)).turn("s", HELLO, [])
    assert turn.text == "hi"
    assert clock.slept == [9.0]


async def test_a_500_second_retry_after_is_not_slept() -> None:
    """The SDK would sleep it; here the deadline decides."""
    clock = FakeClock()
    script = ScriptedModel([error_response(429, "rate_limit_error", headers={"retry-after": "500"})])
    with pytest.raises(ModelError):
        await script.model(clock).turn("s", HELLO, [])
    assert clock.slept == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("timeout", "timeout"),
        ("refused", "unavailable"),
        ("reset", "unavailable"),
        ("cut", "unavailable"),
        ("stream_cut", "unavailable"),
        ("dribble", "timeout"),
        ("stream_error", "overloaded"),
        ("html", "malformed"),
        ("badjson", "malformed"),
        ("529", "overloaded"),
    ],
)
async def test_every_injected_model_failure_is_recovered_by_a_retry(fault: str, kind: str) -> None:
    """One failure of each kind at the model's transport, and the turn still arrives."""
    waits: list[Any] = []
    clock = FakeClock()
    faults = parse_faults(f"model:{fault}*1", ["wikipedia"])
    async with open_model(OFFLINE, clock=clock, faults=faults, on_wait=waits.append) as model:
        turn = await model.turn("s", HELLO, [])
    assert turn.stop_reason == "end_turn"
    assert [wait.error.kind for wait in waits] == [kind]


async def test_arguments_that_are_not_json_are_marked_and_do_not_lose_the_turn() -> None:
    """A tool call with broken JSON comes with the reason and an empty object in its place."""
    events = stream_of(message([tool_use("search", "toolu_1", q="x")]))
    events[2]["delta"]["partial_json"] = '{"q": '
    turn = await turn_of(sse_response(sse(*events)))
    assert "not valid JSON" in turn.broken["toolu_1"]
    assert turn.tool_uses[0]["input"] == {}


async def test_a_call_that_begins_without_an_input_is_put_together() -> None:
    """llama.cpp opens a tool_use with id and name only, and sends its arguments in pieces."""
    events = stream_of(message([text("Well: "), tool_use("search", "toolu_1", q="x")]))
    del events[4]["content_block"]["input"]
    events[5:6] = [
        {**events[5], "delta": {"type": "input_json_delta", "partial_json": part}} for part in ('{"q"', ': "x"', "}")
    ]
    turn = await turn_of(sse_response(sse(*events)))
    assert (turn.tool_uses[0]["input"], turn.broken) == ({"q": "x"}, {})


async def test_arguments_that_are_json_but_no_object_are_marked() -> None:
    """A list where an object was due is not executed."""
    events = stream_of(message([tool_use("search", "toolu_1")]))
    events[2]["delta"]["partial_json"] = "[1]"
    assert "not a JSON object" in (await turn_of(sse_response(sse(*events)))).broken["toolu_1"]


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded"])
async def test_a_call_at_the_output_limit_is_marked_as_cut_even_if_it_parses(stop_reason: str) -> None:
    """Half of a call can be valid JSON; it is never executed. A call before it was complete and is."""
    content = [tool_use("search", "whole", q="x"), tool_use("search", "cut")]
    turn = await turn_of(message(content, stop_reason=stop_reason))
    assert list(turn.broken) == ["cut"]


HALF = '{"content": [%s], "stop_reason": "tool_use", "usage": {}}'


async def test_half_a_surrogate_pair_from_the_model_can_be_sent_back() -> None:
    """A model that cuts an emoji in two does not end the run: the half becomes a replacement character."""
    body = (
        HALF
        % r'{"type": "text", "text": "\ud83d"}, {"type": "tool_use", "id": "t", "name": "s", "input": {"q": "\udc00"}}'
    )
    turn = await turn_of(httpx2.Response(200, headers={"content-type": "application/json"}, content=body.encode()))
    assert json.dumps(turn.content, ensure_ascii=False).encode()
    events = stream_of(message([tool_use("search", "toolu_1", q="x")]))
    events[2]["delta"]["partial_json"] = r'{"q": "\ud83d"}'
    turn = await turn_of(sse_response(sse(*events)))
    assert json.dumps(turn.content, ensure_ascii=False).encode()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5_000])
async def test_a_number_that_json_cannot_hold_is_a_broken_call(number: str) -> None:
    """Arguments that could not be sent back in the next request are not executed."""
    events = stream_of(message([tool_use("search", "toolu_1", q="x")]))
    events[2]["delta"]["partial_json"] = f'{{"q": {number}}}'
    assert "toolu_1" in (await turn_of(sse_response(sse(*events)))).broken


def nested(levels: int) -> str:
    """An object in an object, and so on."""
    return '{"a": ' * (levels - 1) + "{}" + "}" * (levels - 1)


@pytest.mark.parametrize(("levels", "is_broken"), [(64, False), (66, True), (971, True), (100_000, True)])
async def test_arguments_nested_too_deeply_are_a_broken_call(levels: int, is_broken: bool) -> None:
    """What could not be written into the next request is not executed, and the run goes on."""
    events = stream_of(message([tool_use("search", "toolu_1")]))
    events[2]["delta"]["partial_json"] = nested(levels)
    turn = await turn_of(sse_response(sse(*events)))
    assert ("toolu_1" in turn.broken) == is_broken
    assert json.dumps(turn.content)


async def test_arguments_nested_too_deeply_are_a_broken_call_without_a_stream_too() -> None:
    """A whole message in one body is treated the same, and a name of a model that is no text is passed over."""
    body = json.dumps(message([tool_use("search", "toolu_1", q="deep")], model="deep")).replace('"deep"', nested(900))
    turn = await turn_of(httpx2.Response(200, headers={"content-type": "application/json"}, content=body))
    assert "nested more than 64 deep" in turn.broken["toolu_1"]


async def test_another_block_nested_too_deeply_is_a_passing_failure() -> None:
    """It could not be sent back; the model is asked again."""
    body = json.dumps(message([{"type": "hologram", "beam": 7}], model="m")).replace("7", nested(900))
    error = await error_of(httpx2.Response(200, headers={"content-type": "application/json"}, content=body))
    assert (error.kind, error.retryable) == ("malformed", True)
    assert "nested too deeply" in error.message


async def test_a_stream_cannot_take_its_content_back() -> None:
    """A message_delta that holds a content of its own does not replace what was streamed."""
    events = stream_of(message([text("words")]))
    events[-2]["delta"]["content"] = None
    assert (await turn_of(sse_response(sse(*events)))).text == "words"


class Body(httpx2.AsyncByteStream):
    """A body in one piece that comes once, or again and again without end; `sent` says how often it came."""

    def __init__(self, piece: bytes, *, is_endless: bool = False) -> None:
        self.piece = piece
        self.is_endless = is_endless
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.is_endless or not self.sent:
            self.sent += 1
            yield self.piece


@pytest.mark.parametrize("charset", ["rot13", "base64"])
async def test_a_charset_that_is_none_is_no_traceback(charset: str) -> None:
    """Whatever a server says of its JSON, it is read as UTF-8."""
    response = httpx2.Response(
        400, headers={"content-type": f"application/json; charset={charset}"}, content='{"error": "Wörter"}'.encode()
    )
    assert "Wörter" in (await error_of(lambda _: response)).message


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "br", "nonsense"])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_content_coding_that_was_not_asked_for_is_not_undone(coding: str, kind: str) -> None:
    """A few bytes that would become gigabytes stay a few bytes."""
    body = Body(b"never read")
    headers = {"content-encoding": coding, "content-type": kind}
    error = await error_of(lambda _: httpx2.Response(200, headers=headers, stream=body))
    assert (error.kind, error.retryable, body.sent) == ("malformed", True, 0)
    assert f"encoded its answer ({coding}), which was not asked for" in error.message


async def test_a_refusal_in_a_content_coding_is_that_refusal() -> None:
    """The status says enough, and the body is not decompressed."""
    twice = gzip.compress(gzip.compress(b" " * 1_000_000))
    headers = {"content-encoding": "gzip, gzip", "content-type": "application/json"}
    error = await error_of(lambda _: httpx2.Response(401, headers=headers, stream=Body(twice)))
    assert (error.kind, error.retryable) == ("refused_key", False)


@pytest.mark.parametrize(("status", "kind"), [(400, "request"), (401, "refused_key"), (529, "overloaded")])
async def test_a_refusal_without_end_is_that_refusal(status: int, kind: str) -> None:
    """Its first words are shown, and a server that never stops sending costs a bounded amount of memory."""
    body = Body(b"no, no, ", is_endless=True)
    error = await error_of(lambda _: httpx2.Response(status, stream=body))
    assert error.kind == kind
    assert "no, no, no" in error.message
    assert body.sent * len(body.piece) <= 100_000


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://other.test/v1/messages", "https://other.test;"),
        ("https://other.test/api/v1/messages?beta=true", "https://other.test/api;"),
        ("/new/v1/messages", "http://model.test/new;"),
        ("http://127.0.0.1:99999/", "http://127.0.0.1:99999/;"),
        ("http://[::1", "http://[::1;"),
        ("http://a..b/", "http://a..b/;"),
        ("https://me:secret@other.test/v1/messages?api_key=secret", "https://…@other.test;"),
        ("\xff\x1b[31m", "\xff;"),
        ("", "http://model.test;"),
    ],
)
async def test_a_redirect_is_not_followed_and_its_address_is_named(location: str, shown: str) -> None:
    """A conversation goes to no server that the user did not name, and the user hears which one wants it."""
    script = ScriptedModel([httpx2.Response(307, headers=[(b"location", location.encode("latin-1"))])])
    with pytest.raises(ModelError) as caught:
        await script.model().turn("s", HELLO, [])
    assert (caught.value.kind, caught.value.retryable, len(script.requests)) == ("request", False, 1)
    assert f"sends its callers on to {shown}" in caught.value.message
    assert caught.value.message.endswith("; set ANTHROPIC_BASE_URL to that address")
    assert "secret" not in caught.value.message
    assert caught.value.message.isprintable()


async def test_a_redirect_of_a_real_server_is_one_sentence(environment: Environment) -> None:
    """An impossible port in it is no traceback."""
    redirect = Reply(308, {"location": "http://127.0.0.1:99999/v1/messages"})
    with LocalServer(redirect) as server:
        environment({"ANTHROPIC_BASE_URL": server.url})
        async with open_model(read_settings()[0], clock=FakeClock(), faults=parse_faults("", [])) as model:
            with pytest.raises(ModelError, match="set ANTHROPIC_BASE_URL"):
                await model.turn("s", HELLO, [])
    assert len(server.requests) == 1


@pytest.mark.usefixtures("_ends")
@pytest.mark.parametrize("piece", [b":\n", b"data: x\n", b"\r\n:", b": ping "])
async def test_an_event_without_end_is_cut_off(piece: bytes) -> None:
    """A flood of comments without a blank line costs neither memory nor minutes."""
    body = Body(piece * 30_000, is_endless=True)
    headers = {"content-type": "text/event-stream"}
    error = await error_of(lambda _: httpx2.Response(200, headers=headers, stream=body))
    assert "an event that is larger than any message" in error.message
    assert body.sent <= 10


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
async def test_a_stream_in_pieces_of_any_size_is_the_same_turn(end: bytes, size: int) -> None:
    """However the network cuts it, and whichever line ends a server uses."""
    body = (b": a comment\n\n" + sse(*EVENTS)).replace(b"\n", end)

    class Pieces(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for at in range(0, len(body), size):
                yield body[at : at + size]

    headers = {"content-type": "text/event-stream"}
    turn = await turn_of(lambda _: httpx2.Response(200, headers=headers, stream=Pieces()))
    assert (turn.text, turn.tool_uses[0]["input"]) == ("hello there", {"q": "x"})


UNKNOWN: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "hm", "signature": "abc"},
    {"type": "redacted_thinking", "data": "xyz"},
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "hologram", "photons": [1, None, {"deep": True}]},
]


async def test_blocks_of_unknown_types_come_back_as_they_were() -> None:
    """What this client does not use passes unharmed into the next request."""
    turn = await turn_of(httpx2.Response(200, json=message([*UNKNOWN, text("done")])))
    assert turn.content == [*UNKNOWN, text("done")]


async def test_an_input_of_another_block_is_left_as_it_came() -> None:
    """Only a call of ours must have arguments that are an object; what is text elsewhere stays text."""
    blocks = [{"type": "hologram", "input": "words"}, {"type": "hologram", "input": '{"a": 1}'}]
    assert (await turn_of(httpx2.Response(200, json=message(blocks)))).content == blocks


async def test_the_streamed_input_of_a_server_tool_is_an_object() -> None:
    """Its pieces are put together like those of a call of ours; half of it, which nobody runs, leaves nothing."""
    start = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    events = [EVENTS[0]]
    for index, pieces in enumerate((['{"query"', ': "tea"}'], ['{"query"'], [""])):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        for piece in pieces:
            delta = {"type": "input_json_delta", "partial_json": piece}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
    turn = await turn_of(sse_response(sse(*events, *EVENTS[-2:])))
    assert [block["input"] for block in turn.content] == [{"query": "tea"}, {}, {}]


async def test_an_input_that_comes_whole_is_kept() -> None:
    """An empty piece after it adds nothing to it, and does not take it away."""
    events = stream_of(message([tool_use("search", "toolu_1", q="x")]))
    events[1]["content_block"]["input"] = {"q": "x"}
    events[2]["delta"]["partial_json"] = ""
    assert (await turn_of(sse_response(sse(*events)))).tool_uses[0]["input"] == {"q": "x"}


async def test_a_citation_goes_back_without_its_file_id() -> None:
    """The API's answers have the field, and its requests have not."""
    citation = {"type": "char_location", "cited_text": "a", "document_index": 0, "document_title": None}
    block = {**text("words"), "citations": [{**citation, "file_id": None}, {**citation, "file_id": "file_1"}]}
    turn = await turn_of(httpx2.Response(200, json=message([block])))
    assert turn.content == [{**text("words"), "citations": [citation, citation]}]


async def test_unknown_deltas_are_put_together_and_unknown_events_ignored() -> None:
    """A stream of a later API version is still read."""
    events = [
        EVENTS[0],
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "hologram", "beam": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "hologram_delta", "beam": "ab", "n": 1}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "hologram_delta", "beam": "cd", "n": 2}},
        {"type": "something_new"},
        *EVENTS[-2:],
    ]
    assert (await turn_of(sse_response(sse(*events)))).content == [{"type": "hologram", "beam": "abcd", "n": 2}]


async def test_a_stream_is_by_the_model_that_ended_it() -> None:
    """Where another model took over, the price is its price, as it is without a stream."""
    fallback = {"type": "fallback", "from": {"model": "scripted"}, "to": {"model": "claude-haiku-4-5"}}
    script = ScriptedModel([message([fallback, text("words")])])
    model = script.model(policy=ONCE)
    assert (await model.turn("s", HELLO, [])).content == [fallback, text("words")]
    assert model.answered_by == "claude-haiku-4-5"


@pytest.mark.usefixtures("_ends")
@pytest.mark.parametrize(
    ("start", "delta"),
    [
        (text(""), {"type": "text_delta", "text": "x" * 500}),
        (tool_use("search", "toolu_1"), {"type": "input_json_delta", "partial_json": "x" * 500}),
    ],
)
async def test_a_flood_of_small_pieces_is_put_together_in_time(start: dict[str, Any], delta: dict[str, Any]) -> None:
    """Twenty megabytes of words or arguments, in forty thousand pieces."""
    opening = {"type": "content_block_start", "index": 0, "content_block": start}
    piece = {"type": "content_block_delta", "index": 0, "delta": delta}

    async def events() -> AsyncIterator[ServerSentEvent]:
        for event in (EVENTS[0], opening, *[piece] * 40_000, EVENTS[-1]):
            yield ServerSentEvent(data=json.dumps(event))

    block = (await assembled(events()))["content"][0]
    assert max(len(value) for value in block.values()) == 20_000_000


@pytest.mark.usefixtures("_ends")
async def test_a_flood_of_small_calls_is_checked_in_time() -> None:
    """Fifty thousand of them, in one message."""
    calls = [tool_use("search", f"toolu_{number}") for number in range(50_000)]
    turn = checked_turn(message(calls), TurnUsage())
    assert turn.tool_uses == calls


async def test_blank_text_blocks_are_dropped() -> None:
    """The API refuses them when they are sent back."""
    assert (await turn_of([text("  "), text("words")])).content == [text("words")]


async def test_a_bug_below_the_sdk_is_not_an_outage() -> None:
    """The SDK wraps every exception of a transport as a connection error; a bug or a cassette miss is unwrapped."""

    class CassetteMissError(Exception):
        pass

    def miss(_body: dict[str, Any]) -> None:
        raise CassetteMissError

    with pytest.raises(CassetteMissError):
        await turn_of(miss, policy=RetryPolicy(attempts=3))


async def test_without_key_or_base_url_the_embedded_model_answers(environment: Environment) -> None:
    """A first try needs no account, and the model says what it is."""
    environment({})
    faults = parse_faults("", [])
    async with open_model(read_settings()[0], clock=FakeClock(), faults=faults) as model:
        assert (model.is_offline, model.name) == (True, "caveat-offline")
    for variables in ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}, {"ANTHROPIC_API_KEY": "x"}):
        environment(variables)
        async with open_model(read_settings()[0], clock=FakeClock(), faults=faults) as model:
            assert not model.is_offline
        async with open_model(read_settings({"offline": True})[0], clock=FakeClock(), faults=faults) as model:
            assert model.is_offline


async def test_a_base_url_without_a_key_is_used(environment: Environment) -> None:
    """Local servers ask for no key; the address is enough, and it is the one that is asked."""
    environment({"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"})
    faults = parse_faults("model:refused", [])
    async with open_model(read_settings()[0], clock=FakeClock(), faults=faults) as model:
        with pytest.raises(ModelError, match=r"nothing answers at http://127.0.0.1:9"):
            await model.turn("s", HELLO, [])


@given(st.binary(max_size=300), st.sampled_from(["text/event-stream", "application/json", "text/html", ""]))
async def test_any_body_is_a_turn_or_a_model_error(body: bytes, kind: str) -> None:
    """No answer of any server ends in a traceback."""
    try:
        await turn_of(httpx2.Response(200, headers={"content-type": kind}, content=body))
    except ModelError as error:
        assert error.message


_KEYS = [
    "type",
    "message",
    "content",
    "index",
    "delta",
    "content_block",
    "text",
    "usage",
    "stop_reason",
    "id",
    "name",
    "input",
]
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=4), inner),
    max_leaves=12,
)
_KINDS = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
]


@given(
    st.lists(st.tuples(st.sampled_from(_KINDS), st.dictionaries(st.sampled_from(_KEYS), _json, max_size=5)), max_size=6)
)
async def test_any_series_of_events_is_a_turn_or_a_model_error(events: list[tuple[str, dict[str, Any]]]) -> None:
    """Events in any order with anything in them never end in a traceback."""
    body = b"".join(
        f"event: {kind}\ndata: {json.dumps({**fields, 'type': kind})}\n\n".encode() for kind, fields in events
    )
    try:
        await turn_of(sse_response(body))
    except ModelError as error:
        assert error.message


@pytest.mark.parametrize(
    ("environ", "hint"),
    [
        ({"ANTHROPIC_API_KEY": "ключ"}, "copy the key again"),
        ({"ANTHROPIC_API_KEY": "a\nb"}, "copy the key again"),
        ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:port"}, "ANTHROPIC_BASE_URL"),
        ({"ANTHROPIC_BASE_URL": "localhost"}, "ANTHROPIC_BASE_URL"),
        ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:99999"}, "ANTHROPIC_BASE_URL"),
        ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:9/\udcff", "ANTHROPIC_API_KEY": "x"}, "ANTHROPIC_BASE_URL"),
        ({"ANTHROPIC_API_KEY": "x", "CAVEAT_MODEL": "m\udcff"}, "CAVEAT_MODEL"),
        ({"ANTHROPIC_BASE_URL": "ftp://localhost/"}, "ANTHROPIC_BASE_URL"),
    ],
)
async def test_a_key_or_address_that_cannot_be_one_is_named(
    environ: dict[str, str], hint: str, environment: Environment
) -> None:
    """A key pasted with a line break, or an address without http://, is one sentence that says which variable."""
    environment(environ)
    with pytest.raises((ModelError, SettingsError), match=hint):
        async with open_model(read_settings()[0], clock=FakeClock(), faults=parse_faults("", [])) as model:
            await model.turn("s", HELLO, [])


async def test_a_server_that_only_sends_pings_is_left_when_the_turns_time_is_up() -> None:
    """Pings hold the connection, not the run."""

    class Pings(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b": ping\n\n"
                await asyncio.sleep(0)

    reply = httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Pings())
    model = ScriptedModel([lambda _: reply]).model(policy=ONCE, turn_seconds=0.05)
    with pytest.raises(ModelError, match="took longer than 0 s for a turn; use a faster model or machine"):
        await model.turn("s", HELLO, [])


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("end", [b"\n\n", b""])
async def test_an_answer_without_end_is_cut_off(kind: str, end: bytes) -> None:
    """A server that never stops sending costs a bounded amount of memory."""
    piece = b'event: ping\ndata: {"type": "ping", "filler": "' + b"x" * 900_000 + b'"}' + end
    response = httpx2.Response(200, headers={"content-type": kind}, stream=Body(piece, is_endless=True))
    assert "larger than any message" in (await error_of(lambda _: response)).message
