"""The only module that talks to a Messages API: streaming, retries, completeness, usage.

`Model.turn` sends one request and returns one complete turn, or raises a `ModelError` that says what went wrong and
what to set. A stream is read event by event from the wire, since the SDK's own accumulator completes cut tool arguments
silently and cannot tell a stream that ended from one that was cut. Blocks of types that are not known here pass through
unharmed, to be sent back as they came.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import anthropic
import httpx2

from caveat import model_faults, offline
from caveat_tools.clock import Clock
from caveat_tools.faults import FaultPlan
from caveat_tools.http import retry_after
from caveat_tools.plain_text import one_line, plain
from caveat_tools.retry import RecoverableError, RetryPolicy, Waiting, with_retries
from caveat_tools.transport import stacked

DEFAULT_MODEL: Final = "claude-sonnet-5-5"
MAX_OUTPUT_TOKENS: Final = 8_192
STALL_SECONDS: Final = 120.0
TURN_SECONDS: Final = 600.0
MAX_ANSWER_BYTES: Final = 20_000_000
POLICY: Final = RetryPolicy(attempts=4, first_wait=1.0, longest_wait=20.0, deadline=120.0)

ModelErrorKind: TypeAlias = Literal[
    "timeout",
    "unavailable",
    "overloaded",
    "rate_limited",
    "malformed",
    "refused_key",
    "billing",
    "unknown_model",
    "request",
]
Message: TypeAlias = dict[str, Any]
Block: TypeAlias = dict[str, Any]


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

    `content` is as the server sent it, ready to be sent back. `broken` maps the id of each tool_use whose arguments
    were cut or are not a JSON object to the reason; such a call must not be executed. `tokens` counts input and output.
    """

    content: list[Block]
    stop_reason: str
    broken: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0

    @property
    def tool_uses(self) -> list[Block]:
        """The tool_use blocks, in order."""
        return [block for block in self.content if block["type"] == "tool_use"]

    @property
    def text(self) -> str:
        """All text blocks, joined."""
        return "\n".join(block["text"] for block in self.content if block["type"] == "text")


@dataclass
class Usage:
    """What was used so far. Input tokens include those read from and written to the prompt cache."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, usage: Any) -> int:
        """Count one turn's `usage` object, whatever of it is there; return its tokens in all."""
        counts = usage if isinstance(usage, dict) else {}
        inputs = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        read, written = sum(_count(counts.get(name)) for name in inputs), _count(counts.get("output_tokens"))
        self.input_tokens += read
        self.output_tokens += written
        return read + written


