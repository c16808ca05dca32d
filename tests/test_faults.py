"""The grammar of --inject, and that a fault acts where the real one does."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat.model import open_model
from caveat.turn import ModelError
from caveat_tools.clock import FakeClock
from caveat_tools.faults import FAULTS, GRAMMAR, MODEL_FAULTS, FaultSyntaxError, parse_faults
from caveat_tools.http import get_json
from caveat_tools.source import SourceError
from caveat_tools.transport import FaultTransport
from scripted import OFFLINE

SOURCES = ("wikipedia", "local")


def struck(spec: str, target: str, calls: int = 5) -> list[str | None]:
    plan = parse_faults(spec, SOURCES)
    return [plan.take(target) for _ in range(calls)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("wikipedia:timeout", ["timeout"] * 5),
        ("wikipedia:timeout*2", ["timeout", "timeout", None, None, None]),
        ("wikipedia:timeout@2", [None, "timeout", None, None, None]),
        ("wikipedia:timeout@1,wikipedia:429@2", ["timeout", "429", None, None, None]),
        ("*:503*1", ["503", None, None, None, None]),
        ("local:empty", [None] * 5),
        ("model:529", [None] * 5),
        ("", [None] * 5),
        (" wikipedia:timeout*1 , local:empty ", ["timeout", None, None, None, None]),
    ],
)
def test_the_grammar_says_which_calls_are_struck(spec: str, expected: list[str | None]) -> None:
    """Every call, the first N, only the N-th; several entries; every source."""
    assert struck(spec, "wikipedia") == expected


def test_a_star_strikes_every_source_but_not_the_model() -> None:
    """`*:refused` takes all sources down and leaves a model to report it."""
    assert struck("*:refused", "local", 1) == ["refused"]
    assert struck("*:refused", "model", 1) == [None]


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("wikipedia", "The form is"),
        ("wikipedia:", "The form is"),
        (":timeout", "The form is"),
        ("wikipedia:timeout*", "The form is"),
        ("wikipedia:timeout*x", "The form is"),
        ("wikipedia:timeout*0", "counted from 1"),
        ("wikipedia:timeout*٣", "The form is"),
        ("wikipedia:timeout*1000000", "at most 6 digits"),
        ("local:timeout@" + "9" * 5_000, "at most 6 digits"),
        ("wikipdia:timeout", "did you mean 'wikipedia'"),
        ("wikipedia:timeuot", "did you mean 'timeout'"),
        ("wikipedia:refusal", "unknown fault"),
        ("model:empty", "unknown fault"),
        ("subagent:1:crash", "no subagents"),
        ("wikipedia:timeout;local:empty", "unknown"),
        (",", "The form is"),
        ("wikipedia:timeout,", "The form is"),
    ],
)
def test_a_malformed_injection_says_what_is_wrong_and_what_is_possible(spec: str, hint: str) -> None:
    """A typing error is named, with the nearest name or the whole grammar."""
    with pytest.raises(FaultSyntaxError, match=hint) as caught:
        parse_faults(spec, SOURCES)
    assert len(str(caught.value)) < 1_000


@given(
    st.text(max_size=60)
    | st.builds("{}:{}{}{}".format, *map(st.sampled_from, (SOURCES, FAULTS, "*@", ("1", "0", "9" * 5_000, "²"))))
)
def test_any_text_is_a_plan_or_a_clear_error(spec: str) -> None:
    """No injection, however wrong, ends in a traceback."""
    try:
        parse_faults(spec, SOURCES)
    except FaultSyntaxError as error:
        assert str(error)


def test_the_help_names_every_fault() -> None:
    """The grammar that --help shows is complete."""
    assert all(fault in GRAMMAR for fault in (*FAULTS, *MODEL_FAULTS))


EXPECTED = {
    "timeout": ("timeout", True),
    "refused": ("unavailable", True),
    "reset": ("unavailable", True),
    "dribble": ("timeout", True),
    "cut": ("malformed_response", True),
    "html": ("unavailable", True),
    "badjson": ("malformed_response", True),
    "400": ("invalid_query", False),
    "401": ("access_denied", False),
    "403": ("access_denied", False),
    "404": ("unavailable", True),
    "429": ("rate_limited", True),
    "500": ("unavailable", True),
    "503": ("unavailable", True),
    "529": ("unavailable", True),
}


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "empty"])
async def test_each_fault_becomes_the_error_type_that_the_real_one_has(fault: str) -> None:
    """What is injected at the transport comes out of the HTTP layer as the table says, without waiting."""
    live = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"live": True}))
    transport = FaultTransport(live, parse_faults(f"wikipedia:{fault}*1", SOURCES), "wikipedia")
    now = datetime(2026, 1, 2, tzinfo=UTC)
    async with httpx2.AsyncClient(transport=transport) as client:
        with pytest.raises(SourceError) as caught:
            await get_json(client, "http://wikipedia.test/", {}, now=now)
        assert (caught.value.error_type, caught.value.retryable) == EXPECTED[fault]
        answer = await get_json(client, "http://wikipedia.test/", {}, now=now)
    assert answer.value == {"live": True}


async def test_an_injected_empty_is_the_services_own_valid_answer() -> None:
    """`empty` is an answer without a match, not an empty body."""
    live = httpx2.MockTransport(lambda _: httpx2.Response(500))
    plan = parse_faults("wikipedia:empty", SOURCES)
    answers = {"empty": ("application/json", b'{"query": {"search": []}}')}
    async with httpx2.AsyncClient(transport=FaultTransport(live, plan, "wikipedia", answers)) as client:
        answer = await get_json(client, "http://wikipedia.test/", {}, now=datetime(2026, 1, 2, tzinfo=UTC))
    assert answer.value == {"query": {"search": []}}


MODEL_EXPECTED = {
    "timeout": "timeout",
    "refused": "unavailable",
    "reset": "unavailable",
    "dribble": "timeout",
    "cut": "unavailable",
    "html": "malformed",
    "badjson": "malformed",
    "400": "request",
    "401": "refused_key",
    "403": "refused_key",
    "404": "unknown_model",
    "429": "rate_limited",
    "500": "unavailable",
    "503": "unavailable",
    "529": "overloaded",
    "stream_error": "overloaded",
    "stream_cut": "unavailable",
    "refusal": ("refusal", 0, 0),
    "max_tokens": ("max_tokens", 1, 1),
    "bad_args": ("tool_use", 1, 0),
}


@pytest.mark.parametrize("fault", MODEL_FAULTS)
async def test_each_fault_of_the_model_becomes_the_error_or_the_turn_that_the_real_one_has(fault: str) -> None:
    """A model that fails on every call ends in a named error; one that stops badly gives a turn that says so.

    Such a turn is told by its stop reason, and how many calls it has and how many of them cannot be used.
    """
    met: object
    async with open_model(OFFLINE, clock=FakeClock(), faults=parse_faults(f"model:{fault}", [])) as model:
        try:
            turn = await model.turn("s", [{"role": "user", "content": "Hello."}], [])
            met = turn.stop_reason, len(turn.tool_uses), len(turn.broken)
        except ModelError as error:
            met = error.kind
    assert met == MODEL_EXPECTED[fault]
