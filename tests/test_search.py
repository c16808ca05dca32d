"""One search: guard, patience, retries, pages, snapshots, and the outcome that the model gets."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from caveat_tools.clock import FakeClock
from caveat_tools.faults import FaultPlan, parse_faults
from caveat_tools.outcome import Empty, Failed, Found
from caveat_tools.retry import RetryPolicy
from caveat_tools.search import SearchEnded, Searcher, SearchEvent, SearchStarted, SearchWaiting
from caveat_tools.snapshots import Snapshots, SnapshotStore
from caveat_tools.source import Ask, Page, SourceError, UnsearchableError
from caveat_tools.stop import Stop
from scripted import ScriptedSource, memory_store, passage


class Desk:
    """A searcher with all its parts at hand."""

    def __init__(self, *sources: ScriptedSource, store: SnapshotStore | None = None, inject: str = "") -> None:
        self.clock = FakeClock()
        self.heard: list[SearchEvent] = []
        self.store = store or memory_store()
        self.stop = Stop()
        self.searcher = Searcher(
            sources,
            clock=self.clock,
            snapshots=Snapshots([self.store]),
            faults=parse_faults(inject, [s.name for s in sources]) if inject else FaultPlan(),
            stop=self.stop,
            on_event=self.heard.append,
        )

    async def ask(self, query: str, source: str = "wiki", **more: Any) -> Found | Empty | Failed:
        use_snapshot = more.pop("use_snapshot", False)
        return await self.searcher.search(source, Ask(query, **more), use_snapshot=use_snapshot)


def slow(**more: Any) -> SourceError:
    return SourceError("timeout", "no complete answer within 8 s", retryable=True, **more)


def wrong_query() -> SourceError:
    return SourceError("invalid_query", "unbalanced quotes", retryable=False)


def limited(seconds: float | None) -> SourceError:
    return SourceError("rate_limited", "too many requests", retryable=True, retry_after_seconds=seconds)


def failure(outcome: object) -> Failed:
    assert isinstance(outcome, Failed)
    return outcome


async def test_a_match_is_found_and_no_match_is_empty() -> None:
    """The two kinds of success are told apart by what the source holds, and neither is an error."""
    desk = Desk(ScriptedSource([[passage("Kariba was finished in 1959.")], []]))
    found, empty = await desk.ask("kariba"), await desk.ask("atlantis")
    assert isinstance(found, Found)
    assert found.results[0].text == "Kariba was finished in 1959."
    assert isinstance(empty, Empty)
    assert "Do not send this query" in empty.guidance


async def test_two_slow_answers_and_a_good_one_are_simply_found() -> None:
    """Local recovery: the coordinator never hears of failures that retries have mended."""
    source = ScriptedSource([slow(), slow(), [passage("text")]])
    desk = Desk(source)
    assert isinstance(await desk.ask("q"), Found)
    assert len(source.asked) == 3
    waits = [event for event in desk.heard if isinstance(event, SearchWaiting)]
    assert [(w.attempt, w.attempts) for w in waits] == [(1, 3), (2, 3)]
    assert isinstance(desk.heard[0], SearchStarted)
    assert isinstance(desk.heard[-1], SearchEnded)


async def test_exhausted_retries_give_the_whole_structure() -> None:
    """What survives three attempts says which error, which query, how often, and what to do instead."""
    desk = Desk(ScriptedSource([slow()]), ScriptedSource([[]], name="other"))
    outcome = failure(await desk.ask("Kariba Dam"))
    assert (outcome.error_type, outcome.attempted_query, outcome.attempts) == ("timeout", "Kariba Dam", 3)
    assert outcome.is_retryable
    assert outcome.alternative_approaches == ("simplify_query", "try_source:other")
    assert "other or fewer words" in outcome.guidance
    assert "search other for this topic" in outcome.guidance


async def test_a_time_out_on_page_two_hands_over_page_one() -> None:
    """What had arrived before the failure is real evidence; page 1 is not asked for again."""
    first = Page((passage("one"), passage("two", "B")), total=9, next_cursor="2")
    source = ScriptedSource([first, slow()])
    outcome = failure(await Desk(source).ask("q", limit=4))
    assert [result.text for result in outcome.partial_results] == ["one", "two"]
    assert [cursor for _, cursor in source.asked] == [None, "2", "2", "2"]
    assert outcome.attempts == 4


@pytest.mark.parametrize(("seconds", "pages"), [(8.0, 4), (30.0, 1), (31.0, 1)])
async def test_no_further_page_is_asked_for_when_the_time_of_a_search_is_over(seconds: float, pages: int) -> None:
    """Each page came in its own time; together they may take no longer than one search, and what arrived is kept."""

    class Slow(ScriptedSource):
        async def page(self, ask: Ask, cursor: str | None) -> Page:
            await desk.clock.sleep(seconds)
            return await super().page(ask, cursor)

    source = Slow([Page((passage(f"text {n}", f"{n}"),), total=9, next_cursor="more") for n in range(9)])
    desk = Desk(source)
    outcome = failure(await desk.ask("q", limit=8))
    assert (outcome.error_type, outcome.attempts, len(source.asked)) == ("timeout", pages, pages)
    assert outcome.message == f"no complete answer within 30 s; pages that had arrived: {pages}"
    assert len(outcome.partial_results) == pages


async def test_partial_results_of_an_earlier_attempt_are_kept() -> None:
    """An attempt that brought something before it failed is not forgotten because the last one brought nothing."""
    desk = Desk(ScriptedSource([slow(passages=(passage("early"),)), slow()]))
    outcome = failure(await desk.ask("q"))
    assert [result.text for result in outcome.partial_results] == ["early"]


async def test_pages_are_fetched_until_the_limit_and_no_further() -> None:
    """A search asks for no more than it was told to."""
    pages = [Page((passage(f"text {n}", f"{n}"),), next_cursor=str(n + 1)) for n in range(9)]
    source = ScriptedSource(pages)
    outcome = await Desk(source).ask("q", limit=3)
    assert isinstance(outcome, Found)
    assert len(outcome.results) == len(source.asked) == 3


async def test_a_source_that_pages_forever_is_left_after_some_pages() -> None:
    """A broken cursor does not hold the run, and pages that held nothing are not called an empty answer."""
    source = ScriptedSource([Page((), next_cursor="again")])
    assert failure(await Desk(source).ask("q")).error_type == "malformed_response"
    assert len(source.asked) == 5


async def test_a_repeated_empty_query_is_refused_without_asking() -> None:
    """The same question, differently spaced and cased, is not sent to a source that has answered it."""
    source = ScriptedSource([[]])
    desk = Desk(source, ScriptedSource([[]], name="other"))
    await desk.ask("Kariba  Dam")
    again = failure(await desk.ask("kariba dam "))
    assert (again.error_type, again.attempts, again.is_retryable) == ("blocked", 0, False)
    assert again.guidance.startswith("Do not send this query to wiki again")
    assert again.alternative_approaches == ("simplify_query", "try_source:other")
    assert len(source.asked) == 1


async def test_the_same_query_three_times_in_one_turn_is_asked_once() -> None:
    """Parallel repeats wait for the first and are then refused or served, never sent."""
    source = ScriptedSource([[]])
    desk = Desk(source)
    outcomes = await asyncio.gather(*[desk.ask("q") for _ in range(3)])
    assert [outcome.status for outcome in outcomes] == ["empty", "failed", "failed"]
    assert len(source.asked) == 1


async def test_a_repeated_found_query_is_served_from_what_was_paid_for() -> None:
    """Nothing paid for is paid for twice."""
    source = ScriptedSource([[passage("text")]])
    desk = Desk(source)
    await desk.ask("q")
    again = await desk.ask("Q")
    assert isinstance(again, Found)
    assert (again.served_from, again.attempts) == ("live", 0)
    assert len(source.asked) == 1


async def test_a_query_that_the_service_called_wrong_is_not_sent_again() -> None:
    """invalid_query is final for this query, and only for this query."""
    source = ScriptedSource([wrong_query(), [passage("text")]])
    desk = Desk(source)
    assert failure(await desk.ask('"kariba')).error_type == "invalid_query"
    assert failure(await desk.ask('"kariba')).error_type == "blocked"
    assert isinstance(await desk.ask("kariba"), Found)


async def test_a_query_that_cannot_be_searched_was_no_attempt() -> None:
    """Nothing was sent, so no request is counted and the service is not said to have refused."""
    desk = Desk(ScriptedSource([[passage("text")], UnsearchableError("the query holds no word")], in_process=False))
    await desk.ask("tea")
    for _ in range(2):
        outcome = failure(await desk.ask("!!!"))
        assert (outcome.error_type, outcome.attempts, outcome.is_retryable) == ("invalid_query", 0, False)
        assert outcome.message == "the query holds no word; nothing was sent"


async def test_a_retryable_failure_may_be_asked_again() -> None:
    """isRetryable: true keeps its word: the identical call goes out again."""
    source = ScriptedSource([slow(), slow(), slow(), [passage("text")]])
    desk = Desk(source)
    assert failure(await desk.ask("q")).is_retryable
    assert isinstance(await desk.ask("q"), Found)


async def test_after_a_rate_limit_the_next_call_waits_until_the_time_named() -> None:
    """The source gets the pause it asked for, and the search goes on by itself."""
    source = ScriptedSource([limited(20), [passage("text")]])
    desk = Desk(source)
    desk.searcher._policy = RetryPolicy(attempts=1)
    assert failure(await desk.ask("a")).retry_after_seconds == 20
    assert isinstance(await desk.ask("b"), Found)
    assert desk.clock.slept == [20]


async def test_a_long_rate_limit_refuses_the_next_call_without_the_network() -> None:
    """A pause longer than a search may take is an answer at once, with the seconds that are left."""
    source = ScriptedSource([limited(500)])
    desk = Desk(source, ScriptedSource([[]], name="other"))
    await desk.ask("a")
    outcome = failure(await desk.ask("b"))
    assert (outcome.error_type, outcome.attempts, outcome.retry_after_seconds) == ("rate_limited", 0, 500)
    assert "after 500 s" in outcome.guidance
    assert len(source.asked) == 1


async def test_a_source_that_fails_again_and_again_is_left_alone_for_a_while() -> None:
    """After three failed searches in a row the breaker opens; after its cool-down the source is asked again."""
    source = ScriptedSource([slow()])
    desk = Desk(source)
    for query in ("a", "b", "c"):
        assert failure(await desk.ask(query)).attempts == 3
    refused = failure(await desk.ask("d"))
    assert (refused.error_type, refused.is_retryable, refused.attempts) == ("unavailable", False, 0)
    await desk.clock.sleep(60)
    source.steps = [[passage("text")]]
    assert isinstance(await desk.ask("e"), Found)


async def test_a_dead_source_is_not_offered_as_an_alternative() -> None:
    """Every alternative named can be carried out at that moment."""
    desk = Desk(ScriptedSource([slow()]), ScriptedSource([slow()], name="other"))
    for query in ("a", "b", "c"):
        await desk.ask(query, "other")
    assert "try_source:other" not in failure(await desk.ask("d")).alternative_approaches


async def test_a_source_that_answered_the_query_with_nothing_is_not_offered() -> None:
    """The model is not sent where the same query has already come back empty."""
    desk = Desk(ScriptedSource([slow()]), ScriptedSource([[]], name="other"))
    await desk.ask("q", "other")
    assert failure(await desk.ask("q")).alternative_approaches == ("simplify_query",)


async def test_a_date_range_is_offered_only_where_the_source_takes_dates() -> None:
    """narrow_query_by_date_range can be carried out where it is named."""
    dated = failure(await Desk(ScriptedSource([slow()], accepts_dates=True)).ask("q"))
    assert dated.alternative_approaches[0] == "narrow_query_by_date_range"
    undated = Desk(ScriptedSource([slow()]))
    assert failure(await undated.ask("q", date_from="2024-01-01")).error_type == "invalid_arguments"


async def test_a_snapshot_is_offered_only_where_one_exists_and_tells_its_age() -> None:
    """The answer of an earlier run is offered with its age, served on request, and marked as old."""
    store = memory_store()
    earlier = Desk(ScriptedSource([[passage("stored")]]), store=store)
    await earlier.ask("q")
    today = Desk(ScriptedSource([slow()]), store=store)
    today.clock.start += timedelta(days=3)
    outcome = failure(await today.ask("q"))
    assert outcome.alternative_approaches == ("simplify_query", "use_cached_snapshot")
    assert "stored 3 days ago" in outcome.guidance
    assert "use_cached_snapshot" not in failure(await today.ask("another")).alternative_approaches
    served = await today.ask("q", use_snapshot=True)
    assert isinstance(served, Found)
    assert served.served_from == "snapshot"
    assert served.snapshot_age_seconds is not None
    assert served.snapshot_age_seconds >= 3 * 86_400


async def test_a_snapshot_of_another_place_is_never_served() -> None:
    """Two folders, or two wikis, do not answer for each other."""
    store = memory_store()
    await Desk(ScriptedSource([[passage("stored")]], place="/a"), store=store).ask("q")
    elsewhere = Desk(ScriptedSource([slow()], place="/b"), store=store)
    assert "use_cached_snapshot" not in failure(await elsewhere.ask("q")).alternative_approaches


async def test_asking_for_a_snapshot_that_does_not_exist_says_so() -> None:
    """use_snapshot without a stored answer is a wrong call, not an empty result."""
    desk = Desk(ScriptedSource([slow()]))
    await desk.ask("q")
    outcome = failure(await desk.ask("q", use_snapshot=True))
    assert (outcome.error_type, outcome.message) == ("invalid_arguments", "no answer of wiki to this query is stored")


async def test_a_snapshot_cannot_take_the_place_of_asking() -> None:
    """A stored answer is served after a failure in this run only, so that old answers never pass for a search."""
    store = memory_store()
    await Desk(ScriptedSource([[passage("stored")]]), store=store).ask("q")
    outcome = failure(await Desk(ScriptedSource([[]]), store=store).ask("q", use_snapshot=True))
    assert outcome.error_type == "invalid_arguments"
    assert "has not failed" in outcome.message


async def test_an_unknown_source_is_a_wrong_call_that_names_the_right_ones() -> None:
    """A hallucinated source name ends in a tool_result, not in the run's end."""
    outcome = failure(await Desk(ScriptedSource([[]])).ask("q", "google"))
    assert outcome.error_type == "invalid_arguments"
    assert "wiki" in outcome.guidance


