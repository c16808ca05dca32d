"""The outcome contract: what the model sees of a search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from caveat_tools.outcome import (
    ERROR_KINDS,
    MAX_PASSAGE_CHARS,
    MAX_WIRE_TOKENS,
    OUTCOME,
    Empty,
    ErrorType,
    Failed,
    Found,
    Result,
    estimated_tokens,
    fitted,
    results_of,
    schema,
    to_json,
    wire,
)
from caveat_tools.plain_text import clip

DOCS = Path(__file__).parent.parent / "docs"


def failed(**changes: Any) -> Failed:
    fields: dict[str, Any] = {
        "source": "openalex",
        "error_type": "timeout",
        "attempted_query": "кариба dam",
        "is_retryable": True,
        "attempts": 3,
        "message": "no complete answer within 8 s",
        "guidance": "Ask with fewer words.",
    }
    return Failed(**{**fields, **changes})


def results(count: int, text: str = "words") -> tuple[Result, ...]:
    return tuple(Result(id=f"S{n}", title="t", url="u", text=text) for n in range(1, count + 1))


def test_a_found_outcome_has_exactly_the_documented_wire_form() -> None:
    """Scripts and prompts can rely on every key of a found tool_result."""
    outcome = Found(source="openalex", query="q", total=132, results=results(1))
    assert wire(outcome) == {
        "status": "found",
        "source": "openalex",
        "query": "q",
        "total": 132,
        "servedFrom": "live",
        "results": [{"id": "S1", "title": "t", "url": "u", "date": None, "text": "words"}],
    }


def test_an_empty_outcome_has_exactly_the_documented_wire_form() -> None:
    """An empty tool_result names source and query, holds no results, and says what not to do."""
    outcome = Empty(source="openalex", query="q", guidance="Do not send this query here again.")
    assert wire(outcome) == {
        "status": "empty",
        "source": "openalex",
        "query": "q",
        "results": [],
        "guidance": "Do not send this query here again.",
    }


def test_a_failed_outcome_has_exactly_the_documented_wire_form() -> None:
    """A failed tool_result carries the five promised fields and all others of the contract."""
    outcome = failed(partial_results=results(1), alternative_approaches=("use_cached_snapshot", "try_source:arxiv"))
    assert wire(outcome) == {
        "status": "failed",
        "source": "openalex",
        "errorType": "timeout",
        "attemptedQuery": "кариба dam",
        "partialResults": [{"id": "S1", "title": "t", "url": "u", "date": None, "text": "words"}],
        "alternativeApproaches": ["use_cached_snapshot", "try_source:arxiv"],
        "isRetryable": True,
        "retryAfterSeconds": None,
        "attempts": 3,
        "message": "no complete answer within 8 s",
        "guidance": "Ask with fewer words.",
    }


def test_text_crosses_the_wire_unescaped() -> None:
    """A Russian query costs the model its own characters, not six for each."""
    assert "кариба" in to_json(wire(failed()))


def test_a_snapshot_says_its_age_even_when_it_is_brand_new() -> None:
    """An age of zero is an age, and is not dropped from the wire."""
    outcome = Found(source="w", query="q", results=results(1), served_from="snapshot", snapshot_age_seconds=0)
    assert wire(outcome)["snapshotAgeSeconds"] == 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: Found(source="w", query="q", results=()),
        lambda: Found(source="w", query="q", results=results(9)),
        lambda: Found(source="w", query="q", results=results(1), served_from="snapshot"),
        lambda: Empty(source="w", query="q", results=results(1), guidance="g"),
        lambda: failed(message=""),
        lambda: failed(alternative_approaches=("pray",)),
        lambda: failed(alternative_approaches=("simplify_query",) * 4),
        lambda: Result(title="t", url="u", text="x" * (MAX_PASSAGE_CHARS + 1)),
        lambda: Result(title="t", url="u", text=""),
    ],
)
def test_an_outcome_that_contradicts_itself_cannot_be_built(build: Any) -> None:
    """Found without results, Empty with some, a failure without words: none of them can reach the model."""
    with pytest.raises(ValidationError):
        build()


@pytest.mark.parametrize("error_type", sorted(ERROR_KINDS))
@pytest.mark.parametrize("flag", [True, False])
def test_is_retryable_always_fits_the_error_type_table(error_type: str, flag: bool) -> None:
    """A model never sees a retryable invalid_query or a time-out that may not be retried."""
    allowed = flag in ERROR_KINDS[error_type].retryable  # type: ignore[index]
    if allowed:
        assert failed(error_type=error_type, is_retryable=flag).is_retryable is flag
    else:
        with pytest.raises(ValidationError, match="cannot have isRetryable"):
            failed(error_type=error_type, is_retryable=flag)


def test_an_outcome_is_frozen() -> None:
    """What a tool has said cannot be changed afterwards."""
    with pytest.raises(ValidationError):
        failed().attempts = 1


@given(st.lists(st.text(min_size=1, max_size=MAX_PASSAGE_CHARS), min_size=1, max_size=8), st.booleans())
def test_every_fitted_outcome_stays_within_the_token_limit(texts: list[str], as_failure: bool) -> None:
    """However long and in whatever script the passages are, a tool_result stays small and says it was cut."""
    passages = tuple(Result(title="t", url="u", text=text) for text in texts)
    before = failed(partial_results=passages) if as_failure else Found(source="w", query="q", results=passages)
    after = fitted(before)
    kept = results_of(after)
    assert kept == passages[: len(kept)]
    assert len(kept) >= 1
    assert len(kept) == 1 or estimated_tokens(to_json(wire(after))) <= MAX_WIRE_TOKENS
    assert not isinstance(after, Empty)
    assert after.truncated == (len(kept) < len(passages))


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_clipping_never_exceeds_its_limit_and_tells_when_it_cut(text: str, limit: int) -> None:
    """A clipped text fits, and an uncut one is untouched."""
    clipped, cut = clip(text, limit)
    assert len(clipped) <= limit
    assert cut == (len(text) > limit)
    assert cut or clipped == text


def test_the_published_schema_is_the_code() -> None:
    """docs/outcome.schema.json is what the product really sends; `make schema` writes it."""
    assert json.loads((DOCS / "outcome.schema.json").read_text()) == schema()


def test_every_wire_form_can_be_read_back() -> None:
    """A consumer that validates with the same models gets the same outcome back."""
    for outcome in (
        Found(source="w", query="q", results=results(2)),
        Empty(source="w", query="q", guidance="g"),
        failed(),
    ):
        assert OUTCOME.validate_python(wire(outcome)) == outcome


def test_every_error_type_is_in_the_table() -> None:
    """No errorType is without its row."""
    assert set(get_args(ErrorType)) == set(ERROR_KINDS)
