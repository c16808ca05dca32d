"""The ledger: numbers, topics, what happened after a failure, and the state of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat.ledger import Ledger
from caveat.loop import Call
from caveat_tools.clock import FakeClock
from caveat_tools.outcome import ERROR_KINDS, Empty, ErrorType, Failed, Found, Result, results_of
from caveat_tools.source import Ask


def found(text: str = "text", source: str = "wiki", **more: Any) -> Found:
    return Found(source=source, query="q", results=(Result(title="t", url="u", text=text),), **more)


def empty(source: str = "wiki") -> Empty:
    return Empty(source=source, query="q", guidance="g")


def failed(source: str = "wiki", error_type: ErrorType = "timeout", **more: Any) -> Failed:
    fields: dict[str, Any] = {
        "source": source,
        "error_type": error_type,
        "attempted_query": "q",
        "is_retryable": True in ERROR_KINDS[error_type].retryable,
        "attempts": 3,
        "message": "m",
        "guidance": "g",
    }
    return Failed(**{**fields, **more})


class Story:
    """A ledger that is filled turn by turn."""

    def __init__(self) -> None:
        self.ledger = Ledger("the question", FakeClock().now)

    def turn(self, number: int, *calls: tuple[str, Found | Empty | Failed], topic: str | None = "T1") -> Story:
        for place, (query, outcome) in enumerate(calls):
            self.ledger.record(topic, Call(number, place, last=False), Ask(query), outcome)
        return self

    def state(self, *, claim: bool) -> str:
        return self.ledger.state("T1", has_verified_claim=claim)

    def next(self, place: int = 0, *, claim: bool = False) -> str | None:
        return self.ledger.next_after(self.ledger.entries[place], has_verified_claim=claim)


def test_without_a_plan_the_question_is_the_only_topic() -> None:
    """A model that never plans still has its searches counted for something."""
    assert Ledger("the question", FakeClock().now).topics == {"T1": "the question"}


def test_topics_get_ids_and_are_never_removed_or_renamed() -> None:
    """A second plan adds; what is there keeps its id."""
    ledger = Ledger("q", FakeClock().now)
    assert ledger.plan(["dams", "floods"]) == ({"T1": "dams", "T2": "floods"}, [])
    assert ledger.plan(["floods", "treaties"]) == ({"T2": "floods", "T3": "treaties"}, [])
    assert list(ledger.topics.values()) == ["dams", "floods", "treaties"]


def test_a_plan_after_a_search_keeps_the_topic_that_was_searched() -> None:
    """Nothing that was asked loses its topic."""
    story = Story().turn(1, ("q", empty()))
    story.ledger.plan(["dams"])
    assert story.ledger.topics == {"T1": "the question", "T2": "dams"}


@pytest.mark.parametrize("error_type", ["invalid_arguments", "budget_exhausted"])
def test_a_call_that_reached_no_source_takes_no_number_from_the_plan(error_type: ErrorType) -> None:
    """A model that misspells its first call and plans then gets T1 for its first topic, as it was told."""
    story = Story().turn(1, ("q", failed(error_type=error_type, attempts=0)))
    story.ledger.plan(["dams"])
    assert story.ledger.topics == {"T1": "dams"}


def test_no_more_than_eight_topics_are_taken() -> None:
    """A plan of a hundred topics does not spread the budget to nothing."""
    ledger = Ledger("q", FakeClock().now)
    _, left_out = ledger.plan([f"topic {n}" for n in range(100)])
    assert len(ledger.topics) == 8
    assert left_out == [f"topic {n}" for n in range(8, 100)]


def test_a_plan_of_blank_topics_leaves_the_question() -> None:
    """There is always a topic."""
    ledger = Ledger("q", FakeClock().now)
    assert ledger.plan(["  ", "\x00"]) == ({}, [])
    assert ledger.topics == {"T1": "q"}


def test_results_are_numbered_in_the_order_of_the_calls_and_the_same_passage_keeps_its_number() -> None:
    """S1 is S1 wherever it turns up again, so a citation always means one passage."""
    story = Story()
    record = story.ledger.record
    first = record("T1", Call(1, 0, last=False), Ask("a"), found("one"))
    second = record(
        "T1", Call(1, 1, last=False), Ask("b"), failed(partial_results=(Result(title="t", url="u", text="two"),))
    )
    again = record("T1", Call(2, 0, last=False), Ask("c"), found("one"))
    assert [results_of(outcome)[0].id for outcome in (first, second, again)] == ["S1", "S2", "S1"]
    assert story.ledger.texts_shown_before(2) == {"S1": "one", "S2": "two"}
    assert story.ledger.texts_shown_before(1) == {}


@pytest.mark.parametrize(
    ("claim", "turns", "state"),
    [
        (True, [[("q", found())]], "covered"),
        (True, [[("q", found()), ("q", empty("other"))]], "covered"),
        (True, [[("q", found()), ("q", failed("other"))]], "partial"),
        (True, [[("q", found()), ("r", failed())]], "partial"),
        (True, [[("q", failed())], [("q", found())]], "covered"),
        (True, [[("q", failed())], [("r", found())]], "covered"),
        (True, [[("q", failed())], [("r", found(source="other"))]], "partial"),
        (True, [[("q", failed())], [("q", found(served_from="snapshot", snapshot_age_seconds=9))]], "partial"),
        (True, [[("q", failed(partial_results=(Result(title="t", url="u", text="x"),)))]], "partial"),
        (True, [[("q", found()), ("r", failed(error_type="budget_exhausted", attempts=0))]], "partial"),
        (True, [[("q", found()), ("r", failed(error_type="blocked", attempts=0))]], "covered"),
        (True, [[("q", found()), ("r", failed(error_type="invalid_arguments", attempts=0))]], "covered"),
        (False, [[("q", empty())]], "searched_empty"),
        (False, [[("q", found())]], "searched_empty"),
        (False, [[("q", empty())], [("q", failed(error_type="blocked", attempts=0))]], "searched_empty"),
        (False, [[("q", empty()), ("q", failed("other"))]], "failed"),
        (False, [[("q", failed())], [("r", empty())]], "failed"),
        (False, [[("q", failed())], [("q", empty())]], "searched_empty"),
        (False, [[("q", failed())], [("r", found())]], "failed"),
        (False, [[("q", failed())]], "failed"),
        (False, [[("q", failed(error_type="invalid_query"))]], "failed"),
        (False, [[("q", failed(error_type="unavailable", is_retryable=False, attempts=0))]], "failed"),
        (False, [[("q", failed(error_type="budget_exhausted", attempts=0))]], "not_attempted"),
        (False, [[("q", failed(error_type="invalid_arguments", attempts=0))]], "not_attempted"),
        (False, [], "not_attempted"),
    ],
)
def test_the_state_of_a_topic_follows_the_rules(claim: bool, turns: list[Any], state: str) -> None:
    """Covered, partly covered, searched and not there, could not be searched, not attempted: decided by the record."""
    story = Story()
    for number, calls in enumerate(turns, 1):
        story.turn(number, *calls)
    assert story.state(claim=claim) == state


def test_one_later_answer_makes_good_one_failure_only() -> None:
    """Two failed queries and one that came through: the other one is still a gap."""
    story = Story().turn(1, ("a", failed()), ("b", failed())).turn(2, ("b", found()))
    assert [entry.ask.query for entry in story.ledger.open_failures("T1", has_verified_claim=True)] == ["a"]


def test_a_success_before_or_beside_a_failure_does_not_make_it_good() -> None:
    """One query of several that failed is never hidden by its siblings."""
    story = Story().turn(1, ("a", found())).turn(2, ("b", found()), ("c", failed()))
    assert [entry.ask.query for entry in story.ledger.open_failures("T1", has_verified_claim=True)] == ["c"]


@pytest.mark.parametrize(
    ("following", "decision"),
    [
        (("Q ", found()), "retried_same"),
        (("q", failed()), "retried_same"),
        (("other words", found()), "retried_changed"),
        (("q", found(source="other")), "alternative"),
        (("q", found(served_from="snapshot", snapshot_age_seconds=1)), "snapshot"),
    ],
)
def test_the_ledger_names_what_was_done_after_a_failure(following: Any, decision: str) -> None:
    """The decision is read off the next call on the topic."""
    assert Story().turn(1, ("q", failed())).turn(2, following).next() == decision


def test_after_the_last_failure_it_is_either_going_on_or_giving_up() -> None:
    """With verified claims the coordinator went on; without, it gave up."""
    story = Story().turn(1, ("q", failed()))
    assert (story.next(claim=True), story.next(claim=False)) == ("went_on", "gave_up")


def test_calls_of_the_same_turn_are_no_reaction_to_each_other() -> None:
    """A parallel call was sent before the failure was known."""
    assert Story().turn(1, ("q", failed()), ("r", found())).next() == "gave_up"


def test_a_success_has_no_next() -> None:
    """`next` stands after failures only."""
    assert Story().turn(1, ("q", found())).turn(2, ("r", found())).next() is None


def test_calls_on_another_topic_are_no_reaction() -> None:
    """What was done for T2 says nothing about a failure in T1."""
    story = Story()
    story.ledger.plan(["a", "b"])
    story.turn(1, ("q", failed()), topic="T1").turn(2, ("q", found()), topic="T2")
    assert story.next() == "gave_up"


def test_a_call_without_a_valid_topic_belongs_to_none_and_is_kept() -> None:
    """A failure that fits no topic is shown in a row of its own."""
    story = Story().turn(1, ("q", failed(error_type="invalid_arguments", attempts=0)), topic="T9")
    assert [entry.topic for entry in story.ledger.entries] == [None]
    assert story.state(claim=False) == "not_attempted"


def two_topics(first: Found | Empty | Failed) -> Ledger:
    """T1 asks; T2 sends the same query, is refused, and asks another one that finds something."""
    story = Story()
    story.ledger.plan(["a", "b"])
    story.turn(1, ("q", first), topic="T1")
    story.turn(2, ("q", failed(error_type="blocked", attempts=0)), ("r", found()), topic="T2")
    return story.ledger


def test_a_refused_repeat_stands_for_the_failure_that_another_topic_had() -> None:
    """A topic whose query was refused because it had failed elsewhere is not called covered."""
    ledger = two_topics(failed(error_type="access_denied"))
    assert ledger.state("T2", has_verified_claim=True) == "partial"
    assert ledger.state("T2", has_verified_claim=False) == "failed"


def test_a_refused_repeat_stands_for_the_empty_answer_that_another_topic_had() -> None:
    """A topic whose query had been answered elsewhere counts as searched."""
    assert two_topics(empty()).state("T2", has_verified_claim=True) == "covered"
    story = Story()
    story.ledger.plan(["a", "b"])
    story.turn(1, ("q", empty()), topic="T1")
    story.turn(2, ("q", failed(error_type="blocked", attempts=0)), topic="T2")
    assert story.ledger.state("T2", has_verified_claim=False) == "searched_empty"


def test_a_refused_repeat_stands_for_the_answer_that_came_in_the_end() -> None:
    """A failure that was made good elsewhere is not held against the topic whose repeat was refused."""
    story = Story()
    story.ledger.plan(["a", "b"])
    story.turn(1, ("q", failed()), topic="T1").turn(2, ("q", empty()), topic="T1")
    story.turn(3, ("q", failed(error_type="blocked", attempts=0)), topic="T2")
    assert story.ledger.state("T2", has_verified_claim=False) == "searched_empty"


@pytest.mark.parametrize("answer", [found(), empty()])
def test_a_repeat_that_the_budget_refused_is_no_failure_of_a_source_that_has_answered(answer: Any) -> None:
    """What was looked up once is not called "could not look" because a repeat came too late."""
    story = Story().turn(1, ("q", answer)).turn(2, ("q", failed(error_type="budget_exhausted", attempts=0)))
    assert story.state(claim=True) == "covered"
    assert story.state(claim=False) == "searched_empty"


def test_a_refused_repeat_makes_no_other_failure_good() -> None:
    """An answer counts where it was given, not where it was asked for again in vain."""
    repeat = failed(error_type="budget_exhausted", attempts=0)
    story = Story().turn(1, ("q", found())).turn(2, ("r", failed())).turn(3, ("q", repeat))
    assert story.state(claim=True) == "partial"


_outcomes = st.sampled_from(["found", "empty", "failed", "blocked", "snapshot"])


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab"), st.sampled_from(["wiki", "other"]), _outcomes)))
def test_no_unanswered_failure_is_ever_called_covered(calls: list[tuple[int, str, str, str]]) -> None:
    """Whatever the order of events: a source whose every call failed leaves no topic covered or searched_empty."""
    story = Story()
    for place, (number, query, source, kind) in enumerate(sorted(calls)):
        outcomes: dict[str, Found | Empty | Failed] = {
            "found": found(source=source),
            "empty": empty(source),
            "failed": failed(source),
            "blocked": failed(source, "blocked", attempts=0),
            "snapshot": found(source=source, served_from="snapshot", snapshot_age_seconds=1),
        }
        story.ledger.record("T1", Call(number, place, last=False), Ask(query), outcomes[kind])
    entries = story.ledger.entries
    answered = {entry.source for entry in entries if entry.answered}
    dead = {entry.source for entry in entries if entry.leaves_a_gap} - answered
    if dead:
        assert story.state(claim=True) == "partial"
        assert story.state(claim=False) == "failed"


def test_a_snapshots_evidence_tells_when_the_source_gave_it() -> None:
    """The time in the report is that of the retrieval, not that of the reading from the cache."""
    story = Story().turn(1, ("q", found(served_from="snapshot", snapshot_age_seconds=3_600)))
    assert story.ledger.evidence["S1"].retrieved_at == "2026-01-02T02:04:05Z"


@dataclass(frozen=True)
class CountedAsk(Ask):
    """An ask that remembers how often it was compared."""

    compared: ClassVar[list[str]] = []

    def key(self) -> tuple[str, str, str]:
        self.compared.append(self.query)
        return super().key()


@pytest.mark.parametrize("query", ["q0", "q{}"])
def test_many_refused_calls_are_not_compared_with_each_other(query: str) -> None:
    """A model that goes on after its budget is spent does not keep the reader waiting for the report."""
    story = Story().turn(1, ("q0", empty()))
    refusal = failed(error_type="budget_exhausted", attempts=0)
    for place in range(500):
        story.ledger.record("T1", Call(2, place, last=False), CountedAsk(query.format(place)), refusal)
    CountedAsk.compared.clear()
    assert story.state(claim=False) == ("searched_empty" if query == "q0" else "failed")
    assert len(CountedAsk.compared) <= 1_000
