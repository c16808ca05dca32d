"""Several agents share the sources of a run: nothing is asked twice, and each gets what the others were answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat_tools.breaker import AGENTS_TO_STOP
from caveat_tools.clock import FakeClock
from caveat_tools.faults import FaultPlan
from caveat_tools.outcome import Empty, Failed, Found, wire
from caveat_tools.retry import RetryPolicy
from caveat_tools.search import ANYBODY, Caller, SearchEnded, Searcher, SearchEvent, SearchStarted, SearchWaiting
from caveat_tools.snapshots import Snapshots
from caveat_tools.source import Ask, Page, SourceError, UnsearchableError
from caveat_tools.stop import Stop
from scripted import ScriptedSource, memory_store, passage

A1, A2, A3 = Caller("A1"), Caller("A2"), Caller("A3")
AGENTS = (ANYBODY, A1, A2, A3)
DOWN = SourceError("unavailable", "503", retryable=True)
SLOW = SourceError("timeout", "no complete answer within 8 s", retryable=True)
LIMITED = SourceError("rate_limited", "too many requests", retryable=True, retry_after_seconds=5)
SPENT = SourceError("rate_limited", "the day's budget is spent", retryable=False)
DENIED = SourceError("access_denied", "no", retryable=False)
WRONG = SourceError("invalid_query", "unbalanced quotes", retryable=False, passages=(passage("early"),))

Answer = SourceError | list[Any]


class Shelf(ScriptedSource):
    """Answers by the query, after some turns of the event loop; a list of several answers is given one by one."""

    def __init__(
        self, answers: Mapping[str, Answer], *, name: str = "wiki", delays: Mapping[str, int] | None = None
    ) -> None:
        super().__init__([], name=name)
        self.answers = dict(answers)
        self.delays = delays or {}
        self.on_ask: Any = lambda: None

    @property
    def queries(self) -> list[str]:
        return [ask.query for ask, _ in self.asked]

    async def page(self, ask: Ask, cursor: str | None) -> Page:
        self.asked.append((ask, cursor))
        self.on_ask()
        for _ in range(self.delays.get(ask.query, 0)):
            await asyncio.sleep(0)
        answer = self.answers.get(ask.query.casefold(), [passage(ask.query)])
        if isinstance(answer, SourceError):
            raise answer
        return Page(tuple(answer))


class Run:
    """A searcher that several agents ask; one attempt a search, so that every request is one in `queries`."""

    def __init__(self, *sources: ScriptedSource, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.stop = Stop()
        self.heard: list[SearchEvent] = []
        self.store = memory_store()
        self.searcher = Searcher(
            sources,
            clock=self.clock,
            snapshots=Snapshots([self.store]),
            faults=FaultPlan(),
            policy=RetryPolicy(attempts=1),
            stop=self.stop,
            on_event=self.heard.append,
        )

    async def ask(
        self, query: str, caller: Caller = ANYBODY, source: str = "wiki", **more: Any
    ) -> Found | Empty | Failed:
        use_snapshot = more.pop("use_snapshot", False)
        return await self.searcher.search(source, Ask(query, **more), use_snapshot=use_snapshot, caller=caller)


def failure(outcome: object) -> Failed:
    assert isinstance(outcome, Failed)
    return outcome


# What an agent may ask


async def test_an_agent_asks_its_own_sources_only() -> None:
    """A source that was not assigned is a wrong call that names those that were; nobody is asked."""
    other = Shelf({}, name="other")
    run = Run(Shelf({}), other, Shelf({}, name="third"))
    mine = Caller("A1", frozenset({"third", "wiki"}))
    outcome = failure(await run.ask("q", mine, "other"))
    assert (outcome.error_type, outcome.attempts) == ("invalid_arguments", 0)
    assert (outcome.message, outcome.guidance) == ("other is not one of your sources", "Use wiki, third.")
    assert failure(await run.ask("q", mine, "google")).guidance == "Use wiki, third."
    assert other.asked == []


async def test_only_its_own_sources_are_offered_to_an_agent() -> None:
    """Every alternative named can be carried out by the one to whom it is named."""
    run = Run(Shelf({"q": SLOW}), Shelf({}, name="other"), Shelf({}, name="third"))
    mine = failure(await run.ask("q", Caller("A1", frozenset({"wiki", "third"}))))
    assert mine.alternative_approaches == ("simplify_query", "try_source:third")
    assert failure(await run.ask("q", A2)).alternative_approaches[1:] == ("try_source:other", "try_source:third")


async def test_a_shared_failure_offers_what_its_second_reader_can_do() -> None:
    """The answer is the first agent's, the alternatives are the second's own."""
    run = Run(Shelf({"q": DENIED}), Shelf({}, name="other"), Shelf({}, name="third"))
    first = failure(await run.ask("q", Caller("A1", frozenset({"wiki", "other"}))))
    second = failure(await run.ask("q", Caller("A2", frozenset({"wiki", "third"}))))
    assert first.alternative_approaches == ("try_source:other",)
    assert second.alternative_approaches == ("try_source:third",)
    assert second.guidance.startswith("Search third for this topic")


async def test_events_say_who_asks() -> None:
    """Progress can name the agent behind each line."""
    run = Run(Shelf({"a": LIMITED}))
    await run.ask("a", A1)
    await run.ask("b", A2)
    told = [(type(e), e.caller) for e in run.heard]
    assert told == [
        (SearchStarted, "A1"),
        (SearchEnded, "A1"),
        (SearchStarted, "A2"),
        (SearchWaiting, "A2"),
        (SearchEnded, "A2"),
    ]
    run.searcher.recall(Ask("a"), failure(run.heard[1].outcome), run.clock.now(), A3)  # type: ignore[union-attr]
    assert run.heard[-1].caller == "A3"


# What was answered already


@pytest.mark.parametrize("answer", [[passage("text")], [], WRONG, DENIED, SPENT])
async def test_a_query_that_another_agent_had_answered_is_handed_on_and_not_sent(answer: Answer) -> None:
    """The second agent gets the answer itself, whatever it was, and pays nothing for it."""
    source = Shelf({"q": answer})
    run = Run(source)
    first, second = await run.ask("q", A1), await run.ask("q", A2)
    assert (first.attempts, second.attempts, len(source.asked)) == (1, 0, 1)
    differing = {"attempts"}
    assert {**wire(second), **dict.fromkeys(differing)} == {**wire(first), **dict.fromkeys(differing)}


@pytest.mark.parametrize("answer", [[], WRONG, DENIED, SPENT])
async def test_what_was_handed_on_is_a_repeat_the_next_time(answer: Answer) -> None:
    """Once it has been told, an agent that asks again is refused like the one that asked first."""
    run = Run(Shelf({"q": answer}))
    for caller in (A1, A2):
        assert (await run.ask("q", caller)).status == ("failed" if isinstance(answer, SourceError) else "empty")
        assert failure(await run.ask("Q ", caller)).error_type == "blocked"


async def test_two_agents_that_ask_the_same_at_once_share_one_request() -> None:
    """The second waits for the first, and both get the answer."""
    source = Shelf({"nothing": []}, delays={"nothing": 3, "some": 3})
    run = Run(source)
    outcomes = await asyncio.gather(*[run.ask(query, caller) for query in ("nothing", "some") for caller in (A1, A2)])
    assert [outcome.status for outcome in outcomes] == ["empty", "empty", "found", "found"]
    assert source.queries == ["nothing", "some"]


async def test_a_failure_that_may_pass_is_not_handed_on() -> None:
    """The second agent's own call goes out: the source may have come back."""
    source = Shelf({"q": SLOW})
    run = Run(source)
    await run.ask("q", A1)
    source.answers["q"] = [passage("text")]
    assert isinstance(await run.ask("q", A2), Found)
    assert len(source.asked) == 2


