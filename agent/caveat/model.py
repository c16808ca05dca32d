"""The only module that talks to a Messages API: requests, retries, errors, usage.

`Model.turn` sends one request and returns one complete turn (`turn.py`), or raises a `ModelError` that says what went
wrong and what to set.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, cast

import anthropic
import httpx2

from caveat import offline
from caveat.budget import Usage
from caveat.model_http import STALL_SECONDS, WholeEvents, http_client
from caveat.prices import price_of
from caveat.settings import KEY_VARIABLES, Settings
from caveat.turn import (
    Message,
    ModelError,
    ModelErrorKind,
    Turn,
    assembled,
    checked_turn,
    context_full,
    is_context_full,
    parsed_json,
)
from caveat_tools.clock import Clock
from caveat_tools.faults import FaultPlan
from caveat_tools.http import retry_after
from caveat_tools.network import NetworkError, NetworkTransport, is_address, without_password
from caveat_tools.plain_text import one_line, plain
from caveat_tools.retry import RetryPolicy, Waiting, with_retries

MAX_OUTPUT_TOKENS: Final = 8_192
TURN_SECONDS: Final = 600.0
POLICY: Final = RetryPolicy(attempts=4, first_wait=1.0, longest_wait=20.0, deadline=120.0)


class Model:
    """A model behind a Messages API. One client, reused; concurrent turns are fine."""

    def __init__(
        self,
        name: str,
        client: anthropic.AsyncAnthropic,
        *,
        clock: Clock,
        policy: RetryPolicy = POLICY,
        turn_seconds: float = TURN_SECONDS,
        is_offline: bool = False,
        on_wait: Callable[[Waiting], None] = lambda _: None,
        faults: FaultPlan | None = None,
    ) -> None:
        """`name` is sent as `model`, and is what its price is looked up by; a turn may take `turn_seconds`; `on_wait`
        hears of every retry; `faults` are those of the client's transport.

        `answered_by` is the name that the server gives: a local one answers with what it has, whatever is asked for.
        """
        self.name = name
        self.answered_by = name
        self.is_offline = is_offline
        self.usage = Usage(None if is_offline else price_of(name))
        self._client = client
        self._clock = clock
        self._policy = policy
        self._turn_seconds = turn_seconds
        self._on_wait = on_wait
        self._faults = faults or FaultPlan()

    async def turn(self, system: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        """Send the conversation and return the next turn, complete, after local retries.

        Raises ModelError. Any other exception is a bug or a cassette miss.
        """
        own = Usage(self.usage.price)
        turn = await with_retries(
            lambda: self._once(system, messages, tools, own),
            policy=self._policy,
            clock=self._clock,
            on_wait=self._on_wait,
        )
        return replace(turn, spent=own.spent())

    def recall(self, turn: Turn) -> None:
        """Count a turn that this model gave in an earlier life of the run, and the faults that it met."""
        self.usage.include(turn.spent)
        self.answered_by = turn.answered_by
        self._faults.skip("model", turn.spent.calls)

    def for_one_run(self) -> Model:
        """Return the same model over the same connections, with a count of its own."""
        return Model(
            self.name,
            self._client,
            clock=self._clock,
            policy=self._policy,
            turn_seconds=self._turn_seconds,
            is_offline=self.is_offline,
            on_wait=self._on_wait,
            faults=self._faults,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _once(
        self, system: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]], own: Usage
    ) -> Turn:
        """Ask once, and count it in the run's usage and in the turn's `own`."""
        self.usage.calls += 1
        own.calls += 1
        deadline = asyncio.timeout(self._turn_seconds)
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
            hint = f"the model took longer than {self._turn_seconds:.0f} s for a turn; use a faster model or machine"
            raise ModelError("timeout", hint, retryable=True) from None
        said = message.get("model")
        self.answered_by = one_line(said, 200) if isinstance(said, str) and said else self.name
        price = price_of(self.answered_by)
        own.add(message.get("usage"), price)
        turn = checked_turn(message, self.usage.add(message.get("usage"), price))
        return replace(turn, answered_by=self.answered_by)

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
            return await assembled(anthropic.AsyncStream.raw_events(cast("httpx2.Response", WholeEvents(response))))
        body = await response.aread()
        try:
            message = parsed_json(body.decode())
        except (ValueError, RecursionError):
            what = "a web page" if body.lstrip()[:1] == b"<" else "something that is not JSON"
            raise self._not_the_api(what) from None
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            raise self._not_the_api("JSON that is not a message")
        return message

    @property
    def _where(self) -> str:
        return without_password(str(self._client.base_url))

    def _not_the_api(self, what: str) -> ModelError:
        hint = f"{self._where} answered with {what}; check that ANTHROPIC_BASE_URL names a Messages API"
        return ModelError("malformed", hint, retryable=True)

    def _request_error(self, error: httpx2.RequestError) -> ModelError:
        where = self._where
        if isinstance(error, httpx2.UnsupportedProtocol):
            return ModelError(
                "request", f"ANTHROPIC_BASE_URL must begin with http:// or https://: {where}", retryable=False
            )
        if isinstance(error, httpx2.ProxyError):
            hint = f"{one_line(str(error), 200)}; check HTTPS_PROXY, or name {self._client.base_url.host} in NO_PROXY"
            return ModelError("unavailable", hint, retryable=True)
        if isinstance(error, httpx2.ConnectError):
            hint = f"nothing answers at {where}; check the network, or set ANTHROPIC_BASE_URL to a server that runs"
            return ModelError("unavailable", hint, retryable=True)
        if isinstance(error, httpx2.ReadTimeout):
            hint = f"{where} sent nothing for {STALL_SECONDS:.0f} s; try again later, or use a faster model or machine"
            return ModelError("timeout", hint, retryable=True)
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
            where = self._where
            what = f"no model {self.name!r}, or no Messages API"
            hint = f"{where} knows {what} ({said}); set --model or ANTHROPIC_BASE_URL"
            return ModelError("unknown_model", hint, retryable=False)
        if is_context_full(error.type, _code(error.body), said):
            return context_full(error.type, said)
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
    settings: Settings,
    *,
    clock: Clock,
    faults: FaultPlan,
    policy: RetryPolicy = POLICY,
    on_wait: Callable[[Waiting], None] = lambda _: None,
) -> AsyncIterator[Model]:
    """Yield the model of the settings; without a key in the environment or an address, the embedded one.

    Raises ModelError where key, address or proxy cannot be used.
    """
    is_offline = not asks_a_server(settings)
    name = offline.MODEL_NAME if is_offline else _checked_name(settings.model)
    access = _OFFLINE_ACCESS if is_offline else _checked_access(settings.base_url)
    try:
        inner = offline.transport() if is_offline else NetworkTransport()
    except NetworkError as error:
        raise ModelError("request", str(error), retryable=False) from error
    http = http_client(inner, faults)
    try:
        client = anthropic.AsyncAnthropic(http_client=http, max_retries=0, **access)
    except anthropic.AnthropicError as error:
        await http.aclose()
        hint = f"the key cannot be used: {one_line(str(error), 300)}"
        raise ModelError("refused_key", hint, retryable=False) from error
    model = Model(name, client, clock=clock, policy=policy, is_offline=is_offline, on_wait=on_wait, faults=faults)
    try:
        yield model
    finally:
        await model.aclose()


_OFFLINE_ACCESS: Final[dict[str, Any]] = {"api_key": "none", "base_url": "http://caveat.invalid"}


def _checked_name(name: str) -> str:
    if not plain(name) == name.strip() == name:
        raise ModelError("request", "the model's name holds characters that no name has; see --model", retryable=False)
    return name


def asks_a_server(settings: Settings) -> bool:
    """Say whether a Messages API is asked, and not the embedded stand-in: there is a key or an address."""
    has_access = bool(settings.base_url) or any(os.environ.get(name) for name in KEY_VARIABLES)
    return has_access and not settings.offline


def _checked_access(base_url: str | None) -> dict[str, Any]:
    """Return key and address for the SDK. Raises ModelError where they cannot be ones."""
    for variable in KEY_VARIABLES:
        if not os.environ.get(variable, "").isascii() or not os.environ.get(variable, "x").isprintable():
            hint = f"{variable} holds characters that no key has; copy the key again"
            raise ModelError("refused_key", hint, retryable=False)
    access: dict[str, Any] = {
        "api_key": os.environ.get("ANTHROPIC_API_KEY") or None,
        "auth_token": os.environ.get("ANTHROPIC_AUTH_TOKEN") or None,
        "base_url": base_url,
    }
    if not any(os.environ.get(name) for name in KEY_VARIABLES):
        access["api_key"] = "none"
    if base_url and not is_address(base_url):
        hint = f"ANTHROPIC_BASE_URL is {without_password(base_url)}, which is no address such as http://127.0.0.1:8080"
        raise ModelError("request", hint, retryable=False)
    return access


def _code(body: object) -> Any:
    """Return `error.code` of an error's body, which the SDK does not read."""
    error = body.get("error") if isinstance(body, dict) else None
    return error.get("code") if isinstance(error, dict) else None
