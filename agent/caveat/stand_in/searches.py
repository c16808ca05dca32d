"""Searches: the words of a topic's first ones, what came of those that were made, and what follows a failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from caveat.stand_in.calls import Body, Call, read
from caveat.stand_in.sentences import WORD, Passage
from caveat_tools.outcome import MAX_QUERY_CHARS
from caveat_tools.plain_text import clip
from caveat_tools.source import Ask
from caveat_tools.words import content_terms, terms

MAX_QUERY_WORDS: Final = 8
MAX_SEARCH_TURNS: Final = 6
MAX_CALLS_PER_TURN: Final = 12
MAX_FOLLOW_UPS: Final = 2
"""For one topic at one source."""
MAX_RETRY_AFTER_SECONDS: Final = 30.0
_HAN_PARTICLE: Final = re.compile("为什么|什么是|是什么|什么|怎么样?|如何|是否|不是|吗|呢|的")
_YEAR: Final = r"(?<!\d)(1[5-9]\d\d|20\d\d)(?!\d)"
_YEARS: Final = re.compile(_YEAR + r"\s*(?:年|гг?\.)?\s*(?:[-–—]|to|and|until|through|по|до|и|到|至)\s*" + _YEAR)


class Outcome(Body):
    """A search's tool_result, read with patience: what is missing has a harmless default."""

    model_config = ConfigDict(alias_generator=to_camel)

    status: str = ""
    error_type: str = ""
    results: list[Passage] = Field(default_factory=list)
    partial_results: list[Passage] = Field(default_factory=list)
    alternative_approaches: list[str] = Field(default_factory=list)
    is_retryable: bool = False
    retry_after_seconds: float | None = None


class Search(Body):
    """The input of a search call; a subagent's names no topic."""

    topic_id: str = ""
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
        """Return the tool call that carries it out."""
        return Call("search", self.model_dump(exclude_defaults=True))


class Searched(NamedTuple):
    """A search that was carried out, its outcome, and the turn it belongs to."""

    search: Search
    outcome: Outcome
    turn: int


def searches_of(calls: Sequence[Call]) -> list[Searched]:
    """Return the searches among the calls, in order, each with its outcome; what is no search input is left out."""
    done = []
    for call in calls:
        search = read(Search, call.input) if call.name == "search" else None
        if search:
            done.append(Searched(search, read(Outcome, call.result) or Outcome(), call.turn))
    return done


def query_of(topic: str) -> str:
    """Return the topic's first content words as they are written there."""
    wanted = frozenset(content_terms(topic))
    words = [word for word in WORD.findall(_HAN_PARTICLE.sub(" ", topic)) if wanted.intersection(terms(word))]
    return clip(" ".join(words[:MAX_QUERY_WORDS]) or topic, MAX_QUERY_CHARS)[0]


def simplified(query: str) -> str:
    """Return the query's longest two or three words in their order; of equally long ones, the later."""
    words = query.split()
    kept = sorted(range(len(words)), key=lambda at: (-len(words[at]), -at))[: min(3, max(2, len(words) - 1))]
    return " ".join(words[at] for at in sorted(kept))


def follow_ups(question: str, searched: Sequence[Searched]) -> list[Search]:
    """Return what to send after the latest turn's failed and empty results; earlier ones have been followed up."""
    latest = searched[-1].turn
    wanted: list[Search] = []
    for done in searched:
        if done.turn == latest:
            sent = [earlier.search for earlier in searched] + wanted
            wanted += _follow_up(question, done, searched, sent)
    return wanted


def _follow_up(question: str, done: Searched, searched: Sequence[Searched], sent: Sequence[Search]) -> list[Search]:
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


def _changed(search: Search, approach: str, question: str) -> Search:
    """Return the search that carries out an alternative; the search itself where it cannot be carried out."""
    years = _YEARS.search(question)
    match approach.partition(":"):
        case "use_cached_snapshot", "", "":
            return search.model_copy(update={"use_snapshot": True})
        case "simplify_query", "", "":
            return search.model_copy(update={"query": simplified(search.query)})
        case "narrow_query_by_date_range", "", "" if years and years[1] <= years[2]:
            dates = {"date_from": f"{years[1]}-01-01", "date_to": f"{years[2]}-12-31"}
            return search.model_copy(update=dates)
        case "try_source", ":", source:
            return Search(topic_id=search.topic_id, source=source, query=search.query)
    return search


def _is_refused(candidate: Search, searched: Sequence[Searched]) -> bool:
    """Say whether the source has answered this question for good; a snapshot may stand in, except for a blocked one."""
    for search, outcome, _ in searched:
        final = outcome.status == "empty" or (outcome.status == "failed" and not outcome.is_retryable)
        alike = search.use_snapshot == candidate.use_snapshot or outcome.error_type == "blocked"
        if search.key == candidate.key and final and alike:
            return True
    return False
