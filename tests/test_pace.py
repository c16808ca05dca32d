"""The pace of a public service: everybody in the process waits for a turn, nobody hangs, a stop ends any wait."""

from __future__ import annotations

import asyncio
import threading

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat_tools.clock import FakeClock, SystemClock
from caveat_tools.faults import FaultPlan
from caveat_tools.outcome import Failed, Found
from caveat_tools.pace import SHARED, LateTurnError, Pace, host_of, paces_for
from caveat_tools.retry import RetryPolicy
from caveat_tools.search import Searcher, SearchEvent, SearchWaiting
from caveat_tools.snapshots import Snapshots
from caveat_tools.source import Ask
from caveat_tools.sources.arxiv import ArxivSource
from caveat_tools.stop import Stop
from scholarly import TEAS, arxiv_entry, arxiv_feed
from scripted import ScriptedSource, memory_store, passage


async def take(pace: Pace, clock: FakeClock, within: float = 30.0) -> float:
    """Take one turn and return when it came."""
    async with pace.turn(clock, within=within):
        return clock.monotonic()


async def test_turns_lie_as_far_apart_as_the_service_asks() -> None:
    """The first one comes at once."""
    pace, clock = Pace(3), FakeClock()
    assert [await take(pace, clock) for _ in range(3)] == [0, 3, 6]
    await clock.sleep(10)
    assert await take(pace, clock) == 16


async def test_no_more_requests_are_under_way_than_the_service_allows() -> None:
    """The others wait until one has ended, first come, first served."""
    pace, clock = Pace(0, at_once=2), FakeClock()
    running, order, most = 0, list[int](), 0

    async def request(number: int) -> None:
        nonlocal running, most
        async with pace.turn(clock, within=30):
            running += 1
            most = max(most, running)
            order.append(number)
            await asyncio.sleep(0.001)
            running -= 1

    await asyncio.gather(*[request(number) for number in range(6)])
    assert (most, order) == (2, list(range(6)))


async def test_a_turn_that_comes_too_late_is_told_at_once() -> None:
    """With the seconds that it would take; nobody has waited, and nobody's turn is lost."""
    pace, clock = Pace(20), FakeClock()
    await take(pace, clock)
    with pytest.raises(LateTurnError) as caught:
        await take(pace, clock, within=19)
    assert (caught.value.seconds, clock.slept) == (20, [])
    assert await take(pace, clock) == 20


