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
from caveat_tools.faults import FAULTS, GRAMMAR, MODEL_FAULTS, SUBAGENT_FAULTS, FaultSyntaxError, parse_faults
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


def test_a_star_strikes_every_source_but_neither_the_model_nor_a_subagent() -> None:
    """`*:refused` takes all sources down and leaves a model, and its subagents, to report it."""
    assert struck("*:refused", "local", 1) == ["refused"]
    assert struck("*:refused", "model", 1) == [None]
    assert struck("*:refused", "subagent:1", 1) == [None]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("subagent:2:crash", ["crash", "crash", "crash"]),
        ("subagent:2:crash*1", ["crash", None, None]),
        ("subagent:2:crash@3", [None, None, "crash"]),
        ("subagent:02:crash", ["crash", "crash", "crash"]),
        ("subagent:1:crash", [None, None, None]),
        ("subagent:22:crash,*:timeout", [None, None, None]),
    ],
)
def test_a_subagent_is_struck_by_its_number_and_its_turns_are_counted(spec: str, expected: list[str | None]) -> None:
    """`subagent:2:crash@3` is the third turn of the second subagent, and nobody else's."""
    assert struck(spec, "subagent:2", 3) == expected


def test_the_turns_of_a_subagent_count_over_all_lives_of_a_run() -> None:
    """A subagent that had two turns before the run was killed crashes in its third after it."""
    plan = parse_faults("subagent:2:crash@3", SOURCES)
    plan.skip("subagent:2", 2)
    plan.skip("subagent:1", 1)
    assert [plan.take("subagent:1"), plan.take("subagent:2")] == [None, "crash"]


@given(st.integers(1, 999), st.integers(1, 999), st.sampled_from(["", "*", "@"]), st.integers(1, 4))
def test_whatever_its_number_a_subagent_is_struck_as_a_source_would_be(
    number: int, other: int, mark: str, count: int
) -> None:
    """One grammar for all targets; only the subagent that is named is struck."""
    when = f"{mark}{count}" if mark else ""
    as_source = struck(f"wikipedia:timeout{when}", "wikipedia")
    spec = f"subagent:{number}:crash{when}"
    assert struck(spec, f"subagent:{number}") == [fault and "crash" for fault in as_source]
    if other != number:
        assert struck(spec, f"subagent:{other}") == [None] * 5


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
        ("wikipedia:crash", "unknown fault"),
        ("*:crash", "unknown fault"),
        ("model:crash", "unknown fault"),
        ("subagent:1:timeout", "possible are: crash"),
        ("subagent:1:crush", "did you mean 'crash'"),
        ("subagent:0:crash", "counted from 1"),
        ("subagent:1:crash@0", "counted from 1"),
        ("subagent:1234567:crash", "more than 6 digits"),
        ("subagent:" + "9" * 5_000 + ":crash", "more than 6 digits"),
        ("subagent:٣:crash", "by its number"),
        ("subagent:N:crash", "by its number"),
        ("subagent:crash", "by its number"),
        ("subagent:*:crash", "by its number"),
        ("subagnt:1:crash", "did you mean 'subagent:N'"),
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
    | st.builds(
        "subagent:{}:{}".format, st.integers() | st.text(max_size=8), st.sampled_from((*SUBAGENT_FAULTS, "html"))
    )
)
def test_any_text_is_a_plan_or_a_clear_error(spec: str) -> None:
    """No injection, however wrong, ends in a traceback."""
    try:
        parse_faults(spec, SOURCES)
    except FaultSyntaxError as error:
        assert str(error)


def test_the_help_names_every_fault() -> None:
    """The grammar that --help shows is complete."""
    assert all(fault in GRAMMAR for fault in (*FAULTS, *MODEL_FAULTS, *SUBAGENT_FAULTS, "subagent:N"))


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
