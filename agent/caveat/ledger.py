"""The ledger: what was asked, where, with what outcome, what the coordinator did next, and so what each topic is worth.

Coverage is computed here, from outcomes and verified claims, and from nothing that a model says of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from caveat.loop import Call
from caveat_tools.outcome import Empty, Failed, Found, Result, results_of, with_results
from caveat_tools.plain_text import one_line
from caveat_tools.source import Ask

State: TypeAlias = Literal["covered", "partial", "searched_empty", "failed", "not_attempted"]
Next: TypeAlias = Literal["retried_same", "retried_changed", "alternative", "snapshot", "went_on", "gave_up"]

MAX_TOPICS: Final = 8
NOT_THE_SOURCES_FAULT: Final = frozenset({"invalid_arguments", "blocked"})
"""Failures of the call itself: the model's mistake or a repeat that the guard refused. They leave no gap of their own,
since the answer that the guard refers to is in the ledger already."""


NOT_SENT: Final = frozenset({"blocked", "budget_exhausted", "cancelled"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One search call: its topic (None: it fits none), where it stood, and its outcome with numbered results."""

    topic: str | None
    call: Call
    ask: Ask
    outcome: Found | Empty | Failed

    @property
    def source(self) -> str:
        """The source that was asked, or that the model believed to exist."""
        return self.outcome.source

    @property
    def is_snapshot(self) -> bool:
        """True for an answer out of the cache."""
        return isinstance(self.outcome, Found) and self.outcome.served_from == "snapshot"

    @property
    def answered(self) -> bool:
        """True where the source itself answered: found or empty, live."""
        return not isinstance(self.outcome, Failed) and not self.is_snapshot

    @property
    def is_refused_repeat(self) -> bool:
        """True where the guard refused a query that the source had already answered or refused."""
        return isinstance(self.outcome, Failed) and self.outcome.error_type == "blocked"

    @property
    def did_not_fit(self) -> bool:
        """True for a call with arguments that no source could be asked with."""
        return isinstance(self.outcome, Failed) and self.outcome.error_type == "invalid_arguments"

    @property
    def was_never_sent(self) -> bool:
        """True where the guard, the budget or a stop came first."""
        outcome = self.outcome
        return isinstance(outcome, Failed) and not outcome.attempts and outcome.error_type in NOT_SENT

    @property
    def leaves_a_gap(self) -> bool:
        """True where a source that should have been searched was not: all failures but those of the call itself."""
        return isinstance(self.outcome, Failed) and self.outcome.error_type not in NOT_THE_SOURCES_FAULT


@dataclass(frozen=True, slots=True)
class Evidence:
    """A numbered passage that was shown to the model, with where and when it was had, and in which turn.

    `retrieved_at` is ISO 8601; of a snapshot, it is when the source gave it.
    """

    result: Result
    source: str
    retrieved_at: str
    turn: int
    snapshot_age_seconds: int | None = None


