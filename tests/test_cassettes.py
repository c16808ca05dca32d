"""Five practical situations, each a whole session with a capable model, replayed with the network blocked.

The model's turns were written from the requests alone (see cassettes/README.md); what is asserted here is what the
model was shown, what it did after each failure, and what the report says of it.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
from vcr.errors import CannotOverwriteExistingCassetteException

from caveat.budget import Limits
from recorded import RECORDING, Played, Session, cassette, play

BRIDGE = {
    "Mirna gorge footbridge": (
        "The Mirna gorge footbridge is a pedestrian bridge near the village of Orlec. The present bridge was opened on "
        "9 October 2021 and is 48 metres long.\n\nIt replaced a wooden bridge of 1974."
    ),
    "Orlec": "Orlec is a village of 340 people above the Mirna gorge. It has a co-operative bakery.",
}
QUESTION = "When was the present footbridge over the Mirna gorge at Orlec opened?"

SESSIONS = {
    "timeout_then_changed_query": Session(QUESTION, articles=BRIDGE, inject="wikipedia:timeout*3"),
    "valid_empty_result": Session("What is the toll for crossing the Halsund ferry at Orlec?", articles=BRIDGE),
    "local_retry_succeeds": Session(QUESTION, articles=BRIDGE, inject="wikipedia:503*2"),
    "alternative_source": Session(
        f"Look into Wikipedia first, and into my notes if you must. {QUESTION}",
        sources=("wikipedia", "local"),
        articles=BRIDGE,
        inject="wikipedia:refused",
        limits=Limits(calls_per_turn=1),
    ),
    "dead_source": Session(QUESTION, articles=BRIDGE, inject="wikipedia:503"),
}
INTERACTIONS = {
    "timeout_then_changed_query": 8,
    "valid_empty_result": 5,
    "local_retry_succeeds": 6,
    "alternative_source": 7,
    "dead_source": 9,
}
"""Requests to the model and to the source; an injected failure is one, too."""


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection that is not to this machine's own servers; replays need none at all."""

    def refuse(_self: socket.socket, address: Any) -> NoReturn:
        raise AssertionError(f"a replay must not connect to {address}")

    if not RECORDING:
        monkeypatch.setattr(socket.socket, "connect", refuse)


async def played(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Play a session and check that it used all of its cassette, no more and no less."""
    session = await play(name, SESSIONS[name], tmp_path, monkeypatch)
    if RECORDING:
        print(name, len(session.cassette))
    else:
        assert session.cassette.all_played
        assert len(session.cassette) == session.cassette.play_count == INTERACTIONS[name]
    return session


@pytest.mark.usefixtures("_no_network")
async def test_a_time_out_reaches_the_coordinator_and_it_asks_again_with_a_changed_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure arrives with its context, the next query to the source is another one, the answer is covered."""
    session = await played("timeout_then_changed_query", tmp_path, monkeypatch)
    failed = session.tool_results[0]
    assert (failed["errorType"], failed["attempts"], failed["isRetryable"]) == ("timeout", 3, True)
    assert "simplify_query" in failed["alternativeApproaches"]
    first = session.report.topics[0].queries[0]
    assert (first.status, first.next) == ("failed", "retried_changed")
    assert session.report.topics[0].state == "covered"
    assert "9 October 2021" in session.report.markdown
    assert session.report.exit_code == 0


@pytest.mark.usefixtures("_no_network")
async def test_a_valid_empty_result_is_told_apart_from_a_failure_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No query is sent twice, nothing is an error, and the report says where it looked and that this proves nothing."""
    session = await played("valid_empty_result", tmp_path, monkeypatch)
    assert "failed" not in {outcome["status"] for outcome in session.tool_results}
    empty = [outcome["query"].casefold() for outcome in session.tool_results if outcome["status"] == "empty"]
    assert empty
    assert len(empty) == len(set(empty))
    assert {topic.state for topic in session.report.topics} == {"searched_empty"}
    assert "Looked for, and not there" in session.report.markdown
    assert session.report.exit_code == 0


@pytest.mark.usefixtures("_no_network")
async def test_a_local_retry_that_succeeds_never_reaches_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two 503 answers are mended by the retry layer; the coordinator sees a plain found."""
    session = await played("local_retry_succeeds", tmp_path, monkeypatch)
    statuses = [response["status"]["code"] for response in session.cassette.responses]
    assert statuses.count(503) == 2
    assert {outcome["status"] for outcome in session.tool_results} <= {"found", "empty"}
    assert session.report.topics[0].queries[0].attempts == 3
    assert session.report.topics[0].state == "covered"
    assert session.report.gaps == ()


@pytest.mark.usefixtures("_no_network")
async def test_a_failure_that_survives_local_retries_ends_in_another_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wikipedia refuses three times; the coordinator goes to the notes, finds the answer, and the gap stays named."""
    session = await played("alternative_source", tmp_path, monkeypatch)
    first = session.report.topics[0].queries[0]
    assert (first.source, first.error_type, first.attempts, first.next) == (
        "wikipedia",
        "unavailable",
        3,
        "alternative",
    )
    assert session.report.topics[0].state == "partial"
    assert {claim.verified for claim in session.report.claims} == {True}
    assert {source.source for source in session.report.sources} == {"local"}
    assert [gap.source for gap in session.report.gaps] == ["wikipedia"]
    assert session.report.exit_code == 3


@pytest.mark.usefixtures("_no_network")
async def test_a_source_that_stays_dead_gives_a_report_that_marks_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing else to ask, the topic could not be searched: no claim, no guess, a gap with its reason."""
    session = await played("dead_source", tmp_path, monkeypatch)
    assert {outcome["status"] for outcome in session.tool_results} == {"failed"}
    assert {topic.state for topic in session.report.topics} == {"failed"}
    assert session.report.claims == ()
    assert "could not be searched" in session.report.markdown
    assert "2021" not in session.report.answer.replace(QUESTION, "")
    assert session.report.exit_code == 3


@pytest.mark.skipif(RECORDING, reason="replays only")
@pytest.mark.usefixtures("_no_network")
async def test_a_stale_cassette_ends_the_run_and_is_no_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was never recorded is not reported as a model or a source that failed."""
    other = Session("Another question altogether?", articles=BRIDGE)
    with pytest.raises(CannotOverwriteExistingCassetteException):
        await play("dead_source", other, tmp_path, monkeypatch)


@pytest.mark.skipif(RECORDING, reason="replays only")
@pytest.mark.parametrize("name", SESSIONS)
def test_no_cassette_holds_a_key_or_the_address_of_a_machine(name: str) -> None:
    """Headers of requests are not recorded at all, and of responses only what a replay needs."""
    with cassette(name) as tape:
        assert len(tape) == INTERACTIONS[name]
        for request in tape.requests:
            assert request.headers == {}
            assert request.host in {"model.invalid", "source.invalid"}
        for response in tape.responses:
            assert "set-cookie" not in {header.lower() for header in response["headers"]}
