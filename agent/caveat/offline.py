"""The embedded model: what answers where there is no API key. It is not a language model.

Plain, deterministic rules speak the Messages API's wire form inside the process, so that the SDK, the loop and the
cassettes see what they see with a real model. Everything is derived from one request; nothing is remembered.

    tools offered                            what the rules do
    plan_topics, search, report_findings     split the question, search, follow up failures, report sentences verbatim
    these and delegate                       the same for one topic; give several to a subagent each
    search, note_findings, report_findings   search for one topic, note sentences verbatim, report the rest
    state_claims, and no search              make a claim of each finding
    write_sections, and no search            string the claims together, each with its citation
    anything else                            say what this is

This module is the wire and the reading of the conversation; the rules are in `caveat.stand_in`, a module a role.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, pairwise
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

import httpx2
from pydantic import Field, ValidationError

from caveat.stand_in.calls import Body, Call
from caveat.stand_in.coordinator import coordinate
from caveat.stand_in.subagent import work_on
from caveat.stand_in.writing import analyse, synthesise
from caveat_tools.outcome import estimated_tokens, to_json

MODEL_NAME: Final = "caveat-offline"
_DELTA_CHARS: Final = 200

_INTRODUCTION: Final = (
    "This is caveat's embedded model. It follows fixed rules, is not a language model and works only inside caveat."
)


# --- the wire: a request in, a response out


class _Block(Body):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str = ""
    content: Any = None
    is_error: bool = False


class _Message(Body):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]

    @property
    def blocks(self) -> list[_Block]:
        return [_Block(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class _Tool(Body):
    name: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)


class _Request(Body):
    model: str
    max_tokens: int = Field(ge=1)
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] = Field(default_factory=list)
    stream: bool = False


class _Turn(NamedTuple):
    """What one side said before the other spoke again."""

    role: str
    blocks: list[_Block]


def transport() -> httpx2.MockTransport:
    """Return the transport that answers in place of the network, for a synchronous or an asynchronous client."""
    return httpx2.MockTransport(answer)


def answer(request: httpx2.Request) -> httpx2.Response:
    """Answer one request whose body has been read, as the Messages API would; equal requests get equal bytes.

    A body or a conversation that the API refuses gets a 400, every other path a 404. Raises nothing.
    """
    digest = hashlib.sha256(request.content).hexdigest()[:20]
    if request.method != "POST" or not request.url.path.endswith("/v1/messages"):
        return _error(404, "not_found_error", "the embedded model serves POST /v1/messages only", digest)
    try:
        asked = _Request.model_validate_json(request.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        return _error(400, "invalid_request_error", f"{where}: {first['msg']}", digest)
    turns = _turns(asked.messages)
    fault = _fault(turns)
    if fault:
        return _error(400, "invalid_request_error", fault, digest)
    message = _message(_reply(asked.tools, turns), digest, estimated_tokens(request.content.decode()))
    headers = {"request-id": f"req_offline_{digest}"}
    if not asked.stream:
        return httpx2.Response(200, headers={**headers, "content-type": "application/json"}, content=to_json(message))
    events = "".join(f"event: {event['type']}\ndata: {to_json(event)}\n\n" for event in _events(message))
    return httpx2.Response(200, headers={**headers, "content-type": "text/event-stream; charset=utf-8"}, content=events)


def _message(reply: str | list[Call], digest: str, input_tokens: int) -> dict[str, Any]:
    """Return a reply as the API's message object."""
    blocks: list[dict[str, Any]]
    if isinstance(reply, str):
        stop_reason, blocks = "end_turn", [{"type": "text", "text": reply}]
    else:
        ids = [f"toolu_offline_{digest}_{number}" for number in range(len(reply))]
        stop_reason = "tool_use"
        blocks = [
            {"type": "tool_use", "id": call_id, "name": call.name, "input": call.input}
            for call_id, call in zip(ids, reply, strict=True)
        ]
    return {
        "id": f"msg_offline_{digest}",
        "type": "message",
        "role": "assistant",
        "model": MODEL_NAME,
        "content": blocks,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": input_tokens, "output_tokens": estimated_tokens(to_json(blocks))},
    }


