"""A recorded interaction in words: what the model was newly told and what it answered, what a source was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from vcr.request import Request

from caveat.testing.matching import message_request
from caveat.turn import Assembly, ModelError
from caveat_tools.plain_text import one_line

_WIDTH: Final = 160


def in_words(request: Request, response: Mapping[str, Any]) -> list[str]:
    """Return an interaction as lines: what was asked, then, indented, what was sent and what came."""
    body = message_request(request)
    if body is None:
        return [_address(request), f"  came: {_outcome(response)}"]
    sent = [f"  sent: {line}" for line in _new(body)]
    return [one_line(f"model {body.get('model')}", _WIDTH), *sent, *(f"  came: {line}" for line in _answer(response))]


def _address(request: Request) -> str:
    place = urlsplit(request.uri)
    query = ", ".join(f"{name}={value}" for name, value in parse_qsl(place.query))
    return one_line(f"{request.method} {place.scheme}://{place.netloc}{place.path}  {query}", _WIDTH)


def _outcome(response: Mapping[str, Any]) -> str:
    status, raises = response["status"]["code"], response.get("raises")
    size = len(response["body"]["string"])
    came = f"status {status}, {size:,} bytes" if status else ""
    if raises:
        broke = one_line(f"{raises['error']}: {raises.get('message', '')}".rstrip(": "), _WIDTH)
        return f"{came}, then {broke}" if came else broke
    return came


def _new(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield what came since the model's last turn; of the first request, also what it is asked with."""
    messages = body.get("messages") or []
    turns = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns:
        tools = ", ".join(str(tool.get("name")) for tool in body.get("tools") or ())
        yield f"a system prompt, and the tools {tools}" if tools else "a system prompt"
    for message in messages[turns[-1] + 1 :] if turns else messages:
        content = message.get("content")
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content or ():
            yield _block(block)


def _answer(response: Mapping[str, Any]) -> Iterator[str]:
    message = _message(response)
    if message is None:
        yield _outcome(response)
        return
    for block in message.get("content") or ():
        yield _block(block)
    yield f"stop_reason {message.get('stop_reason')}"
    if response.get("raises"):
        yield _outcome(response)


def _message(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the message in a 200 answer, as far as it came; None where there is none."""
    if response["status"]["code"] != 200:
        return None
    text = response["body"]["string"].decode("utf-8", "replace")
    assembly = Assembly()
    try:
        if text.lstrip().startswith("{"):
            message: dict[str, Any] = json.loads(text)
            return message
        for line in text.splitlines():
            if line.startswith("data:"):
                assembly.add(json.loads(line.removeprefix("data:")), None)
    except (ValueError, LookupError, TypeError, ModelError):
        pass  # what came before it is a message all the same
    assembly.finish()
    return assembly.message or None


def _block(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return one_line(f"“{block.get('text', '')}”", _WIDTH)
    if kind == "tool_use":
        arguments = block.get("input")
        shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return one_line(f"tool_use {block.get('name')} {shown}", _WIDTH)
    if kind == "tool_result":
        content = block.get("content", "")
        shown = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        return one_line(f"tool_result{' (is_error)' if block.get('is_error') else ''} {shown}", _WIDTH)
    return one_line(str(kind), _WIDTH)
