"""The outcome contract: found, empty or failed, and what each looks like to the model.

Every tool_result that a source is behind is one of three frozen models. An empty result is a success without a
match; a failure is an attempt that got no complete answer. Neither can be built from the other by accident:
a `Found` without results, or a `Failed` whose `isRetryable` contradicts its `errorType`, does not validate.

Python names are snake_case, wire names camelCase; `wire()` gives the wire form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from caveat_tools.plain_text import clip

MAX_RESULTS: Final = 8
MAX_PASSAGE_CHARS: Final = 1_200
MAX_ALTERNATIVES: Final = 3
MAX_QUERY_CHARS: Final = 300
MAX_WIRE_TOKENS: Final = 4_000

ErrorType = Literal[
    "timeout",
    "unavailable",
    "rate_limited",
    "invalid_query",
    "invalid_arguments",
    "not_found",
    "access_denied",
    "malformed_response",
    "blocked",
    "budget_exhausted",
    "cancelled",
]


class ErrorKind(NamedTuple):
    """One row of the errorType table: when it is used, and which values of isRetryable it may carry."""

    when: str
    retryable: frozenset[bool]


_YES, _NO, _EITHER = frozenset({True}), frozenset({False}), frozenset({True, False})

ERROR_KINDS: Final[dict[ErrorType, ErrorKind]] = {
    "timeout": ErrorKind("no complete answer in time", _YES),
    "unavailable": ErrorKind(
        "the service cannot be reached, answers with a server error or shows a maintenance page; "
        "isRetryable is false while the source is switched off after repeated failures",
        _EITHER,
    ),
    "rate_limited": ErrorKind(
        "too many calls; retryAfterSeconds says how long to wait; isRetryable is false for a spent daily or paid quota",
        _EITHER,
    ),
    "invalid_query": ErrorKind("the service says that the query is wrong", _NO),
    "invalid_arguments": ErrorKind("the call does not fit: schema, unknown tool, source or topic id", _NO),
    "not_found": ErrorKind("a page that was asked for by address does not exist", _NO),
    "access_denied": ErrorKind("a missing or refused key, a payment, a permission", _NO),
    "malformed_response": ErrorKind("an answer arrived but is cut or is not what it claims to be", _YES),
    "blocked": ErrorKind("our own policy refused, such as a query that the source has already answered", _NO),
    "budget_exhausted": ErrorKind("the turns, calls, tokens, money or time of this run are spent", _NO),
    "cancelled": ErrorKind("a person or a deadline stopped it", _NO),
}

ALTERNATIVES: Final[dict[str, str]] = {
    "simplify_query": "search the same source with fewer or other words",
    "narrow_query_by_date_range": "search the same source again with date_from and date_to",
    "use_cached_snapshot": "repeat the call with use_snapshot: true; a stored earlier answer is served",
    "try_source:NAME": "search the named source for the same topic",
}
"""Every alternative that can be offered, and the call that carries it out. NAME stands for a source's name."""


class Wire(BaseModel):
    """Base of all models that cross the wire: frozen, camelCase outside, snake_case inside, no unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class Result(Wire):
    """One passage of one document. `id` is unique in a run; it is "" until the loop has numbered the turn.

    `same_work_as` is the id of an earlier result that is of the same work, so that the two count as one source.
    """

    id: str = ""
    title: Annotated[str, Field(max_length=200)]
    url: Annotated[str, Field(max_length=500)]
    date: str | None = None
    text: Annotated[str, Field(min_length=1, max_length=MAX_PASSAGE_CHARS)]
    same_work_as: str | None = None
    identifiers: SkipJsonSchema[tuple[str, ...]] = ()
    """What the work is known by (`works.py`): kept in snapshots, and not shown to the model."""


Results = Annotated[tuple[Result, ...], Field(max_length=MAX_RESULTS)]


class Found(Wire):
    """The source answered and has at least one match. `total` is the source's own count, where it gives one."""

    status: Literal["found"] = "found"
    source: str
    query: str
    total: Annotated[int, Field(ge=0)] | None = None
    served_from: Literal["live", "snapshot"] = "live"
    snapshot_age_seconds: Annotated[int, Field(ge=0)] | None = None
    results: Annotated[Results, Field(min_length=1)]
    truncated: bool = False
    attempts: Annotated[int, Field(ge=0, exclude=True)] = 1
    """How often the source was asked for this; for the report, not for the model."""

    @model_validator(mode="after")
    def _age_belongs_to_snapshots(self) -> Self:
        if (self.served_from == "snapshot") != (self.snapshot_age_seconds is not None):
            raise ValueError("snapshotAgeSeconds stands exactly where servedFrom is snapshot")
        return self


