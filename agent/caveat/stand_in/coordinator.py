"""The coordinator: plans the topics, searches for them or delegates them, follows failures up, reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from caveat.stand_in.calls import Body, Call, read, refused_by
from caveat.stand_in.searches import (
    MAX_CALLS_PER_TURN,
    MAX_SEARCH_TURNS,
    Outcome,
    Search,
    Searched,
    follow_ups,
    query_of,
    searches_of,
)
from caveat.stand_in.sentences import NOTHING_TO_QUOTE, WORD, Finding, Passage, Words, quoted, words_of
from caveat_tools.outcome import MAX_QUERY_CHARS
from caveat_tools.plain_text import clip
from caveat_tools.words import content_terms, sentences, terms

MAX_TOPICS: Final = 4

# An "and" divides a question only before another question: "benefits and harms of screening" is one topic.
_CLAUSE_ENDS: Final = re.compile(
    r"\s*[;；]\s*|,?\s+(?:and|и)\s+(?=(?:what|why|how|when|where|who|whom|whose|which"
    r"|что|почему|как|как(?:ой|ая|ое|ие|ов|ова|ово|овы)|когда|где|кто|куда|откуда|сколько|зачем|чем)\b)",
    re.IGNORECASE,
)
_REFERS_BACK: Final = re.compile(
    r"\b(?:it|its|they|them|their|he|him|his|she|her|this|that|these|those|there|so"
    r"|он|она|оно|они|его|её|ее|их|ему|ей|им|это|этот|эта|эти|того|там|er|sie|es|ihn|ihm|ihr|dies\w*)\b",
    re.IGNORECASE,
)


class _Topic(Body):
    id: str
    topic: str


class _Plan(Body):
    topics: list[_Topic]


class _FailedSource(Body):
    source: str = ""
    error: Outcome | None = None


class _Returned(Body):
    """A delegation's tool_result, read with patience."""

    model_config = ConfigDict(alias_generator=to_camel)

    status: str = ""
    failed_sources: list[_FailedSource] = Field(default_factory=list)
    pending_sources: list[str] = Field(default_factory=list)
    findings: list[Finding] = Field(default_factory=list)
    preliminary_findings: list[Finding] = Field(default_factory=list)
    partial_results: list[Passage] = Field(default_factory=list)

    @property
    def sources_left(self) -> list[str]:
        """The sources to ask once more; none where the subagent came to ask them all and has followed up itself."""
        if self.status not in {"partial", "failed"} or not self.pending_sources:
            return []
        again = [failed.source for failed in self.failed_sources if failed.error and failed.error.is_retryable]
        return list(dict.fromkeys(source for source in (*again, *self.pending_sources) if source))

    @property
    def handed_over(self) -> set[Words]:
        """The statements that it reported or noted."""
        return {words_of(finding.text) for finding in (*self.findings, *self.preliminary_findings)}

    @property
    def unread(self) -> list[Passage]:
        """What it came by and may not have come to quote.

        Of a subagent that handed findings over, and only had sources that failed, it is what it left out.
        """
        has_finished = self.handed_over and self.failed_sources and not self.pending_sources
        return [] if has_finished else self.partial_results


class _Delegate(Body):
    """The input of a delegate call."""

    topic_id: str
    brief: str = ""
    sources: list[str] = Field(default_factory=list)

    def call(self) -> Call:
        return Call("delegate", self.model_dump())


class _Delegated(NamedTuple):
    """A topic that was delegated, and what came back."""

    topic_id: str
    returned: _Returned


class _Seen(NamedTuple):
    """What there is to work with: the topics by id, and what was done for them."""

    topics: dict[str, str]
    searched: list[Searched]
    delegated: list[_Delegated]


def coordinate(
    question: str, sources: Sequence[str], calls: Sequence[Call], *, can_delegate: bool, told_to_report: bool
) -> str | list[Call]:
    """Return the coordinator's next tool calls, or a text that ends the run where there is nothing to do.

    `calls` are all those made so far, in order; `told_to_report` says that few turns are left. Where it `can_delegate`,
    two topics or more go to a subagent each, and it searches for none of them itself.
    """
    if not question:
        return "There is no question to work on."
    plans = [call for call in calls if call.name == "plan_topics"]
    if not plans:
        return [Call("plan_topics", {"topics": _topics(question)})]
    seen = _Seen(_planned(plans) or {"T1": question}, searches_of(calls), _delegated(calls))
    reports = [call for call in calls if call.name == "report_findings"]
    if reports:
        refused = refused_by(reports, "finding")
        return "There is nothing more to report." if refused is None else [_report(seen, refused)]
    if told_to_report or len({done.turn for done in seen.searched}) >= MAX_SEARCH_TURNS:
        return [_report(seen)]
    if can_delegate and len(seen.topics) > 1:
        wanted = [delegate.call() for delegate in _delegations(seen, sources)]
    else:
        wanted = [search.call() for search in _searches(question, seen, sources)]
    return wanted[:MAX_CALLS_PER_TURN] or [_report(seen)]


