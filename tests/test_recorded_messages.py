"""Recorded answers of the hosted Messages API, kept beside the repository, go through the client that will meet them.

What is expected is read from the bodies here, by the rules of the Messages API's reference and by nothing of ours.
All answers are older than API version 2026-10-21. Nobody has recorded a pause, a redacted thinking, an error event, or
a status 413, 500 or 529: test_model.py and test_loop.py have made-up ones.
"""

from __future__ import annotations

import functools
import json
import operator
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import httpx2
import pytest
from anthropic.lib.streaming._beta_messages import accumulate_event
from anthropic.types.beta.beta_content_block_param import BetaContentBlockParam
from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from caveat.budget import Budget, Limits
from caveat.journal import Scope
from caveat.loop import Arguments, Call, Reply, definition, run_agent
from caveat.model import Model
from caveat.prices import TurnUsage
from caveat.turn import ModelError
from caveat_tools.clock import FakeClock
from caveat_tools.retry import RetryPolicy
from caveat_tools.stop import Stop
from recordings import Row, needs, recorded, response, rows
from scripted import ScriptedModel, text, tool_use

FILE = "messages.jsonl"
HELLO = {"role": "user", "content": "hello"}

MESSAGES = recorded(FILE, lambda row: row["expect"]["outcome"] == "message")
STREAMS = recorded(FILE, lambda row: row["expect"]["outcome"] == "message" and row["expect"]["stream"])
ERRORS = recorded(FILE, lambda row: row["expect"]["outcome"] == "error")

BROKEN = {
    "me0e79ee10c": "max_tokens cut the call in the middle of its arguments",
    "m7596d5fa19": "the arguments are no JSON: a comma is missing",
}
"""Rows whose only call has arguments that are none. It goes back with `{}`, since a request must hold an object."""

UNDOCUMENTED = {
    "m5e0d3f49d0": "code_execution_result.abort_reason: null, which the SDK knows neither in answers nor in requests",
}
"""Rows with a field of which nothing says whether a request may hold it: it goes back as it came."""


def model(*replies: Any, attempts: int = 1) -> tuple[Model, ScriptedModel]:
    """Return the client, and the server that gives it these answers."""
    script = ScriptedModel(replies)
    return script.model(policy=RetryPolicy(attempts=attempts)), script


