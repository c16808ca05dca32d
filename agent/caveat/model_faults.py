"""What a Messages API sends under each injected fault: streams that break off or end badly, and error bodies.

What is the same at every service (time-outs, HTML, JSON that breaks off) is in `caveat_tools.transport`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from caveat_tools.transport import Answer


def _events(*events: dict[str, Any]) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


_START: Final[dict[str, Any]] = {
    "type": "message_start",
    "message": {
        "id": "msg_injected",
        "type": "message",
        "role": "assistant",
        "model": "injected",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    },
}
_OPENING: Final = _events(
    _START,
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I will first"}},
)


def _search(partial_json: str) -> tuple[dict[str, Any], ...]:
    """Return the events of a call of the tool `search` with these arguments, complete or not."""
    block = {"type": "tool_use", "id": "toolu_injected", "name": "search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": partial_json}
    return (
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
    )


def _ended(stop_reason: str, *content: dict[str, Any]) -> bytes:
    """Return a whole stream with this content and end."""
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": stop_reason, "stop_sequence": None},
        "usage": {"output_tokens": 0},
    }
    return _events(_START, *content, end, {"type": "message_stop"})


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


_STREAMS: Final = {
    "dribble": _OPENING,
    "cut": _OPENING,
    "stream_cut": _OPENING,
    "stream_error": _OPENING + _events(_error("overloaded_error", "injected overload")),
    "refusal": _ended("refusal"),
    "max_tokens": _ended("max_tokens", *_search('{"topic_id": "T1", "sou')),
    "bad_args": _ended("tool_use", *_search('{"topic_id": "T1", "nonsense": true}')),
}
_ERROR_TYPES: Final = {
    "400": "invalid_request_error",
    "401": "authentication_error",
    "403": "permission_error",
    "404": "not_found_error",
    "429": "rate_limit_error",
    "500": "api_error",
    "503": "api_error",
    "529": "overloaded_error",
}

ANSWERS: Final[Mapping[str, Answer]] = {
    **{fault: ("text/event-stream; charset=utf-8", stream) for fault, stream in _STREAMS.items()},
    **{
        status: ("application/json; charset=utf-8", json.dumps(_error(kind, f"injected {status}")).encode())
        for status, kind in _ERROR_TYPES.items()
    },
}
"""Fault → content type and body, for `caveat_tools.transport.stacked`."""
