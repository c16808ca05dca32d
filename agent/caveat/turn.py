"""One turn of a model: put together from a Messages API's events or body, checked, fit to be sent back.

A stream is read event by event from the wire, since the SDK's own accumulator completes cut tool arguments silently and
cannot tell a stream that ended from one that was cut. Blocks of types that are not known here pass through unharmed.
Source of the forms: the Messages API's reference and its page on streaming.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from caveat.budget import Spent
from caveat.prices import TurnUsage
from caveat_tools.plain_text import one_line
from caveat_tools.retry import RecoverableError

ModelErrorKind: TypeAlias = Literal[
    "timeout",
    "unavailable",
    "overloaded",
    "rate_limited",
    "malformed",
    "refused_key",
    "billing",
    "unknown_model",
    "context_full",
    "request",
]
Message: TypeAlias = dict[str, Any]
Block: TypeAlias = dict[str, Any]

MAX_DEPTH: Final = 64
"""How deep the arguments of a call may be nested: what is much deeper cannot be written as JSON again."""
CONTEXT_FULL: Final = "the conversation no longer fits the model's context"
LARGER_CONTEXT: Final = "use a model or a server with a larger one"


class ModelError(RecoverableError):
    """The model gave no usable turn. The message is one sentence that says what happened and what to set."""

    def __init__(
        self, kind: ModelErrorKind, message: str, *, retryable: bool, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message, retryable=retryable, retry_after_seconds=retry_after_seconds)
        self.kind: ModelErrorKind = kind


@dataclass(frozen=True, slots=True)
class Turn:
    """One complete assistant turn.

    `content` is as the server sent it, ready to be sent back: without what no request may hold. `broken` maps the id of
    each tool_use whose arguments were cut or are not a JSON object to the reason; such a call must not be executed.
    `usage` is as far as the server tells; `spent` is that of all attempts at this turn, and `answered_by` the name that
    the server gave.
    """

    content: list[Block]
    stop_reason: str
    broken: Mapping[str, str] = field(default_factory=dict)
    usage: TurnUsage = field(default_factory=TurnUsage)
    spent: Spent = field(default_factory=Spent)
    answered_by: str = ""

    @property
    def tool_uses(self) -> list[Block]:
        """The tool_use blocks, in order."""
        return [block for block in self.content if block["type"] == "tool_use"]

    @property
    def text(self) -> str:
        """All text blocks, joined."""
        return "\n".join(block["text"] for block in self.content if block["type"] == "text")


async def assembled(events: AsyncIterator[Any]) -> Message:
    """Put a streamed message together. Raises ModelError for an error event, a malformed event or a cut stream."""
    assembly = Assembly()
    try:
        async for event in events:
            if event.data:
                assembly.add(parsed_json(event.data), event.event)
            if assembly.stopped:
                break
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            "malformed", "the model's stream holds an event that makes no sense", retryable=True
        ) from error
    if not assembly.stopped:
        raise ModelError("malformed", "the model's stream ended before the message did", retryable=True)
    return assembly.message


class Assembly:
    """A message under construction: `message` is whole when `stopped`, and else what there is of it.

    Source of the event forms: the Messages API's streaming reference.
    """

    def __init__(self) -> None:
        self.message: Message = {}
        self.stopped = False
        self._arguments: dict[int, list[str]] = {}
        self._words: dict[tuple[int, str], list[str]] = {}
        """The pieces of each text, by block and field; joined once, since there may be very many."""

    def add(self, event: dict[str, Any], name: str | None) -> None:
        """Take one event in. llama.cpp's errors have the name `error` only, and the error itself as data."""
        match "error" if name == "error" else event["type"]:
            case "message_start":
                self.message = dict(event["message"])
                self.message["content"] = list(self.message["content"])
            case "content_block_start":
                self._begin(dict(event["content_block"]))
            case "content_block_delta":
                self._extend(event["index"], event["delta"])
            case "message_delta":
                delta = event["delta"]
                self.message |= {name: delta[name] for name in ("stop_reason", "stop_sequence") if name in delta}
                counts = {name: count for name, count in (event.get("usage") or {}).items() if count is not None}
                self.message["usage"] = {**(self.message.get("usage") or {}), **counts}
            case "message_stop":
                self.finish()
                self.stopped = True
            case "error":
                raise _stream_error(event.get("error") or event)
            case _:
                pass  # ping, content_block_stop, and events that do not exist yet

    def _begin(self, block: Block) -> None:
        self.message["content"].append(block)
        if block.get("type") == "fallback":  # a message that is not streamed has the name of the last model, too
            self.message["model"] = block["to"]["model"]

    def _extend(self, index: int, delta: dict[str, Any]) -> None:
        block = self.message["content"][index]
        if delta["type"] == "input_json_delta":
            block.setdefault("input", {})  # llama.cpp leaves it out
            self._arguments.setdefault(index, []).append(delta["partial_json"])
        elif delta["type"] == "citations_delta":
            block["citations"] = block.get("citations") or []
            block["citations"].append(delta["citation"])
        else:
            for name, value in delta.items():
                if isinstance(value, str) and isinstance(block.get(name), str) and name != "type":
                    self._words.setdefault((index, name), [block[name]]).append(value)
                elif name != "type":
                    block[name] = value
                    self._words.pop((index, name), None)

    def finish(self) -> None:
        """Join the pieces that have come so far."""
        content = self.message["content"]
        for (index, name), pieces in self._words.items():
            content[index][name] = "".join(pieces)
        for index, pieces in self._arguments.items():
            if arguments := "".join(pieces):
                content[index]["input"] = arguments
            if content[index]["type"] != "tool_use":  # what is wrong with ours is told later
                content[index], _ = _with_arguments(content[index])