async def test_matches_without_any_text_are_not_called_empty() -> None:
    """A source that says it has twelve matches and sends no text has not answered "no match"."""
    outcome = failure(await Desk(ScriptedSource([Page((), total=12)])).ask("q"))
    assert outcome.error_type == "malformed_response"


async def test_control_characters_of_a_source_do_not_reach_the_model() -> None:
    """Escape sequences in titles and texts are gone before anybody sees them."""
    outcome = await Desk(ScriptedSource([[passage("red \x1b[31malert\x07", "ti\x1b]0;x\x07tle")]])).ask("q")
    assert isinstance(outcome, Found)
    assert outcome.results[0].text == "red alert"
    assert outcome.results[0].title == "title"


async def test_a_bug_in_a_source_ends_the_run_and_is_no_outage() -> None:
    """An exception that nobody named is not turned into a tool failure."""

    class Buggy(ScriptedSource):
        async def page(self, ask: Ask, cursor: str | None) -> Page:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Desk(Buggy([])).ask("q")


async def test_a_stop_in_mid_search_keeps_what_had_arrived() -> None:
    """Ctrl-C during page 2 gives a cancelled outcome that carries page 1."""

    class Hanging(ScriptedSource):
        async def page(self, ask: Ask, cursor: str | None) -> Page:
            if cursor is None:
                return Page((passage("one"),), next_cursor="2")
            desk.stop.ask()
            await asyncio.Event().wait()
            raise AssertionError

    desk = Desk(Hanging([]))
    outcome = failure(await desk.ask("q"))
    assert outcome.error_type == "cancelled"
    assert [result.text for result in outcome.partial_results] == ["one"]