def _topics(question: str) -> list[str]:
    """Split a question into at most four parts that can each be searched for; the whole question where none can."""
    wanted = frozenset(content_terms(question))
    topics: list[str] = []
    for part in chain.from_iterable(_CLAUSE_ENDS.split(sentence) for sentence in sentences(question)):
        if topics and (len(topics) == MAX_TOPICS or not _are_two(wanted, topics[-1], part)):
            topics[-1] += f" {part}"
        else:
            topics.append(part)
    return list(dict.fromkeys(clip(topic, MAX_QUERY_CHARS)[0] for topic in (topics if len(topics) > 1 else [question])))


def _are_two(wanted: frozenset[str], topic: str, part: str) -> bool:
    """Say whether two neighbouring parts of a question can each be searched for alone.

    Each has three content terms of its own, or two and a name; of two whole questions one term is enough for each,
    unless the second refers to the first.
    """
    own = {it: len(wanted.intersection(terms(it))) for it in (topic, part)}
    if topic.endswith(("?", "？")) and part.endswith(("?", "？")) and not _REFERS_BACK.search(part):
        return all(own.values())
    return all(own[it] >= (2 if any(word[0].isupper() for word in WORD.findall(it)[1:]) else 3) for it in own)


def _planned(plans: Sequence[Call]) -> dict[str, str]:
    """Return the topics of all plans by id."""
    made = [read(_Plan, call.result) for call in plans]
    return {topic.id: topic.topic for plan in made if plan for topic in plan.topics}


def _delegated(calls: Sequence[Call]) -> list[_Delegated]:
    done = []
    for call in calls:
        delegate = read(_Delegate, call.input) if call.name == "delegate" else None
        if delegate:
            done.append(_Delegated(delegate.topic_id, read(_Returned, call.result) or _Returned()))
    return done


def _searches(question: str, seen: _Seen, sources: Sequence[str]) -> list[Search]:
    """Return what to search for next: follow-ups, then what has not been asked at all."""
    wanted = follow_ups(question, seen.searched) if seen.searched else []
    begun = {done.search.place for done in seen.searched} | {search.place for search in wanted}
    first = [
        Search(topic_id=topic_id, source=source, query=query_of(topic))
        for topic_id, topic in seen.topics.items()
        for source in sources
    ]
    return wanted + [search for search in first if search.place not in begun]


def _delegations(seen: _Seen, sources: Sequence[str]) -> list[_Delegate]:
    """Return the topics to delegate: all of them at first, then once more those whose subagent left sources unasked."""
    if not seen.delegated:
        topics = list(seen.topics.items())[:MAX_TOPICS] if sources else []
        return [_delegate("Find out:", topic_id, topic, sources) for topic_id, topic in topics]
    times = Counter(done.topic_id for done in seen.delegated)
    return [
        _delegate(f"Ask only {' and '.join(left)}:", topic_id, seen.topics[topic_id], left)
        for topic_id, returned in seen.delegated
        if (left := returned.sources_left) and times[topic_id] == 1 and topic_id in seen.topics
    ]


def _delegate(what: str, topic_id: str, topic: str, sources: Sequence[str]) -> _Delegate:
    brief = clip(f"{what} {' '.join(topic.split())}", MAX_QUERY_CHARS)[0]
    return _Delegate(topic_id=topic_id, brief=brief, sources=list(sources))


def _report(seen: _Seen, refused: Collection[Any] = ()) -> Call:
    """Return the report; the findings whose numbers, from 1, were refused are left out.

    What a subagent has handed over is in the record already: only what it did not come to quote is quoted here.
    """
    findings: list[dict[str, Any]] = []
    answered: set[str] = set()
    for topic_id, topic in seen.topics.items():
        outcomes = [done.outcome for done in seen.searched if done.search.topic_id == topic_id]
        returned = [done.returned for done in seen.delegated if done.topic_id == topic_id]
        theirs = {words for one in returned for words in one.handed_over}
        answered |= {topic_id} if theirs else set()
        passages = [p for outcome in outcomes for p in (*outcome.results, *outcome.partial_results)]
        passages += [passage for one in returned for passage in one.unread]
        findings += [{"topic_id": topic_id, **finding} for finding in quoted(topic, passages, theirs)]
    findings = [finding for number, finding in enumerate(findings, 1) if number not in refused]
    answered |= {finding["topic_id"] for finding in findings}
    open_points = [
        {"topic_id": topic_id, "what": NOTHING_TO_QUOTE.format(topic)}
        for topic_id, topic in seen.topics.items()
        if topic_id not in answered
    ]
    return Call("report_findings", {"findings": findings, "open_points": open_points})