async def test_a_queue_that_is_too_long_is_told_at_once() -> None:
    """Each of those before counts with its pause."""
    pace, clock = Pace(10), FakeClock()
    async with pace.turn(clock, within=30):
        waiting = [asyncio.ensure_future(take(pace, clock)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(LateTurnError) as caught:
            await take(pace, clock, within=29)
        assert caught.value.seconds == 30
    assert [await turn for turn in waiting] == [10, 20]


async def test_a_request_that_takes_long_can_make_those_behind_it_too_late() -> None:
    """A place alone is no turn: its time has to come within what the caller can wait."""
    pace, clock = Pace(4), FakeClock()
    async with pace.turn(clock, within=30):
        second = asyncio.ensure_future(take(pace, clock))
        third = asyncio.ensure_future(take(pace, clock, within=10))
        await asyncio.sleep(0)
        await clock.sleep(20)
    assert await second == 20
    with pytest.raises(LateTurnError) as caught:
        await third
    assert caught.value.seconds == 4


async def test_a_request_that_never_ends_holds_nobody_for_longer_than_he_can_wait() -> None:
    """The wait for a place ends in real time, like the request that has it."""
    pace, clock = Pace(0), FakeClock()
    async with pace.turn(clock, within=30):
        with pytest.raises(LateTurnError):
            await take(pace, clock, within=0.01)
    await take(pace, clock)


async def test_a_wait_is_told_before_it_begins() -> None:
    """The first turn has none."""
    pace, clock, told = Pace(3), FakeClock(), list[float]()
    for _ in range(2):
        async with pace.turn(clock, within=30, on_wait=told.append):
            pass
    assert told == [3]


async def test_somebody_elses_time_out_stays_one() -> None:
    """It is not taken for a turn that comes too late."""
    pace, clock = Pace(0), FakeClock()
    async with pace.turn(clock, within=30):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await take(pace, clock)
    await take(pace, clock)


async def test_whoever_is_cancelled_gives_the_place_to_the_next() -> None:
    """In the queue, in the pause and during the request."""
    pace, clock = Pace(0), SystemClock()

    async def hold() -> None:
        async with pace.turn(clock, within=30):
            await asyncio.Event().wait()

    tasks = [asyncio.ensure_future(hold()) for _ in range(4)]
    await asyncio.sleep(0.01)
    for number in (2, 0, 1, 3):
        tasks[number].cancel()
        await asyncio.gather(tasks[number], return_exceptions=True)
        await asyncio.sleep(0)
    async with pace.turn(clock, within=0):
        pass
    pace = Pace(30)
    async with pace.turn(clock, within=30):
        pass
    task = asyncio.ensure_future(hold())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert pace._free_places == 1


async def test_whoever_has_just_left_the_queue_is_passed_over() -> None:
    """Another thread may have cancelled, and not yet been able to say so."""
    pace, clock = Pace(0), FakeClock()
    async with pace.turn(clock, within=30):
        left, _ = pace._queued(clock.monotonic())
        waiting = asyncio.ensure_future(take(pace, clock))
        await asyncio.sleep(0)
        left.cancel()
    assert await waiting == 0


@given(st.lists(st.sampled_from(["end", "cancel", "fail"]), min_size=1, max_size=8), st.integers(1, 3))
async def test_however_requests_end_no_place_is_lost(ends: list[str], places: int) -> None:
    """All places are free when everybody has left."""
    pace, clock = Pace(0, at_once=places), FakeClock()

    async def request(end: str) -> None:
        async with pace.turn(clock, within=30):
            await asyncio.sleep(0)
            if end == "fail":
                raise httpx2.ReadError("x")

    tasks = [asyncio.ensure_future(request(end)) for end in ends]
    await asyncio.sleep(0)
    for task, end in zip(tasks, ends, strict=True):
        if end == "cancel":
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (pace._free_places, len(pace._waiting)) == (places, 0)


def test_threads_with_event_loops_of_their_own_share_a_pace() -> None:
    """Two researches in two threads are one client to the service."""
    pace, clock, begun = Pace(1), FakeClock(), list[float]()
    running = threading.Semaphore(1)

    async def research() -> None:
        for _ in range(5):
            async with pace.turn(clock, within=30):
                assert running.acquire(blocking=False)
                begun.append(clock.monotonic())
                await asyncio.sleep(0.001)
                running.release()

    threads = [threading.Thread(target=lambda: asyncio.run(research())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun == list(range(15))


def test_the_paces_of_the_process_are_for_its_own_clock() -> None:
    """A research with another clock has its own: its time is not everybody's."""
    assert paces_for(SystemClock()) is SHARED
    assert paces_for(FakeClock()) is not paces_for(FakeClock())
    assert SHARED["arxiv.org"] is SHARED["export.arxiv.org"]
    assert (SHARED["arxiv.org"].seconds, SHARED["api.crossref.org"].seconds) == (3, 1)


@pytest.mark.parametrize(
    ("place", "host"),
    [
        ("https://export.arxiv.org/api/query", "export.arxiv.org"),
        ("https://API.crossref.org:443/works?x=1", "api.crossref.org"),
        ("https://{language}.wikipedia.org/w/api.php", "{language}.wikipedia.org"),
        ("notes/tea", ""),
        ("http://[::1", ""),
        ("", ""),
    ],
)
def test_a_host_is_that_of_the_place(place: str, host: str) -> None:
    """A folder has none."""
    assert host_of(place) == host


# --- in a search -----------------------------------------------------------------------------------------------------


class Asked:
    """A searcher that asks arXiv at a pace of its own."""

    def __init__(self, pace: Pace, deadline: float = 30.0) -> None:
        self.clock = FakeClock()
        self.stop = Stop()
        self.heard: list[SearchEvent] = []
        self.sent = 0
        self.status = 200
        self.body = arxiv_feed(arxiv_entry(TEAS[0]))
        client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))
        self.searcher = Searcher(
            [ArxivSource(client, self.clock)],
            clock=self.clock,
            snapshots=Snapshots([memory_store()]),
            faults=FaultPlan(),
            paces={"export.arxiv.org": pace},
            policy=RetryPolicy(deadline=deadline),
            stop=self.stop,
            on_event=self.heard.append,
        )

    def _answer(self, _request: httpx2.Request) -> httpx2.Response:
        self.sent += 1
        return httpx2.Response(self.status if self.sent == 1 else 200, content=self.body)

    def waits(self) -> list[tuple[float, str]]:
        return [(event.seconds, event.reason) for event in self.heard if isinstance(event, SearchWaiting)]


async def test_a_search_waits_for_its_turn_and_says_so() -> None:
    """The wait goes through the clock; it is no failed attempt."""
    asked = Asked(Pace(3))
    first, second = [await asked.searcher.search("arxiv", Ask(query)) for query in ("green tea", "black tea")]
    assert isinstance(first, Found)
    assert isinstance(second, Found)
    assert second.attempts == 1
    assert asked.clock.slept == [3]
    assert asked.waits() == [(3, "arxiv is asked by turns")]


async def test_a_short_wait_is_not_worth_a_line() -> None:
    """A tenth of a second passes in silence."""
    asked = Asked(Pace(0.1))
    for query in ("green tea", "black tea"):
        await asked.searcher.search("arxiv", Ask(query))
    assert (asked.clock.slept, asked.waits()) == ([0.1], [])


async def test_a_wait_beyond_the_deadline_is_a_rate_limit_and_not_a_hang() -> None:
    """Nothing is sent, nothing is slept; the source itself is not blamed, and is asked again when its time has come."""
    asked = Asked(Pace(60))
    await asked.searcher.search("arxiv", Ask("green tea"))
    for number in range(4):
        late = await asked.searcher.search("arxiv", Ask(f"black tea {number}"))
        assert isinstance(late, Failed)
        assert (late.error_type, late.attempts, late.is_retryable) == ("rate_limited", 0, True)
        assert late.retry_after_seconds == 60
        assert "after 60 s" in late.guidance
    assert (asked.sent, asked.clock.slept) == (1, [])
    await asked.clock.sleep(60)
    assert isinstance(await asked.searcher.search("arxiv", Ask("black tea")), Found)


async def test_a_failure_without_time_for_a_retry_stays_what_it_was() -> None:
    """The reader is told of the outage, not of a turn that would have come too late."""
    asked = Asked(Pace(60))
    asked.status = 503
    outcome = await asked.searcher.search("arxiv", Ask("green tea"))
    assert isinstance(outcome, Failed)
    assert (outcome.error_type, outcome.attempts, outcome.retry_after_seconds) == ("unavailable", 1, None)


async def test_a_failure_that_a_retry_has_mended_is_forgotten() -> None:
    """What is too late then is the next page, and what has arrived is kept."""
    asked = Asked(Pace(20))
    asked.status, asked.body = 503, arxiv_feed(*[arxiv_entry(TEAS[0])] * 8, total=20)
    outcome = await asked.searcher.search("arxiv", Ask("green tea"))
    assert isinstance(outcome, Failed)
    assert (outcome.error_type, outcome.attempts) == ("rate_limited", 2)
    assert [result.title for result in outcome.partial_results] == ["On tea 1"]


async def test_a_stop_ends_the_wait_for_a_turn() -> None:
    """A person does not wait for a queue."""
    pace = Pace(0)
    asked = Asked(pace)
    async with pace.turn(asked.clock, within=30):
        waiting = asyncio.ensure_future(asked.searcher.search("arxiv", Ask("green tea")))
        await asyncio.sleep(0.01)
        asked.stop.ask()
        outcome = await waiting
    assert isinstance(outcome, Failed)
    assert (outcome.error_type, outcome.attempts, asked.sent) == ("cancelled", 0, 0)
    assert pace._free_places == 1


async def test_a_source_inside_the_process_waits_for_nobody() -> None:
    """Its place may look like an address."""
    source = ScriptedSource([[passage("text")]], place="https://export.arxiv.org/api/query")
    clock = FakeClock()
    searcher = Searcher(
        [source],
        clock=clock,
        snapshots=Snapshots([memory_store()]),
        faults=FaultPlan(),
        paces={"export.arxiv.org": Pace(3)},
    )
    for query in ("a", "b"):
        await searcher.search("wiki", Ask(query))
    assert clock.slept == []