@pytest.mark.parametrize(
    ("fault", "error_type"), [("timeout", "timeout"), ("html", "unavailable"), ("badjson", "malformed_response")]
)
async def test_faults_strike_a_source_inside_the_process_too(fault: str, error_type: str) -> None:
    """--inject local:… works although no network is asked."""
    source = ScriptedSource([[passage("text")]])
    desk = Desk(source, inject=f"wiki:{fault}*3")
    assert failure(await desk.ask("q")).error_type == error_type
    assert source.asked == []
    assert isinstance(await desk.ask("q"), Found)


async def test_an_injected_empty_is_an_empty_answer_of_a_source_inside_the_process() -> None:
    """--inject local:empty gives a valid empty result."""
    assert isinstance(await Desk(ScriptedSource([[passage("text")]]), inject="wiki:empty").ask("q"), Empty)


@pytest.mark.parametrize("error_type", ["rate_limited", "not_found", "access_denied", "invalid_query"])
async def test_whatever_a_source_refuses_for_good_is_not_asked_again(error_type: Any) -> None:
    """A spent quota, a missing page, a refused key: the same query goes out once."""
    source = ScriptedSource([SourceError(error_type, "no", retryable=False)])
    desk = Desk(source)
    assert failure(await desk.ask("q")).error_type == error_type
    assert failure(await desk.ask("q")).error_type == "blocked"
    assert len(source.asked) == 1


async def test_a_source_that_has_just_been_switched_off_is_not_recommended() -> None:
    """The third failure in a row opens the breaker; its guidance offers nothing that would be refused."""
    desk = Desk(ScriptedSource([slow()]), ScriptedSource([[]], name="other"))
    outcomes = [failure(await desk.ask(query)) for query in ("a", "b", "c")]
    assert outcomes[1].alternative_approaches == ("simplify_query", "try_source:other")
    assert outcomes[2].alternative_approaches == ("try_source:other",)
    assert "once more" not in outcomes[2].guidance


def test_a_source_error_that_contradicts_the_table_cannot_be_raised() -> None:
    """A source's author learns at once that a time-out is retryable."""
    with pytest.raises(ValueError, match="timeout"):
        SourceError("timeout", "slow", retryable=False)