class Empty(Wire):
    """The source answered and holds no match: a success, never an error."""

    status: Literal["empty"] = "empty"
    source: str
    query: str
    results: Annotated[Results, Field(max_length=0)] = ()
    guidance: str
    attempts: Annotated[int, Field(ge=0, exclude=True)] = 1
    """How often the source was asked for this; for the report, not for the model."""


class Failed(Wire):
    """No complete answer. `message` says what happened, `guidance` what to do, in one imperative sentence.

    `is_retryable` means: the identical call may succeed later. `partial_results` are real evidence.
    """

    status: Literal["failed"] = "failed"
    source: str
    error_type: ErrorType
    attempted_query: str
    partial_results: Results = ()
    alternative_approaches: Annotated[tuple[str, ...], Field(max_length=MAX_ALTERNATIVES)] = ()
    is_retryable: bool
    retry_after_seconds: Annotated[float, Field(ge=0)] | None = None
    attempts: Annotated[int, Field(ge=0)]
    message: Annotated[str, Field(min_length=1)]
    guidance: Annotated[str, Field(min_length=1)]
    truncated: bool = False

    @model_validator(mode="after")
    def _flags_fit_the_table(self) -> Self:
        if self.is_retryable not in ERROR_KINDS[self.error_type].retryable:
            raise ValueError(f"{self.error_type} cannot have isRetryable {self.is_retryable}")
        for name in self.alternative_approaches:
            if name not in ALTERNATIVES and not name.startswith("try_source:"):
                raise ValueError(f"unknown alternative {name!r}")
        return self


def not_sent(source: str, query: str, error_type: ErrorType, message: str, guidance: str) -> Failed:
    """Return the Failed of a call that was not carried out: no attempt was made, and the same call will not help."""
    return Failed(
        source=source,
        error_type=error_type,
        attempted_query=clip(query, MAX_QUERY_CHARS)[0],
        is_retryable=False,
        attempts=0,
        message=message,
        guidance=guidance,
    )


Outcome = Annotated[Found | Empty | Failed, Field(discriminator="status")]
OUTCOME: Final[TypeAdapter[Found | Empty | Failed]] = TypeAdapter(Outcome)


_ABSENT: Final[Mapping[str, Any]] = {"truncated": False, "snapshotAgeSeconds": None, "sameWorkAs": None}
"""Fields that stand on the wire only where they say something."""
_INTERNAL: Final = {"__all__": {"identifiers"}}


def wire(outcome: Wire) -> dict[str, Any]:
    """Return the JSON object that the model sees: without what does not apply, and without identifiers."""
    body = outcome.model_dump(mode="json", by_alias=True, exclude={"results": _INTERNAL, "partial_results": _INTERNAL})
    for name in ("results", "partialResults"):
        if name in body:
            body[name] = [_applicable(result) for result in body[name]]
    return _applicable(body)


def _applicable(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in _ABSENT or value is not _ABSENT[key]}


def to_json(body: Any) -> str:
    """Serialise for a tool_result: UTF-8 unescaped, keys in the order in which they were given."""
    return json.dumps(body, ensure_ascii=False)


def results_of(outcome: Found | Empty | Failed) -> tuple[Result, ...]:
    """Return the evidence an outcome carries: the results of a Found, the partial results of a Failed."""
    return outcome.partial_results if isinstance(outcome, Failed) else outcome.results


def with_results(outcome: Found | Failed, results: tuple[Result, ...], *, truncated: bool = False) -> Found | Failed:
    """Return a copy of `outcome` that carries `results`; `truncated` is or-ed with what it said before."""
    field = "partial_results" if isinstance(outcome, Failed) else "results"
    return outcome.model_copy(update={field: results, "truncated": outcome.truncated or truncated})


def estimated_tokens(text: str) -> int:
    """Estimate tokens without a tokenizer: three UTF-8 bytes each, which errs on the high side for most languages."""
    return -(-len(text.encode()) // 3)


def fitted(outcome: Found | Empty | Failed) -> Found | Empty | Failed:
    """Return `outcome` cut to the wire sizes; the last results go first, and `truncated` says so.

    A single result always stays: it cannot exceed the limit, since a passage has at most 1 200 characters.
    """
    if isinstance(outcome, Empty):
        return outcome
    results = results_of(outcome)
    while len(results) > 1 and estimated_tokens(to_json(wire(outcome))) > MAX_WIRE_TOKENS:
        results = results[:-1]
        outcome = with_results(outcome, results, truncated=True)
    return outcome


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the wire form of all three outcomes."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "caveat tool_result",
        **OUTCOME.json_schema(by_alias=True, mode="serialization"),
    }
