"""Tool calls as the rules of every role read them, and what an answer to them refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Body(BaseModel):
    """Base of what is read from JSON: unknown fields are left alone, known ones have to fit."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Call(NamedTuple):
    """A tool call. `turn` and `result` (its text) are those of the conversation; a call to be made has none."""

    name: str
    input: dict[str, Any]
    turn: int = 0
    result: str = ""


M = TypeVar("M", bound=BaseModel)


def read(model: type[M], value: str | dict[str, Any]) -> M | None:
    """Return JSON, as text or parsed, as a model, or None where it is anything else."""
    try:
        return model.model_validate_json(value) if isinstance(value, str) else model.model_validate(value)
    except ValidationError:
        return None


class Handover(Body):
    """The answer to a tool that takes something over, such as report_findings."""

    status: str = ""
    problems: list[Any] = Field(default_factory=list)

    def refused(self, key: str) -> list[Any]:
        """Return what the problems name under `key`: numbers, or ids."""
        return [problem[key] for problem in self.problems if isinstance(problem, dict) and key in problem]


def refused_by(handovers: Sequence[Call], key: str) -> list[Any] | None:
    """Return what the first handover is to be repeated without; None where it stands or has been repeated already."""
    handover = read(Handover, handovers[-1].result)
    if len(handovers) > 1 or not handover or handover.status != "revise":
        return None
    return handover.refused(key)
