"""The report's form: what `--json` prints, stable from the first release.

`compose.py` fills it from ledger and claims; `render.py` shows it to readers.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from caveat.ledger import Next, State
from caveat.loop import EndReason
from caveat_tools.outcome import ErrorType, Wire


class Query(Wire):
    """One search as the report tells it. `next` is what the coordinator did after a failure.

    `date_from` and `date_to` are the days within which it searched, as they were asked for (ISO 8601, both included).
    """

    source: str
    query: str
    date_from: str | None = None
    date_to: str | None = None
    status: Literal["found", "empty", "failed"]
    error_type: ErrorType | None
    attempts: int
    next: Next | None
    served_from: Literal["live", "snapshot"] | None = None


class Topic(Wire):
    """One topic with its coverage; `text` is its section of the answer, as Markdown."""

    id: str
    topic: str
    state: State
    queries: tuple[Query, ...]
    text: str = ""


class ReportClaim(Wire):
    """A statement with its evidence; `why` says what is wrong with an unverified one."""

    class Evidence(Wire):
        """One quote."""

        id: str
        quote: str

    text: str
    topic: str | None
    verified: bool
    evidence: tuple[Evidence, ...]
    why: str | None = None


class ReportSource(Wire):
    """A passage that a verified claim quotes. `same_work_as` names an earlier one in the list that is of the same work:
    the two are one source.
    """

    id: str
    source: str
    title: str
    url: str
    retrieved_at: str
    snapshot_age_seconds: int | None = None
    same_work_as: str | None = None


GapType: TypeAlias = ErrorType | Literal["unverified", "not_attempted", "unreadable"] | EndReason
"""Why something stays open: a failed search; statements without proof, nothing searched, files that cannot be read;
or how an unfinished run ended."""


class Gap(Wire):
    """Something that could not be looked up: which topic it leaves open (None: the whole run), why, what to try."""

    topic: str | None
    source: str | None
    error_type: GapType
    why: str
    try_next: tuple[str, ...]


class ModelNote(Wire):
    """What the coordinator itself says it could not find out. Shown as its words; coverage does not rest on them."""

    topic: str | None
    what: str


class UnreadFile(Wire):
    """A file of the user's folder that could not be read, or not all of it, and why."""

    path: str
    reason: str


class Run(Wire):
    """The run in numbers. `cost` is in US dollars by the price list of `prices_as_of`, or None where the model's price
    is not known; `end` says how retrieval ended.

    `injected` holds the faults that were injected on purpose: such a report is a test, not an answer.
    """

    id: str
    model: str
    offline: bool
    model_calls: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    prices_as_of: str | None = None
    seconds: float
    end: EndReason
    injected: str = ""


class Report(Wire):
    """The whole report, in the form of `--json`. `answer` is the report as Markdown."""

    question: str
    answer: str
    topics: tuple[Topic, ...]
    unassigned: tuple[Query, ...]
    claims: tuple[ReportClaim, ...]
    sources: tuple[ReportSource, ...]
    gaps: tuple[Gap, ...]
    model_notes: tuple[ModelNote, ...]
    notes: tuple[str, ...]
    unread: tuple[UnreadFile, ...] = ()
    run: Run

    @property
    def markdown(self) -> str:
        """The report as Markdown."""
        return self.answer

    @property
    def exit_code(self) -> int:
        """0 where every topic is covered or honestly empty, 3 where there are gaps."""
        return 3 if self.gaps else 0

    def to_json(self) -> str:
        """Return the report as indented JSON, UTF-8 unescaped."""
        return self.model_dump_json(by_alias=True, indent=2, ensure_ascii=False)