async def test_the_answer_names_the_query_as_its_reader_sent_it() -> None:
    """What an agent reads does not depend on which of two agents was first."""
    run = Run(Shelf({"kariba dam": []}))
    await run.ask("Kariba Dam", A1)
    shared = await run.ask("kariba  dam", A2)
    assert isinstance(shared, Empty)
    assert shared.query == "kariba  dam"


async def test_a_stored_answer_may_be_used_where_another_agent_met_the_failure() -> None:
    """A snapshot is offered to an agent for whom the search has failed, and served."""
    source = Shelf({})
    run = Run(source)
    await run.ask("q", A1)
    again = Run(source)
    again.searcher._snapshots = Snapshots([run.store])
    source.answers["q"] = SLOW
    assert "use_cached_snapshot" in failure(await again.ask("q", A1)).alternative_approaches
    served = await again.ask("q", A2, use_snapshot=True)
    assert isinstance(served, Found)
    assert served.served_from == "snapshot"


@given(
    st.lists(
        st.tuples(st.sampled_from(AGENTS), st.sampled_from(["found", "empty", "wrong", "late"]), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    st.dictionaries(st.sampled_from(["found", "empty", "wrong", "late"]), st.integers(0, 4)),
)
def test_whatever_the_agents_do_at_once_no_answer_is_asked_for_twice(
    calls: list[tuple[Caller, str, int]], delays: dict[str, int]
) -> None:
    """Each query reaches its source until it is answered, once; each agent gets the answer, and then its repeats."""

    class Late(Shelf):
        async def page(self, ask: Ask, cursor: str | None) -> Page:
            if ask.query == "late" and "late" not in self.queries:
                self.asked.append((ask, cursor))
                await asyncio.sleep(0)
                raise SLOW
            return await super().page(ask, cursor)

    source = Late({"empty": [], "wrong": WRONG}, delays=delays)
    had: list[tuple[Caller, str, Found | Empty | Failed]] = []

    async def one(run: Run, caller: Caller, query: str, after: int) -> None:
        for _ in range(after):
            await asyncio.sleep(0)
        had.append((caller, query, await run.ask(query, caller)))

    async def all_of_them() -> None:
        run = Run(source)
        await asyncio.gather(*[one(run, *call) for call in calls])

    asyncio.run(all_of_them())
    asked = {query for _, query, _ in calls}
    for query in asked:
        assert source.queries.count(query) <= (2 if query == "late" else 1)
    for caller, query in product(AGENTS, asked):
        got = [outcome for who, what, outcome in had if (who, what) == (caller, query)]
        met = ["blocked" if isinstance(o, Failed) and o.error_type == "blocked" else o.status for o in got]
        if query == "late":
            assert met.count("failed") <= 1
            assert "blocked" not in met
        elif met:
            first, rest = {"found": ("found", "found"), "empty": ("empty", "blocked"), "wrong": ("failed", "blocked")}[
                query
            ]
            assert met == [first, *[rest] * (len(met) - 1)]


# A source that is down


async def test_after_its_pause_a_source_is_tried_by_one_call_at_a_time() -> None:
    """Two agents ask at the same moment: one is the probe, the other is refused as before, and the answer opens up."""
    source = Shelf(dict.fromkeys("abc", SLOW), delays={"d": 3, "e": 3})
    run = Run(source)
    for query in "abc":
        await run.ask(query)
    await run.clock.sleep(60)
    probe, refused = await asyncio.gather(run.ask("d", A1), run.ask("e", A2))
    assert (probe.status, failure(refused).error_type, refused.attempts) == ("found", "unavailable", 0)
    assert not failure(refused).is_retryable
    assert isinstance(await run.ask("e", A2), Found)


@pytest.mark.parametrize("ending", ["stop", "bug", "cancelled", "unsearchable"])
async def test_a_probe_without_a_verdict_leaves_its_place_to_the_next(ending: str) -> None:
    """A call that was stopped, or that a bug ended, does not keep the source shut."""
    source = Shelf(dict.fromkeys("abc", SLOW), delays={"d": 5})
    run = Run(source)
    for query in "abc":
        await run.ask(query)
    await run.clock.sleep(60)
    if ending == "stop":
        source.on_ask = run.stop.ask
        assert failure(await run.ask("d")).error_type == "cancelled"
    elif ending == "bug":
        source.on_ask = {}.popitem
        with pytest.raises(KeyError):
            await run.ask("d")
    elif ending == "unsearchable":
        source.answers["d"] = UnsearchableError("the query holds no word")
        outcome = failure(await run.ask("d"))
        assert (outcome.error_type, outcome.alternative_approaches) == ("invalid_query", ("simplify_query",))
    else:
        was_asked = asyncio.Event()
        source.on_ask = was_asked.set
        task = asyncio.ensure_future(run.ask("d"))
        await was_asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not run.searcher._desks["wiki"].breaker.is_open(run.clock.monotonic())


@pytest.mark.parametrize("error", [SLOW, DOWN, DENIED, SPENT])
async def test_a_source_where_three_agents_met_the_same_failure_is_not_asked_again(error: SourceError) -> None:
    """No pause brings it back; the refusal says why, offers nothing at that source, and nobody is sent there."""
    source = Shelf({str(n): error for n in range(3)})
    run = Run(source, Shelf({"q": SLOW}, name="other"))
    await run.ask("0", A1)
    await run.ask("1", A2)
    assert run.searcher.stopped == {}
    last = failure(await run.ask("2", A3))
    assert run.searcher.stopped == {"wiki": error.error_type}
    assert last.alternative_approaches == ("try_source:other",)
    await run.clock.sleep(10_000)
    outcome = failure(await run.ask("new"))
    assert (outcome.error_type, outcome.is_retryable, outcome.attempts) == ("unavailable", False, 0)
    assert outcome.message == (
        f"{AGENTS_TO_STOP} agents met the same failure ({error.error_type}) at wiki; it is not asked again in this run"
    )
    assert outcome.alternative_approaches == ("try_source:other",)
    assert failure(await run.ask("q", source="other")).alternative_approaches == ("simplify_query",)
    assert len(source.asked) == 3


async def test_what_a_stopped_source_had_answered_before_is_still_served() -> None:
    """Nothing that was paid for is lost."""
    run = Run(Shelf(dict.fromkeys("abc", SLOW)))
    await run.ask("known", A1)
    for query, caller in zip("abc", (A1, A2, A3), strict=True):
        await run.ask(query, caller)
    assert isinstance(await run.ask("known", A2), Found)


async def test_rate_limits_that_pass_do_not_stop_a_source_for_the_run() -> None:
    """Three agents at once are told to slow down: when the time has come, the source is asked again."""
    run = Run(Shelf(dict.fromkeys("abc", LIMITED)))
    await asyncio.gather(*[run.ask(query, caller) for query, caller in zip("abc", (A1, A2, A3), strict=True)])
    assert run.searcher.stopped == {}
    await run.clock.sleep(100)
    assert isinstance(await run.ask("d"), Found)


async def test_one_agent_alone_never_stops_a_source() -> None:
    """Without subagents everything is as before: a pause, and another try."""
    run = Run(Shelf(dict.fromkeys("abc", SLOW)))
    for query in "abc":
        await run.ask(query)
    assert run.searcher.stopped == {}


# The same again


async def test_turning_between_queries_that_fail_is_repetition() -> None:
    """Each may be sent once more; A, B, A, B, A, B is refused from the third A on, however it is spelt."""
    source = Shelf({"a": SLOW, "b": SLOW})
    run = Run(source)
    met = []
    for query in ("a", "b", "ok", "a", "b", "a", "A ", "b"):
        outcome = await run.ask(query, A1)
        met.append(outcome.error_type if isinstance(outcome, Failed) else outcome.status)
    assert met == ["timeout", "timeout", "found", "timeout", "timeout", "blocked", "blocked", "blocked"]
    assert source.queries == ["a", "b", "ok", "a", "b"]


async def test_the_refusal_of_a_third_time_says_how_often_it_was_sent_and_offers_no_other_words() -> None:
    """A second failure of the same call is final: another source is offered, not the same one."""
    run = Run(Shelf({"q": SLOW}), Shelf({}, name="other"))
    await run.ask("q")
    await run.ask("q")
    outcome = failure(await run.ask("q"))
    assert outcome.message == "you have sent this query to wiki 2 times, and it failed each time"
    assert outcome.alternative_approaches == ("try_source:other",)
    assert outcome.guidance == "Do not send this query to wiki again; search other for this topic."


async def test_each_agent_has_its_own_second_try() -> None:
    """What one agent has sent twice is not held against another."""
    source = Shelf({"q": SLOW})
    run = Run(source)
    await run.ask("q", A1)
    await run.ask("q", A1)
    source.answers["q"] = [passage("text")]
    assert isinstance(await run.ask("q", A2), Found)
    assert isinstance(await run.ask("q", A1), Found)


async def test_a_call_that_was_not_sent_is_no_try() -> None:
    """A refusal while a rate limit lasts does not cost the second try."""
    source = Shelf({"q": SourceError("rate_limited", "wait", retryable=True, retry_after_seconds=500)})
    run = Run(source)
    for _ in range(3):
        assert failure(await run.ask("q")).error_type == "rate_limited"
    await run.clock.sleep(500)
    source.answers["q"] = [passage("text")]
    assert isinstance(await run.ask("q"), Found)
    assert len(source.asked) == 2


# A resumed run


KINDS: Mapping[str, Answer] = {
    "empty": [],
    "wrong": WRONG,
    "spent": SPENT,
    "denied": DENIED,
    "slow": SLOW,
    "slower": SLOW,
    "down": DOWN,
    "limited": LIMITED,
}
QUERIES = ("found", *KINDS)


@given(
    st.lists(st.tuples(st.sampled_from(AGENTS), st.sampled_from(QUERIES), st.sampled_from([1, 20, 61])), max_size=14),
    st.lists(st.tuples(st.sampled_from(AGENTS), st.sampled_from(QUERIES)), max_size=8),
    st.randoms(use_true_random=False),
)
def test_a_resumed_run_guards_as_the_unbroken_one_would(
    before: list[tuple[Caller, str, int]], after: list[tuple[Caller, str]], random: Any
) -> None:
    """In whatever order the outcomes are taken over, every later call has the same outcome as without the break."""

    async def compared() -> None:
        clock = FakeClock()
        whole, resumed = (
            Run(Shelf(KINDS), Shelf({}, name="other"), clock=clock),
            Run(Shelf(KINDS), Shelf({}, name="other"), clock=clock),
        )
        kept: list[tuple[Ask, Found | Empty | Failed, datetime, Caller]] = []
        for caller, query, seconds in before:
            await clock.sleep(seconds)
            outcome = await whole.ask(query, caller)
            kept.append((Ask(query), outcome, clock.now(), caller))
        random.shuffle(kept)
        for ask, outcome, at, caller in kept:
            resumed.searcher.recall(ask, outcome, at, caller)
        assert resumed.searcher.stopped == whole.searcher.stopped
        for caller, query in after:
            started = clock.monotonic()
            expected = await whole.ask(query, caller)
            if clock.monotonic() != started:
                return  # it waited for the rate limit; the clock has moved on for the other
            assert await resumed.ask(query, caller) == expected

    asyncio.run(compared())


async def test_a_shared_failure_is_known_as_told_in_the_next_life() -> None:
    """An agent that was handed a failure before the crash is refused after it; one that was only refused is not."""
    gone = SourceError("unavailable", "closed for good", retryable=False)
    run = Run(Shelf({"q": gone}))
    outcomes = [(await run.ask("q", caller), caller) for caller in (A1, A2)]
    resumed = Run(Shelf({}))
    for outcome, caller in reversed(outcomes):
        resumed.searcher.recall(Ask("q"), outcome, run.clock.now(), caller)
    refused = failure(outcomes[1][0]).model_copy(update={"message": "wiki failed several times in a row"})
    resumed.searcher.recall(Ask("q"), refused, run.clock.now(), A3)
    met = [failure(await resumed.ask("q", caller)).error_type for caller in (A1, A2, A3)]
    assert met == ["blocked", "blocked", "unavailable"]
