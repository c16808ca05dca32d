"""The coordinator's own tools: plan_topics, search and report_findings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator

from caveat.claims import Claim, check
from caveat.journal import Scope
from caveat.ledger import MAX_TOPICS, Ledger
from caveat.loop import Arguments, Call, Reply, definition
from caveat.steps import ANSWER, OUTCOME
from caveat_tools.outcome import (
    MAX_QUERY_CHARS,
    MAX_RESULTS,
    Empty,
    Failed,
    Found,
    fitted,
    not_sent,
    results_of,
    wire,
    with_results,
)
from caveat_tools.plain_text import one_line, plain
from caveat_tools.search import Searcher
from caveat_tools.source import Ask, SourceError

MAX_FINDINGS: Final = 60
MAX_EVIDENCE: Final = 6


def _day(text: str) -> str:
    """Return the day. Raises ValueError where the calendar does not have it, or its digits are not ASCII."""
    if not text.isascii():
        raise ValueError("a day is written with the digits 0 to 9")
    date.fromisoformat(text)
    return text


_Day = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$"), AfterValidator(_day)]
_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class PlanTopics(Arguments):
    """Arguments of plan_topics."""

    topics: Annotated[list[_Words], Field(min_length=1, max_length=MAX_TOPICS)] = Field(
        description="What must be found out to answer the question, each in one short phrase."
    )


class SearchArguments(Arguments):
    """Arguments of search."""

    topic_id: str = Field(description="The topic this search is for: an id that plan_topics gave.")
    source: str = Field(description="The source to ask.")
    query: Annotated[_Words, Field(max_length=MAX_QUERY_CHARS)] = Field(
        description="A few key words in the language of the source, not a sentence."
    )
    date_from: _Day | None = Field(None, description="Earliest day, YYYY-MM-DD; only for sources that take dates.")
    date_to: _Day | None = Field(None, description="Latest day, YYYY-MM-DD; only for sources that take dates.")
    limit: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = Field(5, description="How many results at most.")
    use_snapshot: bool = Field(
        False,  # noqa: FBT003 - the default of a field
        description="Serve the stored answer to exactly this query; only where a failure offered use_cached_snapshot.",
    )

    @model_validator(mode="after")
    def _days_are_in_order(self) -> Self:
        if self.date_from and self.date_to and self.date_from > self.date_to:
            raise ValueError("date_from is later than date_to")
        return self

    def ask(self) -> Ask:
        """Return the call as the tools know it."""
        return Ask(self.query, self.date_from, self.date_to, self.limit)


class EvidenceArguments(Arguments):
    """One piece of evidence."""

    id: str = Field(description="The id of a result, such as S4.")
    quote: str = Field(description="Words copied from that result's text, unchanged and without gaps.")


class FindingArguments(Arguments):
    """One finding."""

    topic_id: str = Field(description="The topic it answers.")
    text: str = Field(description="One statement, in the language of the question, that the quotes support.")
    evidence: Annotated[list[EvidenceArguments], Field(max_length=MAX_EVIDENCE)] = Field(
        description="At least one quote; every quote is checked by code."
    )


class OpenPoint(Arguments):
    """One thing that could not be found out."""

    topic_id: str = Field(description="The topic it belongs to.")
    what: str = Field(
        description="What could not be found out, and whether it was not there or could not be looked up."
    )


class ReportFindings(Arguments):
    """Arguments of report_findings."""

    findings: Annotated[list[FindingArguments], Field(max_length=MAX_FINDINGS)] = Field(
        default_factory=list, description="What was found out, every statement with its evidence."
    )
    open_points: Annotated[list[OpenPoint], Field(max_length=MAX_FINDINGS)] = Field(
        default_factory=list, description="What could not be found out, per topic."
    )


@dataclass
class PlanTopicsTool:
    """Gives ids to the topics that the question falls into."""

    ledger: Ledger
    name: str = "plan_topics"
    closes: bool = False
    is_free: bool = True
    arguments: type[BaseModel] = PlanTopics

    def definition(self) -> dict[str, Any]:
        """Return the tool's definition."""
        return definition(
            self.name,
            "Name the topics that must be looked into. Each gets an id (T1, T2, …). Topics can be added later, but not "
            f"renamed or removed; {MAX_TOPICS} are possible.",
            self.arguments,
        )

    async def run(self, arguments: PlanTopics, _scope: Scope) -> tuple[dict[str, str], list[str]]:
        """Enter the topics, so that a search in the same turn can name them."""
        return self.ledger.plan(arguments.topics)

    def settle(self, _call: Call, _arguments: PlanTopics, result: tuple[dict[str, str], list[str]]) -> Reply:
        """Answer with the ids, and with the topics for which there was no room."""
        named, left_out = result
        body: dict[str, Any] = {"topics": [{"id": key, "topic": text} for key, text in named.items()]}
        if left_out:
            body |= {"notAdded": left_out, "guidance": f"{MAX_TOPICS} topics are possible; search under one of them."}
        return Reply(body)