_CONTEXT_FULL_NAMES: Final = ("exceed_context_size_error", "context_length_exceeded", "request_too_large")
_CONTEXT_FULL_WORDS: Final = re.compile(
    r"""(?xi)
      prompt\ is\ too\ long                                                          # the hosted API
    | exceeds?\ (?:the\ )?(?:model's\ )?(?:available\ |maximum\ )?context            # the same, llama.cpp, Ollama
    | context\ size\ has\ been\ exceeded                                             # llama.cpp, in mid-answer
    | maximum\ context\ length                                                       # vLLM
    | (?:greater\ than\ the\ |loaded\ with\ )context\ length                         # LM Studio
    """
)


def is_context_full(kind: Any, code: Any, text: str) -> bool:
    """Say whether an error means that the conversation is too long: by its `type`, its `code`, or else its words.

    The names are those of llama.cpp, OpenAI and the hosted API, which has none but for a body of more than 32 MB.
    """
    named = kind in _CONTEXT_FULL_NAMES or code in _CONTEXT_FULL_NAMES
    return named or _CONTEXT_FULL_WORDS.search(text) is not None


def context_full(kind: Any, said: str) -> ModelError:
    """Return the error for a conversation that is too long, with what the server said of it and what to set."""
    is_llama = kind == "exceed_context_size_error"
    remedy = "start its server with a larger one, such as -c 32768" if is_llama else LARGER_CONTEXT
    return ModelError("context_full", f"{CONTEXT_FULL} ({said}); {remedy}", retryable=False)


def _stream_error(error: dict[str, Any] | str) -> ModelError:
    if isinstance(error, str):
        error = {"message": error}
    kind, words = error.get("type"), one_line(str(error.get("message", "")), 200)
    if is_context_full(kind, error.get("code"), words):
        return context_full(kind, words)
    said = f"the model broke off with {one_line(str(kind or 'an error'), 60)}: {words}"
    passing: dict[Any, ModelErrorKind] = {
        "overloaded_error": "overloaded",
        "rate_limit_error": "rate_limited",
        "api_error": "unavailable",
        "server_error": "unavailable",  # llama.cpp's name for it
        "timeout_error": "timeout",
    }
    return ModelError(passing.get(kind, "request"), said, retryable=kind in passing)


