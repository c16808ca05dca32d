"""A scripted model and a scripted source: what the other side says, in order, and a record of what it was asked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2

from caveat.model import Model
from caveat.model_http import http_client
from caveat.settings import Settings
from caveat_tools.clock import FakeClock
from caveat_tools.faults import parse_faults
from caveat_tools.retry import RetryPolicy
from caveat_tools.snapshots import SnapshotStore
from caveat_tools.source import Ask, Page, Passage, SourceError

Reply = list[dict[str, Any]] | dict[str, Any] | httpx2.Response | Callable[[dict[str, Any]], Any]


def text(words: str) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": words}


OFFLINE = Settings(offline=True)
"""The settings of a run that asks the embedded stand-in."""

_ids = itertools.count(1)


def tool_use(name: str, use_id: str | None = None, **arguments: Any) -> dict[str, Any]:
    """A tool_use block."""
    return {"type": "tool_use", "id": use_id or f"toolu_{next(_ids)}", "name": name, "input": arguments}


def message(content: list[dict[str, Any]], stop_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A complete message, as the Messages API gives it without streaming."""
    uses_tool = any(block["type"] == "tool_use" for block in content)
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "stop_reason": stop_reason or ("tool_use" if uses_tool else "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
        **more,
    }


def sse(*events: dict[str, Any]) -> bytes:
    """Server-sent events."""
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events).encode()


def stream_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that stream one message."""
    opening = {**reply, "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": opening}]
    for index, block in enumerate(reply["content"]):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        elif block["type"] == "tool_use":
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
        else:
            start, delta = block, None
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        if delta is not None:
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    closing = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": closing, "usage": reply["usage"]}, {"type": "message_stop"}]


def sse_response(body: bytes) -> httpx2.Response:
    """A 200 answer with these events."""
    return httpx2.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, content=body)


@dataclass
class ScriptedModel:
    """Answers each request with the next reply; the last one is repeated. `requests` has what was asked."""

    replies: Sequence[Reply]
    requests: list[dict[str, Any]] = field(default_factory=list)

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        """Answer one request."""
        body = json.loads(request.content)
        self.requests.append(body)
        reply: Any = self.replies[min(len(self.requests), len(self.replies)) - 1]
        if callable(reply) and not isinstance(reply, httpx2.Response):
            reply = reply(body)
        if isinstance(reply, httpx2.Response):
            return reply
        if isinstance(reply, list):
            reply = message(reply)
        if reply["model"] == "scripted":
            reply = {**reply, "model": body["model"]}
        return sse_response(sse(*stream_of(reply)))

    def model(
        self, clock: FakeClock | None = None, policy: RetryPolicy | None = None, *, name: str = "scripted", **more: Any
    ) -> Model:
        """The product's model client, talking to this script."""
        return Model(name, self.client(), clock=clock or FakeClock(), policy=policy or RetryPolicy(), **more)

    def client(self) -> anthropic.AsyncAnthropic:
        """The SDK's client, talking to this script."""
        http = http_client(httpx2.MockTransport(self.handle), parse_faults("", []))
        return anthropic.AsyncAnthropic(api_key="x", base_url="http://model.test", http_client=http, max_retries=0)

    def results(self, request: int = -1) -> list[dict[str, Any]]:
        """The tool_result blocks in the last user message of a request, with `content` parsed."""
        content = self.requests[request]["messages"][-1]["content"]
        return [{**b, "content": json.loads(b["content"])} for b in content if b["type"] == "tool_result"]


@dataclass
class ScriptedSource:
    """Answers each call with the next step: passages, a Page, or a SourceError; the last one is repeated."""

    steps: Sequence[Sequence[Passage] | Page | SourceError]
    name: str = "wiki"
    description: str = "A scripted source."
    place: str = "test"
    accepts_dates: bool = False
    in_process: bool = True
    asked: list[tuple[Ask, str | None]] = field(default_factory=list)

    async def page(self, ask: Ask, cursor: str | None) -> Page:
        """Answer one call."""
        self.asked.append((ask, cursor))
        step = self.steps[min(len(self.asked), len(self.steps)) - 1]
        if isinstance(step, SourceError):
            raise step
        return step if isinstance(step, Page) else Page(tuple(step))

    async def aclose(self) -> None:
        """Nothing to close."""


def passage(words: str, title: str = "Title") -> Passage:
    """A passage with an address of its own."""
    return Passage(title, f"test:{title}", words)


_stores: list[SnapshotStore] = []


def memory_store() -> SnapshotStore:
    """A store in memory, closed when the test ends."""
    _stores.append(SnapshotStore(None))
    return _stores[-1]


def close_stores() -> None:
    """Close all of them."""
    while _stores:
        _stores.pop().close()