def events(body: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream: the recorded ones have each its data in one line."""
    return (json.loads(line.removeprefix("data:")) for line in body.splitlines() if line.startswith("data:"))


def whole(row: Row) -> dict[str, Any]:
    """Return the message of a row. Source of the rules for streams: the Messages API's page on streaming."""
    if not row["expect"]["stream"]:
        plain: dict[str, Any] = json.loads(row["body"])
        return plain
    message: dict[str, Any] = {}
    arguments: dict[int, str] = defaultdict(str)
    for event in events(row["body"]):
        match event:
            case {"type": "message_start"}:
                message = event["message"]
            case {"type": "content_block_start"}:
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": part}}:
                arguments[event["index"]] += part
            case {"type": "content_block_delta"}:
                _add(message["content"][event["index"]], event["delta"])
            case {"type": "message_delta"}:
                counts = {name: count for name, count in event["usage"].items() if count is not None}
                message |= event["delta"] | {"usage": message["usage"] | counts}
            case _:
                assert event["type"] in {"ping", "content_block_stop", "message_stop"}
    for index, written in arguments.items():
        if written:
            message["content"][index]["input"] = {} if row["id"] in BROKEN else json.loads(written)
    return message


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta:
        case {"type": "text_delta"}:
            block["text"] += delta["text"]
        case {"type": "thinking_delta"}:
            block["thinking"] += delta["thinking"]
        case {"type": "signature_delta"}:
            block["signature"] = delta["signature"]
        case {"type": "citations_delta"}:
            block["citations"] = [*block["citations"], delta["citation"]]
        case {"type": "compaction_delta"}:
            block |= {"content": delta["content"], "encrypted_content": delta["encrypted_content"]}
        case _:
            raise AssertionError(f"a delta that the reference does not name: {delta['type']}")


def sent_back(content: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks that can go into a request: the API refuses text that is only white space."""
    return [block for block in content if block["type"] != "text" or block["text"].strip()]


@pytest.mark.parametrize("row", MESSAGES)
async def test_a_recorded_message_is_the_turn_that_it_was_labelled(row: Row) -> None:
    """Blocks in order and in full, the stop reason, tokens by how they are paid for, and which model answered."""
    expect, message = row["expect"], whole(row)
    assert [block["type"] for block in message["content"]] == expect["blocks"]
    client, _ = model(response(row))
    turn = await client.turn("system", [HELLO], [])
    assert turn.content == sent_back(message["content"])
    assert turn.stop_reason == expect["stopReason"]
    assert list(turn.broken) == [use["id"] for use in turn.tool_uses if row["id"] in BROKEN]
    assert turn.usage == TurnUsage(
        input=expect["inputTokens"],
        cache_write=message["usage"].get("cache_creation_input_tokens", 0),
        cache_read=message["usage"].get("cache_read_input_tokens", 0),
        output=expect["outputTokens"],
    )
    took_over = [block["to"]["model"] for block in message["content"] if block["type"] == "fallback"]
    assert client.answered_by == [message["model"], *took_over][-1]


_FORMS: Any = functools.reduce(operator.or_, filter(is_typeddict, get_args(BetaContentBlockParam)))
REQUEST_BLOCKS = TypeAdapter(list[_FORMS], config=ConfigDict(extra="forbid", strict=True))
"""What a request may hold, as the SDK documents it; the API refuses fields that it does not know."""


@pytest.mark.parametrize("row", MESSAGES)
async def test_what_the_model_said_goes_back_to_it_as_it_came(row: Row) -> None:
    """Server tools and their results, signed thinking, compactions, fallbacks, citations: all in a form it accepts."""
    client, script = model(response(row), [text("done")])
    turn = await client.turn("system", [HELLO], [])
    said = {"role": "assistant", "content": turn.content}
    await client.turn("system", [HELLO, said, HELLO], [])
    request = script.requests[1]["messages"][1]["content"]
    assert _canonical(request) == _canonical(sent_back(whole(row)["content"]))
    if row["id"] in UNDOCUMENTED:
        with pytest.raises(ValidationError):
            _read(REQUEST_BLOCKS.validate_python(request))
    else:
        _read(REQUEST_BLOCKS.validate_python(request))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # unlike ==, it tells 1 from 1.0 and from true


def _read(value: Any) -> None:
    """Walk through all of a value: pydantic validates an Iterable only while it is read."""
    if not isinstance(value, str | int | float | None):
        for part in value.values() if isinstance(value, dict) else value:
            _read(part)


@pytest.mark.parametrize("row", STREAMS)
async def test_a_stream_adds_up_to_what_the_sdk_makes_of_it(row: Row) -> None:
    """Except for calls whose arguments are no JSON, which the SDK completes silently or raises for."""
    client, _ = model(response(row))
    turn = await client.turn("system", [HELLO], [])
    theirs: Any = None
    buffers: dict[int, bytes] = {}
    heard: Iterable[Any] = (event for event in events(row["body"]) if event["type"] != "ping")
    try:
        for event in heard:
            theirs = accumulate_event(
                event=event, current_snapshot=theirs, json_bufs=buffers, request_headers=httpx2.Headers()
            )
    except ValueError:
        assert row["id"] in BROKEN
        return
    content = sent_back(block.to_dict(mode="json") for block in theirs.content)
    assert (turn.content == content) == (row["id"] not in BROKEN)
    assert turn.stop_reason == theirs.stop_reason
    assert client.answered_by == theirs.model
    assert (turn.usage.input, turn.usage.output) == (theirs.usage.input_tokens, theirs.usage.output_tokens)


@pytest.mark.parametrize("row", STREAMS)
async def test_a_recorded_stream_that_is_cut_is_never_taken_for_a_whole_one(row: Row) -> None:
    """At the end of each event and at twenty other bytes: a passing failure up to the last byte of message_stop."""
    body = row["body"].encode()
    complete = body.rindex(b"}") + 1
    cuts = {end.end() for end in re.finditer(b"\n\n", body)} | {0, complete - 1, complete}
    cuts |= set(random.Random(row["id"]).sample(range(complete), 20))
    client, script = model()
    for cut in sorted(cuts):
        script.replies = [httpx2.Response(200, headers=row["headers"], content=body[:cut])]
        try:
            turn = await client.turn("system", [HELLO], [])
        except ModelError as error:
            assert cut < complete
            assert (error.kind, error.retryable) == ("malformed", True)
        else:
            assert cut >= complete
            assert turn.content == sent_back(whole(row)["content"])


MEANING: dict[tuple[int, str], tuple[str, bool]] = {
    (400, "invalid_request_error"): ("request", False),
    (401, "authentication_error"): ("refused_key", False),
    (404, "not_found_error"): ("unknown_model", False),
    (429, "rate_limit_error"): ("rate_limited", True),
}
"""What status and error type mean, and whether the same request may succeed later. Source: the API's page on errors."""
TOO_LONG = {"me154cd7c15": "prompt is too long"}
"""Rows that say that the conversation is too long, for which the API has no error type, with their words."""


@pytest.mark.parametrize("row", ERRORS)
async def test_a_recorded_error_is_of_the_kind_that_its_status_and_type_mean(row: Row) -> None:
    """It has the server's words; what can pass is asked again, what cannot is not."""
    expect = row["expect"]
    kind, retryable = MEANING[expect["status"], expect["errorType"]]
    if row["id"] in TOO_LONG:
        assert TOO_LONG[row["id"]] in expect["message"]
        kind = "context_full"
    client, script = model(response(row), attempts=2)
    with pytest.raises(ModelError) as caught:
        await client.turn("system", [HELLO], [])
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)
    assert expect["message"] in caught.value.message
    assert len(script.requests) == (2 if retryable else 1)
    assert row["headers"].get("x-should-retry", str(retryable).lower()) == str(retryable).lower()


class Handover(Arguments):
    """Arguments of the tool that closes."""


class HandOver:
    """The tool that closes, and the only one that there is."""

    name = "hand_over"
    closes = True
    is_free = True
    arguments = Handover

    def definition(self) -> dict[str, Any]:
        return definition(self.name, "Hand over.", Handover)

    async def run(self, arguments: Handover, _scope: Scope) -> None:
        return None

    def settle(self, call: Call, arguments: Handover, result: None) -> Reply:
        return Reply({}, final=True)


@pytest.mark.parametrize("row", MESSAGES)
async def test_an_agent_can_go_on_after_every_recorded_message(row: Row) -> None:
    """Each call is answered in the next message, before any text, and only a refusal ends the run."""
    client, script = model(response(row), [tool_use("hand_over")])
    end = await run_agent(
        name="agent",
        model=client,
        system="system",
        tools=[HandOver()],
        opening="hello",
        limits=Limits(),
        budget=Budget(Limits(), client.usage, FakeClock()),
        stop=Stop(),
    )
    if row["expect"]["stopReason"] == "refusal":
        assert (end.reason, len(script.requests)) == ("refused", 1)
        return
    assert (end.reason, len(script.requests)) == ("finished", 2)
    content = sent_back(whole(row)["content"])
    opening, *said, answer = script.requests[1]["messages"] if content else [*script.requests[1]["messages"]]
    assert [message["content"] for message in said] == ([content] if content else [])
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    assert [block.get("tool_use_id") for block in answer["content"]][: len(calls)] == calls
    assert opening["role"] == answer["role"] == "user"
    assert all(block["type"] == "text" for block in answer["content"][len(calls) :])


@needs(FILE)
def test_every_recorded_message_is_run() -> None:
    """No row falls through silently, and all streams that were recorded are whole."""
    assert {param.id for param in [*MESSAGES, *ERRORS]} == {row["id"] for row in rows(FILE)}
    assert all(row["expect"].get("complete", True) for row in rows(FILE))
    assert BROKEN.keys() | UNDOCUMENTED.keys() | TOO_LONG.keys() <= {row["id"] for row in rows(FILE)}