def checked_turn(message: Message, usage: TurnUsage) -> Turn:
    """Check a complete message. Raises ModelError, retryable, where it cannot be one."""
    stop_reason = message.get("stop_reason")
    if not isinstance(stop_reason, str):
        raise _senseless("has no stop_reason")
    if not isinstance(message.get("content"), list):
        raise _senseless("has no content")
    content: list[Block] = []
    broken: dict[str, str] = {}
    ids: set[str] = set()
    for raw in message["content"]:
        block, reason = _checked(raw)
        if block["type"] == "tool_use":
            if block["id"] in ids:
                raise _senseless("uses the id of a tool_use twice")
            ids.add(block["id"])
            if reason:
                broken[block["id"]] = reason
        if block["type"] != "text" or block["text"].strip():  # the API refuses blank text when it is sent back
            content.append(block)
    if stop_reason in _CUT and content and content[-1]["type"] == "tool_use":
        broken[content[-1]["id"]] = "the call was cut off by the output limit and not executed; send it again, shorter"
    return Turn(content, stop_reason, broken, usage)


_CUT: Final = frozenset({"max_tokens", "model_context_window_exceeded"})
"""Stop reasons after which the last tool_use may be half of one, even where it parses."""


def _checked(block: Any) -> tuple[Block, str | None]:
    """Return a content block fit to be sent back, and why its arguments cannot be used, if so."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise _senseless("holds a block without a type")
    if block["type"] == "text" and not isinstance(block.get("text"), str):
        raise _senseless("holds a text block without text")
    is_call = block["type"] == "tool_use"
    if is_call and not (isinstance(block.get("name"), str) and isinstance(block.get("id"), str) and block["id"]):
        raise _senseless("holds a tool_use without name or id")
    reason = None
    if is_call:
        block, reason = _with_arguments(block)
    elif block["type"] == "text" and isinstance(citations := block.get("citations"), list):
        block = {**block, "citations": [_requested(citation) for citation in citations]}
    if _is_deeper(block, MAX_DEPTH + 1):
        raise _senseless("holds a block that is nested too deeply")
    return block, reason


def _requested(citation: Any) -> Any:
    """Return a citation as requests hold it: `file_id` stands in answers only.

    Source: the types of the SDK (2.14), in which this is the one field that a block of an answer has and that of a
    request has not.
    """
    if not isinstance(citation, dict):
        return citation
    return {name: value for name, value in citation.items() if name != "file_id"}


def _senseless(what: str) -> ModelError:
    return ModelError("malformed", f"the model's message {what}", retryable=True)


def _with_arguments(block: Block) -> tuple[Block, str | None]:
    """Return the block with `input` as an object, and why it is not the model's, if so."""
    value = block.get("input")
    if isinstance(value, str):
        try:
            value = parsed_json(value) if value else {}
        except (ValueError, RecursionError) as error:
            return {**block, "input": {}}, f"the arguments are not valid JSON: {error}"
    if not isinstance(value, dict):
        return {**block, "input": {}}, "the arguments are not a JSON object"
    if _is_deeper(value, MAX_DEPTH):
        return {**block, "input": {}}, f"the arguments are nested more than {MAX_DEPTH} deep"
    return {**block, "input": value}, None


def _is_deeper(value: Any, levels: int) -> bool:
    """Say whether a value has more than `levels` objects and lists one in the other."""
    level = [value]
    for _ in range(levels + 1):
        level = [part for whole in level for part in _parts(whole)]
    return bool(level)


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def parsed_json(text: str) -> Any:
    """Parse JSON into what can be sent back: no NaN, no infinity, no half of a surrogate pair. Raises ValueError."""

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"{digits[:20]} is no number that JSON can hold")
        return value

    value = json.loads(text, parse_float=number, parse_constant=number)
    if re.search(r"\\u[dD][89a-fA-F]", text):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value