def _error(status: int, kind: str, message: str, digest: str) -> httpx2.Response:
    request_id = f"req_offline_{digest}"
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
    headers = {"request-id": request_id, "content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=to_json(body))


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events that make up a message."""
    blocks, usage = message["content"], message["usage"]
    opening = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": opening}
    for index, block in enumerate(blocks):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        whole = block["text"] if is_text else to_json(block["input"])
        for start in range(0, len(whole), _DELTA_CHARS):
            part = whole[start : start + _DELTA_CHARS]
            delta = {"type": "text_delta", "text": part}
            if not is_text:
                delta = {"type": "input_json_delta", "partial_json": part}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


# --- the conversation


def _turns(messages: Sequence[_Message]) -> list[_Turn]:
    """Join consecutive messages of one role, as the API does; system messages are not for these rules."""
    spoken = [message for message in messages if message.role != "system"]
    grouped = groupby(spoken, key=attrgetter("role"))
    return [_Turn(role, list(chain.from_iterable(message.blocks for message in group))) for role, group in grouped]


def _fault(turns: Sequence[_Turn]) -> str:
    """Return why the API would refuse this conversation, or ""."""
    if not turns or turns[0].role != "user" or turns[-1].role != "user":
        return "messages: the first and the last message must be the user's"
    for before, turn in pairwise([_Turn("assistant", []), *turns]):
        called = sorted(block.id for block in before.blocks if block.type == "tool_use")
        results = [block for block in turn.blocks if block.type == "tool_result"]
        if sorted(block.tool_use_id for block in results) != called:
            return "messages: the tool_results must be those of the tool_use blocks right before, one each"
        if any(block.type != "tool_result" for block in turn.blocks[: len(results)]):
            return "messages: tool_result blocks come before all others"
        if any(block.is_error and not _text(block.content) for block in results):
            return "messages: a tool_result with is_error needs content"
    return ""


def _text(content: Any) -> str:
    """Return the text of a tool_result's content: a string, or blocks of which the text blocks count."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _calls(turns: Sequence[_Turn]) -> list[Call]:
    """Return all tool calls made so far, in order."""
    blocks = [(number, block) for number, turn in enumerate(turns) for block in turn.blocks]
    results = {block.tool_use_id: _text(block.content) for _, block in blocks if block.type == "tool_result"}
    return [
        Call(block.name, block.input, number, results[block.id]) for number, block in blocks if block.type == "tool_use"
    ]


def _reply(tools: Sequence[_Tool], turns: Sequence[_Turn]) -> str | list[Call]:
    """Return what is said next: a text that ends the turn, or tool calls."""
    offered = {tool.name: tool for tool in tools}
    calls, told_to_report = _calls(turns), _told_to_report(turns[-1])
    if {"plan_topics", "search", "report_findings"} <= offered.keys():
        question = " ".join((_tagged(turns, "question") or _opening(turns)).split())
        sources, can_delegate = _sources(offered["search"]), "delegate" in offered
        return coordinate(question, sources, calls, can_delegate=can_delegate, told_to_report=told_to_report)
    if {"search", "note_findings", "report_findings"} <= offered.keys():
        task = _tagged(turns, "task") or ""
        return work_on(task, _sources(offered["search"]), calls, told_to_report=told_to_report)
    if "state_claims" in offered and "search" not in offered:
        return analyse(_tagged(turns, "findings") or "", calls)
    if "write_sections" in offered and "search" not in offered:
        return synthesise(_tagged(turns, "claims") or "", calls)
    return _INTRODUCTION


def _sources(search: _Tool) -> list[str]:
    """Return the names that the search tool's schema allows; a schema of one name may say `const`."""
    properties = search.input_schema.get("properties")
    source = properties.get("source") if isinstance(properties, dict) else None
    if not isinstance(source, dict):
        return []
    names = source.get("enum", [source.get("const")])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _told_to_report(turn: _Turn) -> bool:
    """Say whether the loop's reminder that few turns are left stands behind the tool results."""
    has_results = any(block.type == "tool_result" for block in turn.blocks)
    return has_results and any(block.type == "text" and "report_findings" in block.text for block in turn.blocks)


def _tagged(turns: Sequence[_Turn], tag: str) -> str | None:
    """Return what stands between <tag> and </tag> in the first user message, or None where the tags are missing."""
    match = re.search(f"<{tag}>(.*)</{tag}>", _opening(turns), re.DOTALL)
    return match[1] if match else None


def _opening(turns: Sequence[_Turn]) -> str:
    return "\n".join(block.text for block in turns[0].blocks if block.type == "text")