class Ledger:
    """The account of one run. Entries come in tool_use order, never in order of arrival."""

    def __init__(self, question: str, now: Callable[[], datetime]) -> None:
        """`now` gives the time of retrieval, aware, in UTC."""
        self._question = one_line(question, 300)
        self._now = now
        self._planned = False
        self.topics: dict[str, str] = {"T1": self._question}
        self.entries: list[Entry] = []
        self.evidence: dict[str, Evidence] = {}
        self._numbers: dict[tuple[str, str, str], str] = {}
        self._works: dict[str, set[str]] = {}
        self._settled: dict[tuple[str, tuple[str, str, str]], list[Entry]] = {}
        """The calls that were answered or failed at their source, by source and query."""

    def plan(self, topics: Iterable[str]) -> tuple[dict[str, str], list[str]]:
        """Add topics; return those named by id, and those for which there was no room. None is ever removed.

        The first plan takes the place of the topic that stands for the whole question, unless that was searched. A call
        that was refused before any source was asked was no search.
        """
        if not self._planned and all(entry.did_not_fit or entry.was_never_sent for entry in self.entries):
            self.topics.clear()
        self._planned = True
        ids = {text: key for key, text in self.topics.items()}
        named: dict[str, str] = {}
        left_out: list[str] = []
        for topic in topics:
            text = one_line(topic, 300)
            if text and text not in ids and len(self.topics) < MAX_TOPICS:
                ids[text] = f"T{len(self.topics) + 1}"
                self.topics[ids[text]] = text
            if text in ids:
                named[ids[text]] = text
            elif text:
                left_out.append(text)
        if not self.topics:
            self.topics["T1"] = self._question
        return named, left_out

    def record(
        self, topic: str | None, call: Call, ask: Ask, outcome: Found | Empty | Failed, at: datetime | None = None
    ) -> Found | Empty | Failed:
        """Number the outcome's results, keep them as evidence, enter the call; return the numbered outcome.

        `at` is when the outcome was had, by default now.
        """
        at = at or self._now()
        results = results_of(outcome)
        if results and not isinstance(outcome, Empty):
            outcome = with_results(outcome, tuple(self._numbered(outcome, result, call.turn, at) for result in results))
        entry = Entry(topic if topic in self.topics else None, call, ask, outcome)
        self.entries.append(entry)
        if entry.answered or (entry.leaves_a_gap and not entry.was_never_sent):
            self._settled.setdefault((entry.source, ask.key()), []).append(entry)
        return outcome

    def _numbered(self, outcome: Found | Failed, result: Result, turn: int, at: datetime) -> Result:
        """Return the result with its id; the same passage of the same source always has the same one.

        One that comes again may name more identifiers than before.
        """
        number = self._numbers.setdefault((outcome.source, result.url, result.text), f"S{len(self._numbers) + 1}")
        self._add_to_works(number, result.identifiers)
        if number not in self.evidence:
            age = outcome.snapshot_age_seconds if isinstance(outcome, Found) else None
            retrieved_at = f"{at - timedelta(seconds=age or 0):%Y-%m-%dT%H:%M:%SZ}"
            self.evidence[number] = Evidence(self._named(result, number), outcome.source, retrieved_at, turn, age)
        return self._named(result, number)

    def _named(self, result: Result, number: str) -> Result:
        first = self.first_of_work(number)
        return result.model_copy(update={"id": number, "same_work_as": first if first != number else None})

    def _add_to_works(self, number: str, identifiers: Sequence[str]) -> None:
        """Enter a work's identifiers under the first evidence of it; one that names two works shows that they are one.

        Each work is a set of identifiers and of the ids of its evidence, under the earliest of these.
        """
        names = {number, *identifiers}
        same = [first for first, known in self._works.items() if known & names]
        for first in same[1:]:
            names |= self._works.pop(first)
        self._works.setdefault(same[0] if same else number, set()).update(names)

    def first_of_work(self, number: str) -> str:
        """Return the id of the earliest evidence that is of the same work, by what is known up to now."""
        return next(first for first, known in self._works.items() if number in known)

    def texts_shown_before(self, turn: int) -> dict[str, str]:
        """Return by id the text of all evidence that the model had seen when it spoke in `turn`: what it may quote."""
        return {key: evidence.result.text for key, evidence in self.evidence.items() if evidence.turn < turn}

    def of(self, topic: str | None) -> list[Entry]:
        """Return the entries of one topic, or those that belong to none."""
        return [entry for entry in self.entries if entry.topic == topic]

    def state(self, topic: str, *, has_verified_claim: bool) -> State:
        """Return the topic's coverage by the rules of docs/coverage.md."""
        still_open = self.open_failures(topic, has_verified_claim=has_verified_claim)
        if has_verified_claim:
            return "partial" if still_open else "covered"
        entries = self._standing(topic)
        if not any(e.answered or e.is_snapshot or (e.leaves_a_gap and not e.was_never_sent) for e in entries):
            return "not_attempted"
        return "failed" if still_open else "searched_empty"

    def open_failures(self, topic: str, *, has_verified_claim: bool) -> list[Entry]:
        """Return the access failures of a topic that no later call made good, in order.

        A later call to the same source makes one failure good if it is the same query and was answered; or, in a topic
        that has a verified claim, if it is another query that found something. Each call makes good one failure only.
        Another source, a snapshot, or another query that found nothing does not: the failed query's own answer is still
        unknown.
        """
        entries = self._standing(topic)
        fits = (_same_query, _other_query_found) if has_verified_claim else (_same_query,)
        return _not_made_good(entries, fits)

    def _standing(self, topic: str) -> list[Entry]:
        """Return the topic's entries; an unsent repeat stands for what another topic was answered, or falls away."""
        standing = []
        for entry in self.of(topic):
            original = self._original(entry)
            if original is None:
                standing.append(entry)
            elif original.topic != topic:
                call = original.call if original.answered else entry.call  # an answer makes good what came before it
                standing.append(replace(entry, outcome=original.outcome, call=call))
        return standing

    def _original(self, entry: Entry) -> Entry | None:
        """Return the call that an unsent repeat repeats: answered, or refused for good by its source."""
        if not entry.was_never_sent:
            return None
        same = self._settled.get((entry.source, entry.ask.key()), [])
        answered = next((e for e in same if e.answered), None)
        return answered or (same[-1] if same and entry.is_refused_repeat else None)

    def next_after(self, entry: Entry, *, has_verified_claim: bool) -> Next | None:
        """Return what the coordinator did after a failure, by its next call on the topic; None after a success."""
        if not isinstance(entry.outcome, Failed):
            return None
        later = [e for e in self.of(entry.topic) if e.call.turn > entry.call.turn]
        if not later:
            return "went_on" if has_verified_claim else "gave_up"
        following = later[0]
        for candidate in later:
            if candidate.call.turn == following.call.turn and candidate.source == entry.source:
                following = candidate
                break
        if following.source != entry.source:
            return "alternative"
        if following.ask.key() != entry.ask.key():
            return "retried_changed"
        return "snapshot" if following.is_snapshot else "retried_same"


def _not_made_good(entries: Sequence[Entry], ways: Sequence[Callable[[Entry, Entry], bool]]) -> list[Entry]:
    still_open = [entry for entry in entries if entry.leaves_a_gap]
    answers = [entry for entry in entries if entry.answered]
    spent: set[int] = set()
    for fits in ways:
        for failure in list(still_open):
            for place, entry in enumerate(answers):
                later = entry.call.turn > failure.call.turn and entry.source == failure.source
                if later and place not in spent and fits(failure, entry):
                    spent.add(place)
                    still_open.remove(failure)
                    break
    return still_open


def _same_query(failure: Entry, entry: Entry) -> bool:
    return entry.ask.key() == failure.ask.key()


def _other_query_found(_failure: Entry, entry: Entry) -> bool:
    return isinstance(entry.outcome, Found)
