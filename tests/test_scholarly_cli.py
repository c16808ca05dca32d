"""The scholarly sources through `caveat ask`: answers, injected faults, wrong addresses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caveat.cli import main
from caveat.settings import read_settings
from caveat_tools.clock import FakeClock
from caveat_tools.faults import parse_faults
from caveat_tools.pace import SHARED, Pace
from caveat_tools.source import Ask, SourceError
from caveat_tools.sources import open_source
from scholarly import TEAS, FakeArxiv, FakeCrossref, FakeOpenAlex, Work
from servers import LocalServer, Request, Step

QUESTION = "How do leaves of Kamairi taste?"
SENTENCE = "We roast leaves of Kamairi in an iron pan & measure their taste."
KAMAIRI = Work("On Kamairi", SENTENCE, doi="10.5555/Kamairi", arxiv="2005.12345v2")
SOURCES = ("openalex", "arxiv", "crossref")

Servers = dict[str, LocalServer]
Asked = Callable[..., tuple[Result, dict[str, Any]]]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Servers]:
    """The three services on this machine, and nobody else's key or cache."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CAVEAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CAVEAT_CONTACT", "ada@example.org")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    works = (KAMAIRI, *TEAS)
    fakes: dict[str, Step] = {
        "openalex": FakeOpenAlex(works),
        "arxiv": FakeArxiv(works),
        "crossref": FakeCrossref(works),
    }
    with ExitStack() as stack:
        running = {name: stack.enter_context(LocalServer(fake)) for name, fake in fakes.items()}
        for name, server in running.items():
            monkeypatch.setenv(f"CAVEAT_{name.upper()}_URL", server.url)
        yield running


@pytest.fixture
def ask() -> Asked:
    """Ask the question, and return the result with the report as data."""

    def run(sources: str, inject: str = "", question: str = QUESTION) -> tuple[Result, dict[str, Any]]:
        arguments = ["ask", question, "--sources", sources, "--json", "-", "--quiet"]
        result = CliRunner().invoke(main, [*arguments, *(["--inject", inject] if inject else [])])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result, json.loads(result.stdout) if result.stdout else {}

    return run


def queries(report: dict[str, Any], source: str) -> list[tuple[str, str | None, int]]:
    return [
        (query["status"], query["errorType"], query["attempts"])
        for topic in report["topics"]
        for query in topic["queries"]
        if query["source"] == source
    ]


@pytest.mark.parametrize("name", SOURCES)
def test_a_question_is_answered_with_a_quote_from_an_abstract(servers: Servers, ask: Asked, name: str) -> None:
    """The request names the tool and the person to write to."""
    result, report = ask(name)
    assert result.exit_code == 0
    assert SENTENCE in report["answer"].replace("\\", "").replace("&amp;", "&")
    assert {source["source"] for source in report["sources"]} == {name}
    request: Request = servers[name].requests[0]
    assert request.headers["user-agent"].startswith("caveat/")
    assert "ada@example.org" in request.headers["user-agent"]
    assert "ada@example.org" in {request.query.get("mailto"), request.headers.get("from")}


@pytest.mark.parametrize("name", SOURCES)
def test_time_outs_that_retries_mend_are_found(servers: Servers, ask: Asked, name: str) -> None:
    """`--inject NAME:timeout*2`."""
    result, report = ask(name, f"{name}:timeout*2")
    assert result.exit_code == 0
    assert ("found", None, 3) in queries(report, name)
    assert servers[name].requests


@pytest.mark.parametrize("name", SOURCES)
def test_an_injected_empty_is_the_services_own_answer(servers: Servers, ask: Asked, name: str) -> None:
    """`--inject NAME:empty`: nothing found, and no gap."""
    result, report = ask(name, f"{name}:empty")
    assert result.exit_code == 0
    assert {(status, error) for status, error, _ in queries(report, name)} == {("empty", None)}
    assert not servers[name].requests


FAULTS = {
    "timeout": "timeout",
    "refused": "unavailable",
    "cut": "malformed_response",
    "html": "unavailable",
    "badjson": "malformed_response",
    "400": "invalid_query",
    "403": "access_denied",
    "404": "unavailable",
    "429": "rate_limited",
    "503": "unavailable",
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_becomes_the_error_type_that_the_real_one_has(servers: Servers, name: str, fault: str) -> None:
    """Nothing reaches the service, and nothing is taken for "no match"."""
    faults = parse_faults(f"{name}:{fault}", SOURCES)
    settings = read_settings()[0].for_sources()
    async with open_source(name, settings, faults=faults, clock=FakeClock()) as source:
        with pytest.raises(SourceError) as caught:
            await source.page(Ask("tea"), None)
    assert caught.value.error_type == FAULTS[fault]
    assert not servers[name].requests


def test_a_fault_that_stays_is_a_gap_and_the_other_sources_are_asked(servers: Servers, ask: Asked) -> None:
    """Exit code 3, after three attempts."""
    result, report = ask("arxiv,crossref", "arxiv:503")
    assert result.exit_code == 3
    assert ("failed", "unavailable", 3) in queries(report, "arxiv")
    assert {gap["source"] for gap in report["gaps"]} == {"arxiv"}
    assert {source["source"] for source in report["sources"]} == {"crossref"}
    assert not servers["arxiv"].requests


def test_the_pace_of_the_process_is_kept_and_a_wait_is_told(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses the clock of the process, and so its pace."""
    monkeypatch.setitem(SHARED, "127.0.0.1", Pace(2))
    result = CliRunner().invoke(main, ["ask", QUESTION, "--sources", "arxiv", "--inject", "arxiv:503*1"])
    assert result.stderr.count("” arxiv is asked by turns; waiting") == 1  # a retry is another request
    assert len(servers["arxiv"].requests) == 1


@pytest.mark.parametrize("name", SOURCES)
def test_an_address_that_is_none_is_refused_with_its_variable(
    servers: Servers, ask: Asked, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before anything is spent."""
    assert servers
    monkeypatch.setenv(f"CAVEAT_{name.upper()}_URL", "ftp://example.org/")
    result, _ = ask(name)
    assert result.exit_code == 2
    assert f"CAVEAT_{name.upper()}_URL" in result.stderr


def test_a_source_that_does_not_exist_is_answered_with_those_that_do(servers: Servers, ask: Asked) -> None:
    """With the one that was probably meant."""
    assert servers
    result, _ = ask("arxive")
    assert result.exit_code == 2
    assert "did you mean arxiv" in result.stderr
