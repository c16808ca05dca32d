"""The rules of the embedded model: what is done next for a question, given the tool calls made so far.

The coordinator's rules split the question, search, follow up failures and report sentences verbatim; those of the
synthesis string the claims together. Nothing is remembered between two turns. Documents are only cut into sentences and
compared with the question: an instruction inside one is never followed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from caveat_tools.outcome import MAX_QUERY_CHARS
from caveat_tools.plain_text import clip
from caveat_tools.source import Ask
from caveat_tools.words import content_terms, sentences, terms

MAX_TOPICS: Final = 4
MAX_QUERY_WORDS: Final = 8
MAX_SEARCH_TURNS: Final = 6
MAX_CALLS_PER_TURN: Final = 12
MAX_FOLLOW_UPS: Final = 2
"""For one topic at one source."""
MAX_RETRY_AFTER_SECONDS: Final = 30.0
MAX_FINDINGS: Final = 3
"""For one topic."""
_ENOUGH: Final = {1: 1.0, 2: 0.6, 3: 0.5}
"""Share of a topic's weighted terms that a sentence must hold to be reported, by the number of terms it holds, up to 3.

Measured on XQuAD (English, Russian, Chinese) with the five best of 240 passages, without titles: where all passages of
the question's article are taken away, 2.1, 1.5 and 0.3 % of the questions still get a finding; where they are there,
the sentence with the answer is among the findings for 66, 58 and 57 %.
"""
_ABOUT: Final = 0.5
"""What a term counts that stands in the passage's title or address and not in the sentence."""
_BEST_TERMS, _NAMED_TERMS, _BEST_SHARE = 4, 2, 0.3
"""Where no sentence has enough, those will do that hold this share and the first number of terms, or the second number
in a section whose heading is made of the topic's words."""

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
_WORD: Final = re.compile(r"\w+(?:[-'’.+]\w+)*")
_HAN_PARTICLE: Final = re.compile("为什么|什么是|是什么|什么|怎么样?|如何|是否|不是|吗|呢|的")
_YEAR: Final = r"(?<!\d)(1[5-9]\d\d|20\d\d)(?!\d)"
_YEARS: Final = re.compile(_YEAR + r"\s*(?:年|гг?\.)?\s*(?:[-–—]|to|and|until|through|по|до|и|到|至)\s*" + _YEAR)
_STATEMENT_END: Final = re.compile(r"(?<!\.)[.!。！।۔](?:[\"'”’»)\]*_`」』）]|\[\d+\])*$")
_CONTENTS_ENTRY: Final = re.compile(r"\[[^\]\n]*\]\([^)\n]*\)\s*[:–—-]")
_LINE_NUMBER: Final = re.compile(r":\d+$")
_CODE_SIGNS: Final = frozenset("{}[]<>=|\\$#@~^")
_MARKUP_START: Final = ("#", "|", "```", ">>>", "$ ")


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


def _read(model: type[M], value: str | dict[str, Any]) -> M | None:
    """Return JSON, as text or parsed, as a model, or None where it is anything else."""
    try:
        return model.model_validate_json(value) if isinstance(value, str) else model.model_validate(value)
    except ValidationError:
        return None


class _Handover(Body):
    """The answer to report_findings and write_sections."""

    status: str = ""
    problems: list[Any] = Field(default_factory=list)


def _refused(handovers: Sequence[Call], key: str) -> list[Any] | None:
    """Return what the first handover is to be repeated without; None where it stands or has been repeated already."""
    handover = _read(_Handover, handovers[-1].result)
    if len(handovers) > 1 or not handover or handover.status != "revise":
        return None
    return [problem[key] for problem in handover.problems if isinstance(problem, dict) and key in problem]


# --- the coordinator: plan, search, follow up, report


class _Topic(Body):
    id: str
    topic: str


class _Plan(Body):
    topics: list[_Topic]


class _Passage(Body):
    id: str = ""
    title: str = ""
    url: str = ""
    text: str = ""

    @property
    def about(self) -> str:
        """What names the passage: its title and its address, without the line number in a file."""
        return f"{self.title} {_LINE_NUMBER.sub('', self.url)}"

    def is_named_by(self, wanted: frozenset[str]) -> bool:
        """Say whether it stands in a section whose heading is made of these terms."""
        _, inside, heading = self.title.rpartition(" › ")
        named = content_terms(heading) if inside else []
        return bool(named) and wanted.issuperset(named)


class _Outcome(Body):
    """A search's tool_result, read with patience: what is missing has a harmless default."""

    model_config = ConfigDict(alias_generator=to_camel)

    status: str = ""
    error_type: str = ""
    results: list[_Passage] = Field(default_factory=list)
    partial_results: list[_Passage] = Field(default_factory=list)
    alternative_approaches: list[str] = Field(default_factory=list)
    is_retryable: bool = False
    retry_after_seconds: float | None = None


