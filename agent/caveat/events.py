"""What research() tells its listener while it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from caveat.budget import Estimate
from caveat.loop import TurnStarted
from caveat_tools.retry import Waiting
from caveat_tools.search import SearchEvent


@dataclass(frozen=True, slots=True)
class RunStarted:
    """First of all: the run's id, the model, the sources; what it is likely to use, and what it may use, in words.

    `recalled` is the number of steps in the journal of a run that goes on, None of a new one; `is_kept` says whether
    there is a journal.
    """

    run_id: str
    model: str
    offline: bool
    sources: tuple[str, ...]
    estimate: Estimate
    at_most: tuple[str, ...]
    recalled: int | None = None
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Last of all, of a run with a report: whether nothing is left to go on with."""

    is_over: bool


@dataclass(frozen=True, slots=True)
class ModelWaiting:
    """Before the model is asked again."""

    waiting: Waiting


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth a line that is not an outcome."""

    text: str


Event: TypeAlias = RunStarted | RunEnded | TurnStarted | SearchEvent | ModelWaiting | Notice
