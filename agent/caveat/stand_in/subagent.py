"""The subagent: searches the sources it is given for one topic, notes what it finds on the way, reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from caveat.stand_in.calls import Body, Call, Handover, read, refused_by
from caveat.stand_in.searches import (
    MAX_CALLS_PER_TURN,
    MAX_SEARCH_TURNS,
    Outcome,
    Search,
    Searched,
    follow_ups,
    query_of,
    searches_of,
    simplified,
)
from caveat.stand_in.sentences import NOTHING_TO_QUOTE, Finding, Words, quoted, words_of


class _Topic(Body):
    topic: str = ""


class _Asked(Body):
    """A search of an earlier subagent for the same topic."""

    source: str = ""
    query: str = ""
    status: str = ""

    def searched(self) -> Searched:
        """Return it as if it stood before this conversation; a failed one counts as final, so that none repeats it."""
        return Searched(Search(source=self.source, query=self.query), Outcome(status=self.status), -1)


class _Known(Body):
    findings: list[Finding] = Field(default_factory=list)
    asked: list[_Asked] = Field(default_factory=list)


class _Task(Body):
    """The task as the delegation hands it over, read with patience."""

    question: str = ""
    topic: _Topic = _Topic()
    brief: str = ""
    sources: list[str] = Field(default_factory=list)
    known: _Known | None = None


class _Noted(Body):
    findings: list[Finding] = Field(default_factory=list)


class _Seen(NamedTuple):
    """What there is to work with: the topic, the searches made for it, and the findings handed over or refused."""

    topic: str
    searched: list[Searched]
    said: set[Words]
    dropped: set[Words]

    def findings(self) -> list[dict[str, Any]]:
        """Return the best findings that have been neither handed over nor refused."""
        passages = [p for done in self.searched for p in (*done.outcome.results, *done.outcome.partial_results)]
        return quoted(self.topic, passages, self.said | self.dropped)


def work_on(task: str, offered: Sequence[str], calls: Sequence[Call], *, told_to_report: bool) -> str | list[Call]:
    """Return the subagent's next tool calls, or a text that ends its work where there is nothing to do.

    `task` is the JSON of the delegation; `offered` are the sources of the search tool, for a task that names none.
    `calls` are all those made so far, in order; `told_to_report` says that few turns are left.
    """
    given = read(_Task, task) or _Task()
    topic = " ".join((given.topic.topic or given.brief).split())
    if not topic:
        return "There is no task to work on."
    known = given.known or _Known()
    made = searches_of(calls)
    said, dropped = _noted(calls)
    seen = _Seen(topic, made, said | {words_of(finding.text) for finding in known.findings}, dropped)
    reports = [call for call in calls if call.name == "report_findings"]
    if reports:
        refused = refused_by(reports, "finding")
        return "There is nothing more to report." if refused is None else [_report(seen, refused)]
    if told_to_report or len({done.turn for done in made}) >= MAX_SEARCH_TURNS:
        return [_report(seen)]
    earlier = [asked.searched() for asked in known.asked]
    wanted = follow_ups(f"{topic} | {given.question}", [*earlier, *made]) if made else []
    begun = {search.source for search in (*(done.search for done in made), *wanted)}
    for source in dict.fromkeys(given.sources or offered):
        wanted += _first_search(topic, source, earlier) if source not in begun else []
    if not wanted:
        return [_report(seen)]
    findings = seen.findings()
    notes = [Call("note_findings", {"findings": findings})] if findings else []
    return [*notes, *(search.call() for search in wanted)][:MAX_CALLS_PER_TURN]


def _first_search(topic: str, source: str, earlier: Sequence[Searched]) -> list[Search]:
    """Return the first search in a source, in words that were not asked there before.

    Where there are no others, the same words are asked once more, but only of a source that has never answered.
    """
    query = query_of(topic)
    searches = [Search(source=source, query=words) for words in (query, simplified(query))]
    there = [done for done in earlier if done.search.source == source]
    asked = {done.search.key for done in there}
    fresh = [search for search in searches if search.key not in asked]
    if not fresh and all(done.outcome.status == "failed" for done in there):
        return searches[:1]
    return fresh[:1]


def _noted(calls: Sequence[Call]) -> tuple[set[Words], set[Words]]:
    """Return what note_findings has taken over, and what it has refused; the others of such a note are kept."""
    said: set[Words] = set()
    dropped: set[Words] = set()
    for call in calls:
        noted = read(_Noted, call.input) if call.name == "note_findings" else None
        if noted:
            answer = read(Handover, call.result) or Handover()
            refused = answer.refused("finding")
            texts = {number: words_of(finding.text) for number, finding in enumerate(noted.findings, 1)}
            dropped |= {words for number, words in texts.items() if number in refused}
            said |= set() if answer.status == "failed" else set(texts.values()) - dropped
    return said, dropped


def _report(seen: _Seen, refused: Collection[Any] = ()) -> Call:
    """Return the report: what has not been noted, without the findings whose numbers, from 1, were refused."""
    findings = [finding for number, finding in enumerate(seen.findings(), 1) if number not in refused]
    open_points = [] if findings or seen.said else [NOTHING_TO_QUOTE.format(seen.topic)]
    return Call("report_findings", {"findings": findings, "open_points": open_points})
