"""The coordinator: plans the topics, searches for them or delegates them, follows failures up, reports."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Final

from caveat.stand_in.calls import Body, Call, read, refused_by
from caveat.stand_in.searches import (
    MAX_CALLS_PER_TURN,
    MAX_SEARCH_TURNS,
    Search,
    Searched,
    follow_ups,
    query_of,
    searches_of,
)
from caveat.stand_in.sentences import WORD, best_sentences
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


def coordinate(
    question: str, sources: Sequence[str], calls: Sequence[Call], *, told_to_report: bool
) -> str | list[Call]:
    """Return the coordinator's next tool calls, or a text that ends the run where there is nothing to do.

    `calls` are all those made so far, in order; `told_to_report` says that few turns are left.
    """
    if not question:
        return "There is no question to work on."
    plans = [call for call in calls if call.name == "plan_topics"]
    if not plans:
        return [Call("plan_topics", {"topics": _topics(question)})]
    topics = _planned(plans) or {"T1": question}
    searched = searches_of(calls)
    reports = [call for call in calls if call.name == "report_findings"]
    if reports:
        refused = refused_by(reports, "finding")
        return "There is nothing more to report." if refused is None else [_report(topics, searched, refused)]
    if told_to_report or len({done.turn for done in searched}) >= MAX_SEARCH_TURNS:
        return [_report(topics, searched)]
    wanted = follow_ups(question, searched) if searched else []
    begun = {done.search.place for done in searched} | {search.place for search in wanted}
    wanted += [search for search in _first_searches(topics, sources) if search.place not in begun]
    return [search.call() for search in wanted[:MAX_CALLS_PER_TURN]] or [_report(topics, searched)]


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


def _first_searches(topics: dict[str, str], sources: Sequence[str]) -> list[Search]:
    return [
        Search(topic_id=topic_id, source=source, query=query_of(topic))
        for topic_id, topic in topics.items()
        for source in sources
    ]


def _report(topics: dict[str, str], searched: Sequence[Searched], refused: Collection[Any] = ()) -> Call:
    """Return the report; the findings whose numbers, from 1, were refused are left out."""
    findings: list[dict[str, Any]] = []
    for topic_id, topic in topics.items():
        outcomes = [done.outcome for done in searched if done.search.topic_id == topic_id]
        passages = [p for outcome in outcomes for p in (*outcome.results, *outcome.partial_results) if p.id]
        findings += [
            {"topic_id": topic_id, "text": text, "evidence": [{"id": passage.id, "quote": quote}]}
            for text, quote, passage in best_sentences(topic, passages)
        ]
    findings = [finding for number, finding in enumerate(findings, 1) if number not in refused]
    answered = {finding["topic_id"] for finding in findings}
    open_points = [
        {"topic_id": topic_id, "what": f"nothing to quote was found for: {topic}"}
        for topic_id, topic in topics.items()
        if topic_id not in answered
    ]
    return Call("report_findings", {"findings": findings, "open_points": open_points})
