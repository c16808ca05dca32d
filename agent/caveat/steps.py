"""The kinds of steps that a journal keeps: a model's turn, a search's outcome, the answer of a caller's own tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pydantic import TypeAdapter

from caveat.journal import Form
from caveat.turn import Turn
from caveat_tools.outcome import OUTCOME as OUTCOME_FORM
from caveat_tools.outcome import Empty, Failed, Found

_TURN: Final[TypeAdapter[Turn]] = TypeAdapter(Turn)


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


TURN: Final[Form[Turn]] = Form(
    write=lambda turn, _keep: _TURN.dump_python(turn, mode="json"),
    read=lambda body, _text_of: _TURN.validate_python(body),
)
OUTCOME: Final[Form[Found | Empty | Failed]] = Form(
    write=_write_outcome, read=_read_outcome, was_cut_short=_was_cut_short, has_failed=_has_failed
)
ANSWER: Final[Form[Any]] = Form(
    write=_write_answer, read=_read_answer, was_cut_short=_was_cut_short, has_failed=_has_failed
)