class Timed(NamedTuple):
    """An outcome, and when it was had, if that was in an earlier life of the run."""

    outcome: Found | Empty | Failed
    at: datetime | None = None


@dataclass
class SearchTool:
    """Asks one source for one topic."""

    ledger: Ledger
    searcher: Searcher
    name: str = "search"
    closes: bool = False
    is_free: bool = False
    arguments: type[BaseModel] = SearchArguments

    def definition(self) -> dict[str, Any]:
        """Return the tool's definition, with the sources of this run."""
        sources = self.searcher.sources
        about = "\n".join(
            f"- {s.name}: {s.description}" + (" Takes date_from and date_to." if s.accepts_dates else "")
            for s in sources
        )
        tool = definition(self.name, f"Search one source for one topic. Sources:\n{about}", self.arguments)
        properties = tool["input_schema"]["properties"]
        properties["source"]["enum"] = [s.name for s in sources]
        if not any(s.accepts_dates for s in sources):
            del properties["date_from"], properties["date_to"]
        return tool

    async def run(self, arguments: SearchArguments, scope: Scope) -> Timed:
        """Search, or refuse a topic that was never planned."""
        if arguments.topic_id not in self.ledger.topics:
            known = ", ".join(f"{key} ({one_line(text, 60)})" for key, text in self.ledger.topics.items())
            refused = not_sent(
                one_line(arguments.source, 60),
                plain(arguments.query),
                "invalid_arguments",
                f"there is no topic {one_line(arguments.topic_id, 40)!r}",
                f"Use one of the topics {known}, or add one with plan_topics.",
            )
            return Timed(refused)
        ask, at = arguments.ask(), None

        def recall(outcome: Found | Empty | Failed, then: datetime) -> None:
            nonlocal at
            at = then
            self.searcher.recall(ask, outcome, then)

        outcome = await scope.step(
            "outcome",
            arguments.model_dump(mode="json"),
            lambda: self.searcher.search(arguments.source, ask, use_snapshot=arguments.use_snapshot),
            form=OUTCOME,
            recall=recall,
            retry=self.searcher.retried,
        )
        return Timed(outcome, at)

    def settle(self, call: Call, arguments: SearchArguments, result: Timed) -> Reply:
        """Number the results in the order of the calls and enter them."""
        outcome = self.ledger.record(arguments.topic_id, call, arguments.ask(), result.outcome, result.at)
        return Reply(wire(outcome), is_error=isinstance(outcome, Failed))


@dataclass
class ReportFindingsTool:
    """Takes the findings over, checks every quote, and sends a report with wrong ones back, once."""

    ledger: Ledger
    claims: list[Claim] = field(default_factory=list)
    notes: list[tuple[str | None, str]] = field(default_factory=list)
    sent_back: bool = False
    name: str = "report_findings"
    closes: bool = True
    is_free: bool = True
    arguments: type[BaseModel] = ReportFindings

    def definition(self) -> dict[str, Any]:
        """Return the tool's definition."""
        return definition(
            self.name,
            "Hand over what was found out. This ends the research. Either list may be empty. Every quote is looked up "
            "in the stored text of its result; a statement with a quote that is not there is shown as unverified and "
            "covers nothing.",
            self.arguments,
        )

    async def run(self, arguments: ReportFindings, _scope: Scope) -> ReportFindings:
        """Nothing to wait for."""
        return arguments

    def settle(self, call: Call, arguments: ReportFindings, _result: ReportFindings) -> Reply:
        """Check and keep the claims. A later report takes the place of an earlier one."""
        stored = self.ledger.texts_shown_before(call.turn)
        self.claims = [
            check(f.text, f.topic_id, [(e.id, e.quote) for e in f.evidence], stored) for f in arguments.findings
        ]
        self.notes = [
            (n.topic_id if n.topic_id in self.ledger.topics else None, plain(n.what)) for n in arguments.open_points
        ]
        problems = [
            {"finding": number, "problems": reasons}
            for number, claim in enumerate(self.claims, 1)
            if (reasons := self._problems(claim))
        ]
        if problems and not self.sent_back and not call.last:
            self.sent_back = True
            guidance = (
                "Copy the quotes from the results' text, or drop the statements, and call report_findings once more "
                "with the whole report."
            )
            return Reply({"status": "revise", "problems": problems, "guidance": guidance})
        return Reply({"status": "accepted", "verified": sum(c.verified for c in self.claims)}, final=True)

    def _problems(self, claim: Claim) -> list[str]:
        topic = [] if claim.topic in self.ledger.topics else [f"there is no topic {claim.topic!r}"]
        return topic + list(claim.problems)