class Model:
    """A model behind a Messages API. One client, reused; concurrent turns are fine."""

    def __init__(
        self,
        name: str,
        client: anthropic.AsyncAnthropic,
        *,
        clock: Clock,
        policy: RetryPolicy = POLICY,
        is_offline: bool = False,
        on_wait: Callable[[Waiting], None] = lambda _: None,
    ) -> None:
        """`name` is sent as `model`; `on_wait` hears of every retry."""
        self.name = name
        self.is_offline = is_offline
        self.usage = Usage()
        self._client = client
        self._clock = clock
        self._policy = policy
        self._on_wait = on_wait

    async def turn(self, system: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        """Send the conversation and return the next turn, complete, after local retries.

        Raises ModelError. Any other exception is a bug or a cassette miss.
        """
        return await with_retries(
            lambda: self._once(system, messages, tools), policy=self._policy, clock=self._clock, on_wait=self._on_wait
        )

    def for_one_run(self) -> Model:
        """Return the same model over the same connections, with a count of its own."""
        return Model(
            self.name,
            self._client,
            clock=self._clock,
            policy=self._policy,
            is_offline=self.is_offline,
            on_wait=self._on_wait,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _once(self, system: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        self.usage.calls += 1
        deadline = asyncio.timeout(TURN_SECONDS)
        try:
            async with deadline:
                message = await self._message(system, messages, tools)
        except ModelError as error:
            if self.is_offline:
                error.message = f"the embedded stand-in was made to fail: {error.kind}"
            raise
        except TimeoutError:
            if not deadline.expired():
                raise
            raise ModelError(
                "timeout", f"the model took longer than {TURN_SECONDS:.0f} s for a turn", retryable=True
            ) from None
        return _turn(message, self.usage.add(message.get("usage")))

    async def _message(self, system: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        request: dict[str, Any] = {
            "model": self.name,
            "max_tokens": MAX_OUTPUT_TOKENS,
            "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
            "messages": list(messages),
            "tools": list(tools),
            "cache_control": {"type": "ephemeral"},
            "stream": True,
        }
        try:
            async with self._client.messages.with_streaming_response.create(**request) as response:
                return await self._read(response.http_response)
        except anthropic.APIStatusError as error:
            raise self._status_error(error) from error
        except anthropic.APIConnectionError as error:
            cause = error.__cause__
            if isinstance(cause, httpx2.RequestError):
                raise self._request_error(cause) from error
            raise cause or error from None  # a bug or a cassette miss that the SDK has wrapped
        except httpx2.RequestError as error:
            raise self._request_error(error) from error

    async def _read(self, response: httpx2.Response) -> Message:
        kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind == "text/event-stream":
            return await _assembled(anthropic.AsyncStream.raw_events(response))
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise ModelError("malformed", "the model's answer is larger than any message", retryable=False)
        try:
            message = _parsed(body.decode())
        except (ValueError, RecursionError):
            what = "a web page" if body.lstrip()[:1] == b"<" else "something that is not JSON"
            raise self._not_the_api(what) from None
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            raise self._not_the_api("JSON that is not a message")
        return message

    def _not_the_api(self, what: str) -> ModelError:
        hint = f"{self._client.base_url} answered with {what}; check that ANTHROPIC_BASE_URL names a Messages API"
        return ModelError("malformed", hint, retryable=True)

    def _request_error(self, error: httpx2.RequestError) -> ModelError:
        where = self._client.base_url
        if isinstance(error, httpx2.UnsupportedProtocol):
            return ModelError(
                "request", f"ANTHROPIC_BASE_URL must begin with http:// or https://: {where}", retryable=False
            )
        if isinstance(error, httpx2.ConnectError):
            hint = f"nothing answers at {where}; check the network, or set ANTHROPIC_BASE_URL to a server that runs"
            return ModelError("unavailable", hint, retryable=True)
        if isinstance(error, httpx2.TimeoutException):
            return ModelError("timeout", f"{where} did not answer in time; try again later", retryable=True)
        return ModelError(
            "unavailable", f"the connection to {where} broke: {one_line(str(error), 200)}", retryable=True
        )

    def _status_error(self, error: anthropic.APIStatusError) -> ModelError:
        said = one_line(str(error.api_message or error.message), 300)
        status, headers = error.status_code, error.response.headers
        patience = retry_after(headers, self._clock.now())
        if status in {401, 403}:
            hint = f"the key was refused ({said}); set ANTHROPIC_API_KEY to a valid key, or use --offline"
            return ModelError("refused_key", hint, retryable=False)
        if status == 402 or error.type == "billing_error" or (error.error_code or "").endswith("spend_limit_reached"):
            return ModelError(
                "billing", f"the account's limit is reached ({said}); raise it or use --offline", retryable=False
            )
        if status == 404:
            hint = f"{self._client.base_url} knows no model {self.name!r} ({said}); set --model or ANTHROPIC_BASE_URL"
            return ModelError("unknown_model", hint, retryable=False)
        may_pass = headers.get("x-should-retry") != "false"
        if status == 429:
            hint = f"the model's rate limit is reached ({said}); try again later"
            return ModelError("rate_limited", hint, retryable=may_pass, retry_after_seconds=patience)
        if status in {408, 409} or status >= 500:
            hint = f"the model answered with status {status} ({said}); try again later"
            kind: ModelErrorKind = "overloaded" if status == 529 else "unavailable"
            return ModelError(kind, hint, retryable=may_pass, retry_after_seconds=patience)
        return ModelError("request", f"the model refused the request with status {status} ({said})", retryable=False)


@asynccontextmanager
async def open_model(
    *,
    clock: Clock,
    faults: FaultPlan,
    name: str | None = None,
    force_offline: bool = False,
    environ: Mapping[str, str] | None = None,
    on_wait: Callable[[Waiting], None] = lambda _: None,
) -> AsyncIterator[Model]:
    """Yield the model that the environment asks for; without a key or a base URL, the embedded one.

    `name` overrides CAVEAT_MODEL, which overrides DEFAULT_MODEL. Raises ModelError where key or address cannot be used.
    """
    environ = os.environ if environ is None else environ
    is_offline = force_offline or not any(environ.get(name) for name in _MEANS_HOSTED)
    name = offline.MODEL_NAME if is_offline else _checked_name(name or environ.get("CAVEAT_MODEL") or DEFAULT_MODEL)
    settings = _OFFLINE_SETTINGS if is_offline else _checked_settings(environ)
    inner: httpx2.AsyncBaseTransport = offline.transport() if is_offline else httpx2.AsyncHTTPTransport()
    http = httpx2.AsyncClient(
        transport=stacked(inner, faults, "model", model_faults.ANSWERS),
        timeout=httpx2.Timeout(STALL_SECONDS, connect=10.0),
        follow_redirects=True,
        event_hooks={"response": [read_as_utf8]},
        headers={"accept-encoding": "identity"},
    )
    try:
        client = anthropic.AsyncAnthropic(http_client=http, max_retries=0, **settings)
    except anthropic.AnthropicError as error:
        await http.aclose()
        hint = f"the key cannot be used: {one_line(str(error), 300)}"
        raise ModelError("refused_key", hint, retryable=False) from error
    model = Model(name, client, clock=clock, is_offline=is_offline, on_wait=on_wait)
    try:
        yield model
    finally:
        await model.aclose()


_OFFLINE_SETTINGS: Final[dict[str, Any]] = {"api_key": "none", "base_url": "http://caveat.invalid"}


def _checked_name(name: str) -> str:
    if not plain(name) == name.strip() == name:
        raise ModelError("request", "the model's name holds characters that no name has; see --model", retryable=False)
    return name


def _checked_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return key and address for the SDK. Raises ModelError where they cannot be ones."""
    for variable in _MEANS_KEY:
        if not environ.get(variable, "").isascii() or not environ.get(variable, "x").isprintable():
            hint = f"{variable} holds characters that no key has; copy the key again"
            raise ModelError("refused_key", hint, retryable=False)
    settings: dict[str, Any] = {
        "api_key": environ.get("ANTHROPIC_API_KEY") or None,
        "auth_token": environ.get("ANTHROPIC_AUTH_TOKEN") or None,
        "base_url": environ.get("ANTHROPIC_BASE_URL") or None,
    }
    if not any(environ.get(name) for name in _MEANS_KEY):
        settings["api_key"] = "none"
    try:
        port = httpx2.URL(settings["base_url"] or "").port
    except httpx2.InvalidURL as error:
        raise ModelError("request", f"ANTHROPIC_BASE_URL is not an address: {error}", retryable=False) from error
    if port is not None and not 0 < port < 65_536:
        raise ModelError("request", f"ANTHROPIC_BASE_URL names a port that does not exist: {port}", retryable=False)
    return settings


async def read_as_utf8(response: httpx2.Response) -> None:
    """A response hook: JSON and events are UTF-8, and a charset that is none (rot13) would raise in the SDK."""
    response.encoding = "utf-8"


_MEANS_KEY = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE")
_MEANS_HOSTED = (*_MEANS_KEY, "ANTHROPIC_BASE_URL")


async def _assembled(events: AsyncIterator[Any]) -> Message:
    """Put a streamed message together. Raises ModelError for an error event, a malformed event or a cut stream."""
    assembly, size = _Assembly(), 0
    try:
        async for event in events:
            size += len(event.data)
            if size > MAX_ANSWER_BYTES:
                raise ModelError("malformed", "the model's answer is larger than any message", retryable=False)
            if event.data:
                assembly.add(_parsed(event.data))
            if assembly.stopped:
                break
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            "malformed", "the model's stream holds an event that makes no sense", retryable=True
        ) from error
    if not assembly.stopped:
        raise ModelError("malformed", "the model's stream ended before the message did", retryable=True)
    return assembly.message


class _Assembly:
    """A message under construction. Source of the event forms: the Messages API's streaming reference."""

    def __init__(self) -> None:
        self.message: Message = {}
        self.stopped = False
        self._arguments: dict[int, str] = {}

    def add(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "message_start":
                self.message = dict(event["message"])
                self.message["content"] = list(self.message["content"])
            case "content_block_start":
                self.message["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                self._extend(event["index"], event["delta"])
            case "message_delta":
                delta = event["delta"]
                self.message |= {name: delta[name] for name in ("stop_reason", "stop_sequence") if name in delta}
                self.message["usage"] = {**(self.message.get("usage") or {}), **(event.get("usage") or {})}
            case "message_stop":
                for index, text in self._arguments.items():
                    self.message["content"][index]["input"] = text
                self.stopped = True
            case "error":
                raise _stream_error(event.get("error") or {})
            case _:
                pass  # ping, content_block_stop, and events that do not exist yet

    def _extend(self, index: int, delta: dict[str, Any]) -> None:
        block = self.message["content"][index]
        if delta["type"] == "input_json_delta":
            self._arguments[index] = self._arguments.get(index, "") + delta["partial_json"]
        elif delta["type"] == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        else:
            for name, value in delta.items():
                if name != "type":
                    before = block.get(name)
                    block[name] = before + value if isinstance(before, str) and isinstance(value, str) else value


def _stream_error(error: dict[str, Any]) -> ModelError:
    kind = error.get("type")
    said = f"the model broke off with {one_line(str(kind), 60)}: {one_line(str(error.get('message', '')), 200)}"
    passing: dict[Any, ModelErrorKind] = {
        "overloaded_error": "overloaded",
        "rate_limit_error": "rate_limited",
        "api_error": "unavailable",
        "timeout_error": "timeout",
    }
    return ModelError(passing.get(kind, "request"), said, retryable=kind in passing)


def _turn(message: Message, tokens: int) -> Turn:
    """Check a complete message. Raises ModelError, retryable, where it cannot be one."""
    stop_reason = message.get("stop_reason")
    if not isinstance(stop_reason, str):
        raise _senseless("has no stop_reason")
    if not isinstance(message.get("content"), list):
        raise _senseless("has no content")
    content: list[Block] = []
    broken: dict[str, str] = {}
    for raw in message["content"]:
        block, reason = _checked(raw)
        if block["type"] == "tool_use":
            if any(block["id"] == other.get("id") for other in content):
                raise _senseless("uses the id of a tool_use twice")
            if reason:
                broken[block["id"]] = reason
        if block["type"] != "text" or block["text"].strip():  # the API refuses blank text when it is sent back
            content.append(block)
    if stop_reason in _CUT and content and content[-1]["type"] == "tool_use":
        broken[content[-1]["id"]] = "the call was cut off by the output limit and not executed; send it again, shorter"
    return Turn(content, stop_reason, broken, tokens)


_CUT: Final = frozenset({"max_tokens", "model_context_window_exceeded"})
"""Stop reasons after which the last tool_use may be half of one, even where it parses."""


def _checked(block: Any) -> tuple[Block, str | None]:
    """Return a content block fit to be sent back, and why its arguments cannot be used, if so."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise _senseless("holds a block without a type")
    if block["type"] == "text" and not isinstance(block.get("text"), str):
        raise _senseless("holds a text block without text")
    if block["type"] == "tool_use":
        if not (isinstance(block.get("name"), str) and isinstance(block.get("id"), str) and block["id"]):
            raise _senseless("holds a tool_use without name or id")
        return _with_arguments(block)
    return (_with_arguments(block)[0] if isinstance(block.get("input"), str) else block), None


def _senseless(what: str) -> ModelError:
    return ModelError("malformed", f"the model's message {what}", retryable=True)


def _with_arguments(block: Block) -> tuple[Block, str | None]:
    """Return the block with `input` as an object, and why it is not the model's, if so."""
    value = block.get("input")
    if isinstance(value, str):
        try:
            value = _parsed(value) if value else {}
        except (ValueError, RecursionError) as error:
            return {**block, "input": {}}, f"the arguments are not valid JSON: {error}"
    if not isinstance(value, dict):
        return {**block, "input": {}}, "the arguments are not a JSON object"
    return {**block, "input": value}, None


def _parsed(text: str) -> Any:
    """Parse JSON into what can be sent back: no NaN, no infinity, no half of a surrogate pair. Raises ValueError."""

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"{digits[:20]} is no number that JSON can hold")
        return value

    value = json.loads(text, parse_float=number, parse_constant=number)
    if re.search(r"\\u[dD][89a-fA-F]", text):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
