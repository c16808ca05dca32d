"""The kinds of steps that a journal keeps: a model's turn, a search's outcome, the answer of a caller's own tool.

Of a subagent's model also the failure is kept, once the coordinator's conversation goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from caveat.journal import Form
from caveat.turn import ModelError, ModelErrorKind, Turn
from caveat_tools.outcome import OUTCOME as OUTCOME_FORM
from caveat_tools.outcome import Empty, Failed, Found

_TURN: Final[TypeAdapter[Turn]] = TypeAdapter(Turn)


@dataclass(frozen=True, slots=True)
class _Error:
    """A ModelError as it is written."""

    kind: ModelErrorKind
    message: str
    retryable: bool
    retry_after_seconds: float | None


_ERROR: Final[TypeAdapter[_Error]] = TypeAdapter(_Error)


def _write_turn(turn: Turn | ModelError, _keep: Callable[[str], str]) -> Any:
    if isinstance(turn, Turn):
        return _TURN.dump_python(turn, mode="json")
    error = _Error(turn.kind, turn.message, turn.retryable, turn.retry_after_seconds)
    return {"error": _ERROR.dump_python(error, mode="json")}


def _read_turn(body: Any, _text_of: Callable[[str], str]) -> Turn | ModelError:
    if "error" not in body:
        return _TURN.validate_python(body)
    error = _ERROR.validate_python(body["error"])
    return ModelError(
        error.kind, error.message, retryable=error.retryable, retry_after_seconds=error.retry_after_seconds
    )


def _write_outcome(outcome: Found | Empty | Failed, keep: Callable[[str], str]) -> Any:
    """Return the whole outcome, also what is not for the model; the texts of its results are kept apart."""
    body = outcome.model_dump(mode="json")
    for name in ("results", "partial_results"):
        for result in body.get(name, ()):
            result["text"] = keep(result["text"])
    return {**body, "attempts": outcome.attempts}


def _read_outcome(body: Any, text_of: Callable[[str], str]) -> Found | Empty | Failed:
    texts = {
        name: [{**result, "text": text_of(result["text"])} for result in body[name]]
        for name in ("results", "partial_results")
        if name in body
    }
    return OUTCOME_FORM.validate_python({**body, **texts})


def _write_answer(answer: Any, keep: Callable[[str], str]) -> Any:
    if isinstance(answer, Found | Empty | Failed):
        return {"outcome": _write_outcome(answer, keep)}
    return {"value": answer}


def _read_answer(body: Any, text_of: Callable[[str], str]) -> Any:
    return _read_outcome(body["outcome"], text_of) if "outcome" in body else body["value"]


def _was_cut_short(outcome: Any) -> bool:
    return isinstance(outcome, Failed) and outcome.error_type == "cancelled"


def _has_failed(outcome: Any) -> bool:
    return isinstance(outcome, Failed)


TURN: Final[Form[Turn | ModelError]] = Form(
    write=_write_turn,
    read=_read_turn,
    has_failed=lambda turn: isinstance(turn, ModelError),
    failure_stands_alone=False,
)
OUTCOME: Final[Form[Found | Empty | Failed]] = Form(
    write=_write_outcome, read=_read_outcome, was_cut_short=_was_cut_short, has_failed=_has_failed
)
ANSWER: Final[Form[Any]] = Form(
    write=_write_answer, read=_read_answer, was_cut_short=_was_cut_short, has_failed=_has_failed
)