@dataclass(frozen=True, slots=True)
class OwnTool:
    """A caller's own tool: a name, a description, a pydantic model of the arguments and an async function.

    The function returns a Found, Empty or Failed, or raises SourceError; its results become evidence that can be cited.
    Or it returns something else that is JSON, which goes to the model: a dict as it is, anything else under "result".
    If the arguments have a `topic_id`, the call counts for that topic.
    """

    name: str
    description: str
    arguments: type[BaseModel]
    call: Callable[[Any], Awaitable[Any]]


@dataclass
class RecordedTool:
    """An OwnTool within a run: its outcomes are entered into the ledger."""

    tool: OwnTool
    ledger: Ledger
    closes: bool = False
    is_free: bool = False

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name

    @property
    def arguments(self) -> type[BaseModel]:
        """The tool's arguments."""
        return self.tool.arguments

    def definition(self) -> dict[str, Any]:
        """Return the tool's definition."""
        return definition(self.tool.name, self.tool.description, self.tool.arguments)

    async def run(self, arguments: BaseModel, scope: Scope) -> Any:
        """Call the caller's function; an outcome comes as Timed."""
        asked, at = arguments.model_dump(mode="json"), None

        async def call() -> Any:
            try:
                return await self.tool.call(arguments)
            except SourceError as error:
                return _failed(self.tool.name, asked_of(asked), error)

        def recall(_answer: Any, then: datetime) -> None:
            nonlocal at
            at = then

        answer = await scope.step("answer", asked, call, form=ANSWER, recall=recall)
        return Timed(answer, at) if isinstance(answer, Found | Empty | Failed) else answer

    def settle(self, call: Call, arguments: BaseModel, result: Any) -> Reply:
        """Enter an outcome into the ledger; pass anything else on."""
        if not isinstance(result, Timed):
            return Reply(result if isinstance(result, dict) else {"result": result})
        topic, ask = getattr(arguments, "topic_id", None), Ask(asked_of(arguments.model_dump(mode="json")))
        outcome = self.ledger.record(topic, call, ask, fitted(_harmless(result.outcome)), result.at)
        return Reply(wire(outcome), is_error=isinstance(outcome, Failed))


def _harmless(outcome: Found | Empty | Failed) -> Found | Empty | Failed:
    """Return an outcome of a caller's tool with its texts made harmless, as the built-in sources' are."""
    if isinstance(outcome, Empty):
        return outcome
    cleaned = [
        result.model_copy(
            update={"title": one_line(result.title, 200), "url": one_line(result.url, 500), "text": plain(result.text)}
        )
        for result in results_of(outcome)
    ]
    readable = tuple(result for result in cleaned if result.text.strip())
    if isinstance(outcome, Found) and not readable:
        why = f"{outcome.source} says that there are matches, but no text of them arrived"
        return _failed(outcome.source, outcome.query, SourceError("malformed_response", why, retryable=True))
    return with_results(outcome, readable)


def _failed(source: str, query: str, error: SourceError) -> Failed:
    """Return a failed call of a caller's tool; there is no retry around those."""
    return Failed(
        source=source,
        error_type=error.error_type,
        attempted_query=query,
        is_retryable=error.retryable,
        retry_after_seconds=error.retry_after_seconds,
        attempts=1,
        message=one_line(error.message, 400),
        guidance=f"Go on without {source}, and report that it could not be searched.",
    )


def refusal_recorder(ledger: Ledger, own_tools: Collection[str]) -> Callable[[Call, dict[str, Any], Failed], None]:
    """Return what enters a call that the loop refused: under its topic if it names one, else under none."""

    def record(call: Call, raw: dict[str, Any], failed: Failed) -> None:
        topic, date_from, date_to = (
            value if isinstance(value := raw.get(name), str) else None for name in ("topic_id", "date_from", "date_to")
        )
        if failed.source in own_tools:
            ask = Ask(asked_of(raw))
        else:
            first, last = (one_line(day, 20) if day else None for day in (date_from, date_to))
            ask = Ask(failed.attempted_query, first, last)
        ledger.record(topic, call, ask, failed)

    return record


def asked_of(arguments: Mapping[str, Any]) -> str:
    """Return what a caller's tool was asked, as one line: its arguments without the topic."""
    return one_line(" ".join(str(value) for name, value in arguments.items() if name != "topic_id"), MAX_QUERY_CHARS)