class _Search(Body):
    """The input of a search call."""

    topic_id: str
    source: str
    query: str
    date_from: str | None = None
    date_to: str | None = None
    use_snapshot: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What a source counts as the same question."""
        return self.source, *Ask(self.query, self.date_from, self.date_to).key()

    @property
    def place(self) -> tuple[str, str]:
        """The topic and the source, for which follow-ups are counted."""
        return self.topic_id, self.source

    def call(self) -> Call:
        return Call("search", self.model_dump(exclude_defaults=True))


class _Searched(NamedTuple):
    """A search that was carried out, its outcome, and the turn it belongs to."""

    search: _Search
    outcome: _Outcome
    turn: int


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
    searched = _searched(calls)
    reports = [call for call in calls if call.name == "report_findings"]
    if reports:
        refused = _refused(reports, "finding")
        return "There is nothing more to report." if refused is None else [_report(topics, searched, refused)]
    if told_to_report or len({done.turn for done in searched}) >= MAX_SEARCH_TURNS:
        return [_report(topics, searched)]
    wanted = _follow_ups(question, searched) if searched else []
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
    return all(own[it] >= (2 if any(word[0].isupper() for word in _WORD.findall(it)[1:]) else 3) for it in own)


def _planned(plans: Sequence[Call]) -> dict[str, str]:
    """Return the topics of all plans by id."""
    read = [_read(_Plan, call.result) for call in plans]
    return {topic.id: topic.topic for plan in read if plan for topic in plan.topics}


def _searched(calls: Sequence[Call]) -> list[_Searched]:
    done = []
    for call in calls:
        search = _read(_Search, call.input) if call.name == "search" else None
        if search:
            done.append(_Searched(search, _read(_Outcome, call.result) or _Outcome(), call.turn))
    return done


def _first_searches(topics: dict[str, str], sources: Sequence[str]) -> list[_Search]:
    return [
        _Search(topic_id=topic_id, source=source, query=_query(topic))
        for topic_id, topic in topics.items()
        for source in sources
    ]


def _query(topic: str) -> str:
    """Return the topic's first content words as they are written there."""
    wanted = frozenset(content_terms(topic))
    words = [word for word in _WORD.findall(_HAN_PARTICLE.sub(" ", topic)) if wanted.intersection(terms(word))]
    return clip(" ".join(words[:MAX_QUERY_WORDS]) or topic, MAX_QUERY_CHARS)[0]


def _simplified(query: str) -> str:
    """Return the query's longest two or three words in their order; of equally long ones, the later."""
    words = query.split()
    kept = sorted(range(len(words)), key=lambda at: (-len(words[at]), -at))[: min(3, max(2, len(words) - 1))]
    return " ".join(words[at] for at in sorted(kept))


def _follow_ups(question: str, searched: Sequence[_Searched]) -> list[_Search]:
    """Return what to send after the latest turn's failed and empty results; earlier ones have been followed up."""
    latest = searched[-1].turn
    wanted: list[_Search] = []
    for done in searched:
        if done.turn == latest:
            sent = [earlier.search for earlier in searched] + wanted
            wanted += _follow_up(question, done, searched, sent)
    return wanted


def _follow_up(question: str, done: _Searched, searched: Sequence[_Searched], sent: Sequence[_Search]) -> list[_Search]:
    """Return the one search that follows a result, or nothing where it is to be left at that."""
    search, outcome = done.search, done.outcome
    here = [other for other in sent if other.place == search.place]
    if len(here) > MAX_FOLLOW_UPS:
        return []
    approaches = outcome.alternative_approaches if outcome.status == "failed" else []
    if outcome.status == "empty" and len({other.key for other in here}) == 1:
        found = any(d.outcome.status == "found" and d.search.topic_id == search.topic_id for d in searched)
        approaches = [] if found else ["simplify_query"]
    for approach in approaches:
        candidate = _changed(search, approach, question)
        asked_there = candidate.source != search.source and any(other.place == candidate.place for other in sent)
        if candidate not in sent and not asked_there and not _is_refused(candidate, searched):
            return [candidate]
    soon = (outcome.retry_after_seconds or 0.0) <= MAX_RETRY_AFTER_SECONDS
    again = outcome.is_retryable and soon and sent.count(search) == 1 and not _is_refused(search, searched)
    return [search] if again else []


def _changed(search: _Search, approach: str, question: str) -> _Search:
    """Return the search that carries out an alternative; the search itself where it cannot be carried out."""
    years = _YEARS.search(question)
    match approach.partition(":"):
        case "use_cached_snapshot", "", "":
            return search.model_copy(update={"use_snapshot": True})
        case "simplify_query", "", "":
            return search.model_copy(update={"query": _simplified(search.query)})
        case "narrow_query_by_date_range", "", "" if years and years[1] <= years[2]:
            dates = {"date_from": f"{years[1]}-01-01", "date_to": f"{years[2]}-12-31"}
            return search.model_copy(update=dates)
        case "try_source", ":", source:
            return _Search(topic_id=search.topic_id, source=source, query=search.query)
    return search


