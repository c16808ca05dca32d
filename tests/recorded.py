"""Whole sessions on cassettes: recorded once against a model and local servers, replayed without a network.

`RECORD=1 pytest tests/test_cassettes.py` records (`make record`). The model is then the one that ANTHROPIC_API_KEY or
ANTHROPIC_BASE_URL names; the sources are local servers that behave as the services document.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import anthropic
import httpx2
import vcr
from vcr.request import Request

from caveat import Report, research
from caveat.budget import Limits
from caveat.model import Model
from caveat.settings import DEFAULT_MODEL
from caveat_tools.clock import FakeClock
from caveat_tools.faults import parse_faults
from caveat_tools.transport import stacked
from servers import FakeMediaWiki, LocalServer

RECORDING: Final = os.environ.get("RECORD") == "1"
CASSETTES: Final = Path(__file__).parent.parent / "cassettes"
NOTES: Final = Path(__file__).parent / "notes"
KEPT_HEADERS: Final = {
    "content-type",
    "retry-after",
    "mediawiki-api-error",
    "x-caveat-raise",
    "x-caveat-raise-after-body",
}


def model_name(tape: Any) -> str:
    """The model's name: on recording from the environment ("relay" behind another base URL), else as recorded."""
    if not RECORDING:
        return str(next(json.loads(r.body)["model"] for r in tape.requests if r.method == "POST"))
    return os.environ.get("CAVEAT_MODEL") or ("relay" if os.environ.get("ANTHROPIC_BASE_URL") else DEFAULT_MODEL)


@dataclass(frozen=True)
class Session:
    """What makes one recorded session: the question, the sources behind it, and the faults that were injected."""

    question: str
    sources: tuple[str, ...] = ("wikipedia",)
    articles: dict[str, str] = field(default_factory=dict)
    inject: str = ""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Played:
    """A session that was played: its report, what the model was shown, and the cassette."""

    report: Report
    requests: list[dict[str, Any]]
    cassette: Any

    @property
    def tool_results(self) -> list[dict[str, Any]]:
        """Every search outcome that the coordinator was shown, in order."""
        last = [r for r in self.requests if any(tool["name"] == "search" for tool in r["tools"])][-1]
        blocks = [b for m in last["messages"] if isinstance(m["content"], list) for b in m["content"]]
        bodies = [json.loads(b["content"]) for b in blocks if b["type"] == "tool_result"]
        return [body for body in bodies if body.get("status") in {"found", "empty", "failed"}]


def _digest(request: Any) -> tuple[Any, ...]:
    """What makes two requests the same: method, path, query and body, JSON with sorted keys. Host and port vary."""
    address = urlsplit(request.uri)
    body = request.body or b""
    canonical = json.dumps(json.loads(body), sort_keys=True) if body else ""
    return request.method, address.path, sorted(parse_qsl(address.query)), canonical


def _same_request(first: Any, second: Any) -> None:
    assert _digest(first) == _digest(second)


def _without_machine(request: Any) -> Any:
    """Keep what is asked; drop headers (they hold keys and versions) and the machine's own address."""
    address = urlsplit(request.uri)
    place = "model.invalid" if request.method == "POST" else "source.invalid"
    return Request(request.method, address._replace(scheme="http", netloc=place).geturl(), request.body, {})


def _without_traces(response: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in response["headers"].items() if name.lower() in KEPT_HEADERS}
    return {**response, "headers": kept}


@contextmanager
def cassette(name: str) -> Iterator[Any]:
    """Record or replay `cassettes/NAME.yaml`. A half recording is not written."""
    recorder = vcr.VCR(
        cassette_library_dir=str(CASSETTES),
        record_mode="all" if RECORDING else "none",
        match_on=["session"],
        decode_compressed_response=True,
        record_on_exception=False,
        before_record_request=_without_machine,
        before_record_response=_without_traces,
    )
    recorder.register_matcher("session", _same_request)
    if RECORDING:
        (CASSETTES / f"{name}.yaml").unlink(missing_ok=True)
    with recorder.use_cassette(f"{name}.yaml") as tape:
        yield tape


async def play(name: str, session: Session, home: Path, monkeypatch: Any) -> Played:
    """Play a session: live when recording, else from its cassette, faults included, without any server."""
    clock = FakeClock()
    requests: list[dict[str, Any]] = []
    with LocalServer(FakeMediaWiki(session.articles, host="wiki.example")) as wiki, cassette(name) as tape:
        monkeypatch.setenv("CAVEAT_WIKIPEDIA_URL", f"{wiki.url if RECORDING else 'http://127.0.0.1:9'}/w/api.php")
        settings: dict[str, Any] = {} if RECORDING else {"api_key": "none", "base_url": "http://model.invalid"}
        http = httpx2.AsyncClient(
            transport=stacked(_Watched(httpx2.AsyncHTTPTransport(), requests), parse_faults("", []), "model"),
            timeout=httpx2.Timeout(3_000.0),
        )
        async with anthropic.AsyncAnthropic(http_client=http, max_retries=0, **settings) as client:
            report = await research(
                session.question,
                sources=session.sources,
                docs=NOTES if "local" in session.sources else None,
                model=Model(model_name(tape), client, clock=clock),
                inject=session.inject if RECORDING else "",
                limits=session.limits,
                clock=clock,
                home=home,
                new_id=lambda: "recorded",
            )
    return Played(report, requests, tape)


class _Watched(httpx2.AsyncBaseTransport):
    """Remembers what the model was sent."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, requests: list[dict[str, Any]]) -> None:
        self._inner = inner
        self._requests = requests

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._requests.append(json.loads(await request.aread()))
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()