def _is_refused(candidate: _Search, searched: Sequence[_Searched]) -> bool:
    """Say whether the source has answered this question for good; a snapshot may stand in, except for a blocked one."""
    for search, outcome, _ in searched:
        final = outcome.status == "empty" or (outcome.status == "failed" and not outcome.is_retryable)
        alike = search.use_snapshot == candidate.use_snapshot or outcome.error_type == "blocked"
        if search.key == candidate.key and final and alike:
            return True
    return False


def _report(topics: dict[str, str], searched: Sequence[_Searched], refused: Collection[Any] = ()) -> Call:
    """Return the report; the findings whose numbers, from 1, were refused are left out."""
    findings: list[dict[str, Any]] = []
    for topic_id, topic in topics.items():
        outcomes = [done.outcome for done in searched if done.search.topic_id == topic_id]
        passages = [p for outcome in outcomes for p in (*outcome.results, *outcome.partial_results) if p.id]
        findings += [
            {"topic_id": topic_id, "text": text, "evidence": [{"id": passage.id, "quote": quote}]}
            for text, quote, passage in _best_sentences(topic, passages)
        ]
    findings = [finding for number, finding in enumerate(findings, 1) if number not in refused]
    answered = {finding["topic_id"] for finding in findings}
    open_points = [
        {"topic_id": topic_id, "what": f"nothing to quote was found for: {topic}"}
        for topic_id, topic in topics.items()
        if topic_id not in answered
    ]
    return Call("report_findings", {"findings": findings, "open_points": open_points})


def _best_sentences(topic: str, passages: Iterable[_Passage]) -> list[tuple[str, str, _Passage]]:
    """Return up to three (text, quote, passage) whose sentence holds most of the topic's terms, the best first.

    A term counts the more, the fewer of the sentences contain it; one that none contains counts most, so that sentences
    about everything but the point of the question stay out. Every number that is asked about must be there. To a
    sentence with a term of its own, those in the title and address of its passage are added. Sentences of the same
    words are one.
    """
    wanted = frozenset(content_terms(topic))
    found: dict[tuple[str, ...], tuple[str, _Passage]] = {}
    for passage in passages:
        for sentence in sentences(passage.text):
            found.setdefault(tuple(_WORD.findall(sentence.casefold())), (sentence, passage))
    own = {key: wanted.intersection(terms(sentence)) for key, (sentence, _) in found.items()}
    numbers = {term for term in wanted if term.isdecimal()}
    held = {key: own[key] and own[key] | wanted.intersection(terms(found[key][1].about)) for key in found}
    frequency = Counter(chain.from_iterable(held.values()))
    weight = {term: 1 + math.log((len(found) + 1) / (frequency[term] + 1)) for term in wanted}
    total = sum(weight[term] for term in sorted(wanted))
    share = {
        key: sum(weight[term] * (1.0 if term in own[key] else _ABOUT) for term in sorted(held[key])) / total
        for key, (sentence, _) in found.items()
        if held[key] and numbers <= held[key] and _is_statement(sentence)
    }
    ranked = sorted(share, key=lambda key: -share[key] * (1.0 if 30 <= len(found[key][0].encode()) <= 400 else 0.7))
    best = [key for key in ranked if share[key] >= _ENOUGH[min(3, len(held[key]))]]
    best = best or [
        key
        for key in ranked
        if share[key] >= _BEST_SHARE
        and len(held[key]) >= (_NAMED_TERMS if found[key][1].is_named_by(wanted) else _BEST_TERMS)
    ]
    return [(" ".join(found[key][0].split()), *found[key]) for key in best[:MAX_FINDINGS]]


def _is_statement(sentence: str) -> bool:
    """Say whether this is a whole sentence that states something: no heading, fragment, question, table row or code.

    Nor two words ("Chapter 2.") or an entry of a list of links ("[Retries](retries.md): waits and limits.").
    """
    if sentence.startswith(_MARKUP_START) or "\n    " in sentence or not _STATEMENT_END.search(sentence):
        return False
    if len(terms(sentence)) < 3 or _CONTENTS_ENTRY.match(sentence):
        return False
    return sum(char in _CODE_SIGNS for char in sentence) <= 0.06 * len(sentence)


# --- the synthesis: claims in a row


class _Claim(Body):
    id: str
    text: str


class _Claimed(Body):
    """A topic as synthesis is given it."""

    id: str
    claims: list[_Claim] = Field(default_factory=list)


class _Claims(Body):
    topics: list[_Claimed] = Field(default_factory=list)


def synthesise(claims: str, calls: Sequence[Call]) -> str | list[Call]:
    """Return the call that writes the sections, or a text once they stand.

    `claims` is the JSON that the analysis hands over, `calls` are all those made so far, in order.
    """
    written = [call for call in calls if call.name == "write_sections"]
    refused = _refused(written, "topic_id") if written else []
    if refused is None:
        return "The sections are written."
    claimed = _read(_Claims, claims) or _Claims()
    sections = [
        {"topic_id": topic.id, "text": " ".join(f"{claim.text} [{claim.id}]" for claim in topic.claims)}
        for topic in claimed.topics
        if topic.claims and topic.id not in refused
    ]
    return [Call("write_sections", {"sections": sections})]
