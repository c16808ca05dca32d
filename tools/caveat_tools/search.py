"""Search one source, honestly: guard → wait → retry → source, and always a Found, an Empty or a Failed.

    guard     a query that this source has answered already is not sent again, whichever agent sends it; nor is one
              that failed twice for the same agent, nor any to a source switched off
    wait      a source that asked for patience gets it, if the time is there; each request waits for its turn (`pace`)
    retry     `retry.with_retries`, per page, so that a page that has arrived is never asked for twice
    source    `Source.page`; its SourceError becomes a Failed that carries what had arrived before

Nothing here knows of the agent; the guidance that it writes is for whatever model reads it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias

import httpx2

from caveat_tools.breaker import AGENTS_TO_STOP, Breaker
from caveat_tools.clock import Clock
from caveat_tools.faults import FaultPlan, Injection
from caveat_tools.http import get_json
from caveat_tools.outcome import (
    MAX_ALTERNATIVES,
    MAX_PASSAGE_CHARS,
    MAX_RESULTS,
    Empty,
    ErrorType,
    Failed,
    Found,
    Result,
    fitted,
    not_sent,
)
from caveat_tools.pace import LateTurnError, Pace, host_of
from caveat_tools.plain_text import clip, one_line, plain
from caveat_tools.retry import RetryPolicy, Waiting, with_retries
from caveat_tools.snapshots import SnapshotKey, Snapshots
from caveat_tools.source import Ask, Page, Passage, Source, SourceError, UnsearchableError
from caveat_tools.stop import Stop, Stopped
from caveat_tools.transport import FaultTransport

MAX_PAGES: Final = 5
CALLS_AT_ONCE: Final = 2
"""Calls to one source at the same time; public services ask for restraint."""
SHORT_WAIT_SECONDS: Final = 0.5
"""A wait for a turn that is not worth telling of."""
TIMES_SENT: Final = 2
"""How often one agent may send a query that fails: once, and once more."""

_ACCESS_FAILURES: Final[frozenset[ErrorType]] = frozenset(
    {"timeout", "unavailable", "rate_limited", "access_denied", "malformed_response"}
)
_OTHER_WORDS_MAY_HELP: Final[frozenset[ErrorType]] = frozenset(
    {"timeout", "invalid_query", "malformed_response", "blocked"}
)

_Key: TypeAlias = tuple[str, str, str]
"""What makes two asks the same, see `Ask.key`."""
_Gist: TypeAlias = tuple[str, str, str]
"""What makes two answers without results the same: status, kind of failure, message."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: an agent's name, for events and for whose repeat a query is, and the only sources that it may ask.

    `sources` None stands for all of them.
    """

    name: str = ""
    sources: frozenset[str] | None = None

    def may_ask(self, source: str) -> bool:
        """Say whether the source is one of its own."""
        return self.sources is None or source in self.sources


ANYBODY: Final = Caller()


@dataclass(frozen=True, slots=True)
class SearchStarted:
    """Told to the listener when a search begins; `caller` is the name of the agent, as in the other events."""

    source: str
    query: str
    caller: str = ""


@dataclass(frozen=True, slots=True)
class SearchWaiting:
    """Told to the listener before a wait: after a failed attempt, for patience that the source asked for, for a turn.

    `attempt` is 0 where it is not after a failed one.
    """

    source: str
    query: str
    seconds: float
    reason: str
    attempt: int = 0
    attempts: int = 0
    caller: str = ""


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """Told to the listener when a search has its outcome; `is_recalled` where an earlier life of the run had it."""

    outcome: Found | Empty | Failed
    is_recalled: bool = False
    caller: str = ""


SearchEvent: TypeAlias = SearchStarted | SearchWaiting | SearchEnded


@dataclass
class _Desk:
    """What is known of one source in this run."""

    source: Source
    breaker: Breaker = field(default_factory=Breaker)
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS_AT_ONCE))
    patience_until: float = 0.0
    answered: dict[_Key, tuple[Found | Empty | Failed, int]] = field(default_factory=dict)
    """What stands for a query, and the limit with which it was asked."""
    told: set[tuple[_Key, str, _Gist]] = field(default_factory=set)
    """Which caller has had which answer to a query."""
    failed: dict[_Key, set[str]] = field(default_factory=dict)
    """The callers for whom a query has failed."""
    sent: Counter[tuple[_Key, str]] = field(default_factory=Counter)
    """How often a caller has sent a query that then failed retryably."""
    asking: dict[_Key, asyncio.Lock] = field(default_factory=dict)

    def keep(self, ask: Ask, caller: Caller, outcome: Found | Empty | Failed) -> None:
        """Remember what the guard must know of an outcome that `caller` has had."""
        key = ask.key()
        self.told.add((key, caller.name, _gist(outcome)))
        if not outcome.attempts:
            return
        if isinstance(outcome, Failed) and outcome.is_retryable:
            self.sent[key, caller.name] += 1
        is_answer = not isinstance(outcome, Failed) or _is_final(outcome)
        if is_answer and ask.limit >= self.answered.get(key, (None, 0))[1]:
            self.answered[key] = outcome, ask.limit


@dataclass(frozen=True, slots=True)
class _Query:
    """One query on its way: where to, what, and from whom."""

    desk: _Desk
    ask: Ask
    caller: Caller

    @property
    def source(self) -> Source:
        return self.desk.source

    @property
    def name(self) -> str:
        return self.desk.source.name


@dataclass
class _Progress:
    """What one search has so far, whatever ends it."""

    passages: list[Passage] = field(default_factory=list)
    total: int | None = None
    attempts: int = 0
    last_error: SourceError | None = None
    """That of the last attempt at the page that is asked for."""

    def add(self, passages: Sequence[Passage]) -> None:
        """Keep the first record of each work, with the identifiers of all; one may show that two works are one."""
        for passage in passages[: MAX_RESULTS * 2]:
            same = [kept for kept in self.passages if _same_work(kept, passage)]
            if not same:
                self.passages.append(passage)
                continue
            known = passage.identifiers.union(*(kept.identifiers for kept in same))
            self.passages[self.passages.index(same[0])] = replace(same[0], identifiers=known)
            self.passages = [kept for kept in self.passages if kept not in same[1:]]


def _same_work(kept: Passage, passage: Passage) -> bool:
    """Say whether it is the same passage, or another record of the same work."""
    is_same = replace(kept, identifiers=passage.identifiers) == passage
    return is_same or not kept.identifiers.isdisjoint(passage.identifiers)


class Searcher:
    """All sources of one run behind one method. Safe for concurrent calls within one event loop."""

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        clock: Clock,
        snapshots: Snapshots,
        faults: FaultPlan,
        paces: Mapping[str, Pace] = MappingProxyType({}),
        policy: RetryPolicy | None = None,
        stop: Stop | None = None,
        on_event: Callable[[SearchEvent], None] = lambda _: None,
    ) -> None:
        """Sources keep their order; it is the order in which alternatives are offered.

        `paces` are kept towards the hosts that they are given for.
        """
        self._desks: Mapping[str, _Desk] = {source.name: _Desk(source) for source in sources}
        self._clock = clock
        self._snapshots = snapshots
        self._faults = faults
        self._paces = paces
        self._policy = policy or RetryPolicy()
        self._stop = stop or Stop()
        self._on_event = on_event

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources that can be asked, in order."""
        return tuple(desk.source for desk in self._desks.values())

    @property
    def stopped(self) -> Mapping[str, ErrorType]:
        """The sources that are not asked again in this run, each with the failure that several agents met there."""
        kinds = {name: desk.breaker.stopped_by for name, desk in self._desks.items()}
        return {name: kind for name, kind in kinds.items() if kind is not None}

    async def search(
        self, source: str, ask: Ask, *, use_snapshot: bool = False, caller: Caller = ANYBODY
    ) -> Found | Empty | Failed:
        """Return the outcome of one search, fitted to the wire, results not yet numbered.

        A named failure never raises; a bug in a source, or a cassette miss, does.
        """
        ask = replace(ask, query=plain(ask.query))  # half a character would break every later encoding
        if source not in self._desks or not caller.may_ask(source):
            name = one_line(source, 60)
            why = f"{name} is not one of your sources" if source in self._desks else f"there is no source {name!r}"
            possible = ", ".join(each for each in self._desks if caller.may_ask(each))
            return not_sent(name, ask.query, "invalid_arguments", why, f"Use {possible}.")
        self._on_event(SearchStarted(source, ask.query, caller.name))
        query = _Query(self._desks[source], ask, caller)
        outcome = fitted(await self._search(query, use_snapshot=use_snapshot))
        self._on_event(SearchEnded(outcome, caller=caller.name))
        return outcome

    def recall(self, ask: Ask, outcome: Found | Empty | Failed, at: datetime, caller: Caller = ANYBODY) -> None:
        """Take over what an earlier life of the run was answered, at a moment of the wall clock.

        Guard, breaker, patience and injected faults then know of it as if it had been asked here, in whatever order
        the outcomes of several agents are taken over.
        """
        self._on_event(SearchEnded(outcome, is_recalled=True, caller=caller.name))
        desk = self._desks.get(outcome.source)
        if desk is None:
            return
        ask = replace(ask, query=plain(ask.query))
        failure = outcome if isinstance(outcome, Failed) and outcome.error_type in _ACCESS_FAILURES else None
        if failure is not None:
            desk.failed.setdefault(ask.key(), set()).add(caller.name)
        desk.keep(ask, caller, outcome)
        if not outcome.attempts:
            return
        self._faults.skip(outcome.source, outcome.attempts)
        then = self._clock.monotonic() - max(0.0, (self._clock.now() - at).total_seconds())
        if failure is not None:
            can_pass = _can_pass(failure.error_type, retryable=failure.is_retryable)
            desk.breaker.failed(failure.error_type, caller.name, then, can_pass=can_pass)
        elif not isinstance(outcome, Failed):
            desk.breaker.answered(then)
        if isinstance(outcome, Failed) and outcome.error_type == "rate_limited":
            desk.patience_until = max(desk.patience_until, then + (outcome.retry_after_seconds or 0.0))

    def retried(self, outcome: Found | Empty | Failed) -> None:
        """Count the attempts of a search that is asked again, since injected faults have seen them."""
        self._faults.skip(outcome.source, outcome.attempts)

    async def _search(self, query: _Query, *, use_snapshot: bool) -> Found | Empty | Failed:
        desk, ask = query.desk, query.ask
        unusable = self._unusable(query.source, ask)
        if unusable is not None:
            return unusable
        if use_snapshot:
            return self._from_snapshot(query)
        async with desk.asking.setdefault(ask.key(), asyncio.Lock()):
            known = self._already_answered(query) or self._sent_too_often(query)
            if known is not None:
                desk.keep(ask, query.caller, known)
                return known
            async with desk.at_once:
                outcome = await self._asked(query)
            desk.keep(ask, query.caller, outcome)
            if isinstance(outcome, Found):
                self._snapshots.keep(self._snapshot_key(query.source, ask), outcome, self._clock.now())
            return outcome

    def _unusable(self, source: Source, ask: Ask) -> Failed | None:
        if (ask.date_from or ask.date_to) and not source.accepts_dates:
            return not_sent(
                source.name,
                ask.query,
                "invalid_arguments",
                f"{source.name} takes no dates",
                "Send the query without date_from and date_to.",
            )
        return None

    def _already_answered(self, query: _Query) -> Found | Empty | Failed | None:
        """The guard: return what stands for a query that needs no asking, or None where it may be sent.

        What another caller was answered is handed on once, and then is this caller's own.
        """
        desk, ask, name = query.desk, query.ask, query.name
        earlier, limit = desk.answered.get(ask.key(), (None, 0))
        if earlier is None or (isinstance(earlier, Found) and ask.limit > limit):
            return None
        was_told = (ask.key(), query.caller.name, _gist(earlier)) in desk.told
        if isinstance(earlier, Found) or (isinstance(earlier, Empty) and not was_told):
            return earlier.model_copy(update={"query": ask.query, "attempts": 0})
        if isinstance(earlier, Empty):
            return self._failed(query, "blocked", f"{name} has already answered this query: it holds no match")
        if was_told:
            why = f"{name} has already refused this query ({earlier.error_type}: {earlier.message})"
            return self._failed(query, "blocked", why)
        same = self._failed(query, earlier.error_type, earlier.message, retry_after=earlier.retry_after_seconds)
        return same.model_copy(update={"partial_results": earlier.partial_results, "truncated": earlier.truncated})

    def _sent_too_often(self, query: _Query) -> Failed | None:
        """The guard against turning between queries that fail: return the refusal of one that had its second chance."""
        if query.desk.sent[query.ask.key(), query.caller.name] < TIMES_SENT:
            return None
        why = f"you have sent this query to {query.name} {TIMES_SENT} times, and it failed each time"
        return self._failed(query, "blocked", why, may_reword=False)

    async def _asked(self, query: _Query) -> Found | Empty | Failed:
        desk, ask, name = query.desk, query.ask, query.name
        refusal = self._shut(query) or self._impatient(query)
        if refusal is not None:
            return refusal
        so_far = _Progress()
        try:
            with desk.breaker.place(self._clock.monotonic()):
                await self._patience(query)
                await self._stop.race(self._pages(query, so_far))
        except Stopped:
            after = f"; the last attempt: {so_far.last_error.message}" if so_far.last_error else ""
            return self._failed(query, "cancelled", f"stopped before the answer was complete{after}", so_far=so_far)
        except LateTurnError as error:
            return self._too_late(query, error.seconds, so_far)
        except SourceError as error:
            so_far.add(error.passages)
            return self._given_up(query, error, so_far)
        results, cut = _results(so_far.passages[: ask.limit])
        if not results and (so_far.passages or so_far.total):
            why = f"{name} says that there are matches, but no text of them arrived"
            return self._given_up(query, SourceError("malformed_response", why, retryable=True), so_far)
        desk.breaker.answered(self._clock.monotonic())
        if results:
            return Found(
                source=name,
                query=ask.query,
                total=so_far.total,
                results=results,
                truncated=cut,
                attempts=so_far.attempts,
            )
        return Empty(
            source=name,
            query=ask.query,
            guidance=f"{name} answered and holds no match. Do not send this query to {name} again.",
            attempts=so_far.attempts,
        )

    def _shut(self, query: _Query) -> Failed | None:
        """Return a refusal where the source is stopped for this run, or left alone for now."""
        breaker, name = query.desk.breaker, query.name
        if not breaker.is_open(self._clock.monotonic()):
            return None
        why = f"{name} failed several times in a row and is left alone for now"
        if breaker.stopped_by is not None:
            why = (
                f"{AGENTS_TO_STOP} agents met the same failure ({breaker.stopped_by}) at {name}; "
                "it is not asked again in this run"
            )
        return self._failed(query, "unavailable", why)

    def _impatient(self, query: _Query) -> Failed | None:
        """Return a refusal where a rate limit named a time that is further away than a search may take."""
        seconds = query.desk.patience_until - self._clock.monotonic()
        if seconds <= self._policy.deadline:
            return None
        why = f"{query.name} asked for patience for {seconds:.0f} s more, longer than a search may take"
        return self._failed(query, "rate_limited", why, retryable=True, retry_after=seconds)

    async def _patience(self, query: _Query) -> None:
        """Wait until the time a rate limit named."""
        seconds = query.desk.patience_until - self._clock.monotonic()
        if seconds > 0:
            self._waits(query, seconds, f"{query.name} asked for patience")
            await self._stop.race(self._clock.sleep(seconds))

    def _waits(self, query: _Query, seconds: float, reason: str, attempt: int = 0, attempts: int = 0) -> None:
        self._on_event(
            SearchWaiting(query.name, query.ask.query, seconds, reason, attempt, attempts, query.caller.name)
        )

    async def _pages(self, query: _Query, so_far: _Progress) -> None:
        """Fill `so_far` page by page. Raises SourceError when a page stays away after its retries."""
        source, ask = query.source, query.ask
        started = self._clock.monotonic()
        cursor: str | None = None

        async def page() -> Page:
            left = self._policy.deadline - (self._clock.monotonic() - started)
            try:
                async with self._turn(query, max(0.0, left)):
                    so_far.attempts += 1
                    return await self._one_page(source, ask, cursor)
            except UnsearchableError:
                so_far.attempts -= 1
                raise
            except SourceError as error:
                so_far.add(error.passages)
                so_far.last_error = error
                raise

        def waiting(wait: Waiting) -> None:
            self._waits(query, wait.seconds, wait.error.message, wait.attempt, wait.attempts)

        for asked in range(MAX_PAGES):
            left = self._policy.deadline - (self._clock.monotonic() - started)
            if asked and left <= 0:
                why = f"no complete answer within {self._policy.deadline:.0f} s; pages that had arrived: {asked}"
                raise SourceError("timeout", why, retryable=True)
            answer = await with_retries(
                page, policy=replace(self._policy, deadline=left), clock=self._clock, on_wait=waiting
            )
            so_far.add(answer.passages)
            so_far.last_error = None
            so_far.total = answer.total if answer.total is not None else so_far.total
            cursor = answer.next_cursor
            if cursor is None or len(so_far.passages) >= ask.limit:
                return
        if not so_far.passages:
            why = f"{source.name} names ever more pages, and {MAX_PAGES} of them held nothing"
            raise SourceError("malformed_response", why, retryable=True)

    def _turn(self, query: _Query, within: float) -> AbstractAsyncContextManager[None]:
        """Return the turn at the source's host, where one has to be waited for."""
        source = query.source
        pace = None if source.in_process else self._paces.get(host_of(source.place))
        if pace is None:
            return nullcontext()

        def waiting(seconds: float) -> None:
            if seconds > SHORT_WAIT_SECONDS:
                self._waits(query, seconds, f"{source.name} is asked by turns")

        return pace.turn(self._clock, within=within, on_wait=waiting)

    async def _one_page(self, source: Source, ask: Ask, cursor: str | None) -> Page:
        if source.in_process:
            fault = self._faults.take(source.name)
            if fault is not None:
                return await self._struck(source.name, fault)
        return await source.page(ask, cursor)

    async def _struck(self, name: str, fault: str) -> Page:
        """Let a source that has no transport fail exactly as one that has."""
        always = FaultPlan([Injection(name, fault)])
        nothing_behind = httpx2.MockTransport(lambda _: httpx2.Response(500))
        async with httpx2.AsyncClient(transport=FaultTransport(nothing_behind, always, name)) as client:
            await get_json(client, f"http://{name}.invalid/", {}, now=self._clock.now())
        return Page()

    def _too_late(self, query: _Query, seconds: float, so_far: _Progress) -> Failed:
        """Return the outcome of a search whose next turn would have come too late: for a retry, what failed before."""
        if so_far.last_error is not None:
            return self._given_up(query, so_far.last_error, so_far)
        why = f"{query.name} is asked by turns, and the next one comes in {seconds:.0f} s, too late for this search"
        return self._failed(query, "rate_limited", why, retryable=True, retry_after=seconds, so_far=so_far)

    def _given_up(self, query: _Query, error: SourceError, so_far: _Progress) -> Failed:
        desk, now = query.desk, self._clock.monotonic()
        if error.error_type in _ACCESS_FAILURES:
            can_pass = _can_pass(error.error_type, retryable=error.retryable)
            desk.breaker.failed(error.error_type, query.caller.name, now, can_pass=can_pass)
        if error.error_type == "rate_limited" and error.retry_after_seconds is not None:
            desk.patience_until = max(desk.patience_until, now + error.retry_after_seconds)
        return self._failed(
            query,
            error.error_type,
            error.message,
            retryable=error.retryable,
            retry_after=error.retry_after_seconds,
            so_far=so_far,
        )

    def _failed(
        self,
        query: _Query,
        error_type: ErrorType,
        why: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        so_far: _Progress | None = None,
        may_reword: bool = True,
    ) -> Failed:
        desk, ask, name = query.desk, query.ask, query.name
        so_far = so_far or _Progress()
        stored = self._snapshots.served(self._snapshot_key(desk.source, ask), self._clock.now())
        alternatives = self._alternatives(query, error_type, has_snapshot=stored is not None, may_reword=may_reword)
        failed_for = desk.failed.get(ask.key(), set())
        pointless = query.caller.name in failed_for or desk.breaker.is_open(self._clock.monotonic())
        patience = (retry_after or 0.0) if retryable and not pointless else None
        if error_type in _ACCESS_FAILURES:
            desk.failed[ask.key()] = failed_for | {query.caller.name}
        partial, cut = _results(so_far.passages[: ask.limit])
        return Failed(
            source=name,
            error_type=error_type,
            attempted_query=ask.query,
            partial_results=partial,
            alternative_approaches=alternatives,
            is_retryable=retryable,
            retry_after_seconds=retry_after,
            attempts=so_far.attempts,
            message=one_line(why, 400),
            guidance=_guidance(name, error_type, alternatives, patience=patience, stored=stored),
            truncated=cut,
        )

    def _alternatives(
        self, query: _Query, error_type: ErrorType, *, has_snapshot: bool, may_reword: bool
    ) -> tuple[str, ...]:
        """Name what this caller can do at this moment, most promising first."""
        if error_type in {"cancelled", "budget_exhausted"}:
            return ()
        names = []
        desk, ask, now = query.desk, query.ask, self._clock.monotonic()
        if may_reword and error_type in _OTHER_WORDS_MAY_HELP and not desk.breaker.is_open(now):
            if desk.source.accepts_dates and not (ask.date_from or ask.date_to) and error_type != "invalid_query":
                names.append("narrow_query_by_date_range")
            names.append("simplify_query")
        if has_snapshot and error_type in _ACCESS_FAILURES:
            names.append("use_cached_snapshot")
        names += [
            f"try_source:{name}"
            for name, other in self._desks.items()
            if other is not desk
            and query.caller.may_ask(name)
            and not other.breaker.is_open(now)
            and other.patience_until <= now
            and not isinstance(other.answered.get(ask.key(), (None, 0))[0], Empty | Failed)
        ]
        return tuple(names[:MAX_ALTERNATIVES])

    def _from_snapshot(self, query: _Query) -> Found | Failed:
        name, ask = query.name, query.ask
        if ask.key() not in query.desk.failed:
            why = f"a stored answer takes the place of a failed search, and this one has not failed at {name}"
            return self._failed(query, "invalid_arguments", why)
        stored = self._snapshots.served(self._snapshot_key(query.source, ask), self._clock.now())
        if stored is not None:
            return stored
        return self._failed(query, "invalid_arguments", f"no answer of {name} to this query is stored")

    def _snapshot_key(self, source: Source, ask: Ask) -> SnapshotKey:
        return SnapshotKey(source.name, source.place, *ask.key())


def _is_final(failed: Failed) -> bool:
    """Say whether the source was asked and will not answer this query otherwise in this run."""
    return not failed.is_retryable and failed.attempts > 0 and failed.error_type != "cancelled"


def _can_pass(error_type: ErrorType, *, retryable: bool) -> bool:
    """Say whether a failure passes by waiting: a rate limit, which several agents at once bring about themselves."""
    return error_type == "rate_limited" and retryable


def _gist(outcome: Found | Empty | Failed) -> _Gist:
    failure = (outcome.error_type, outcome.message) if isinstance(outcome, Failed) else ("", "")
    return outcome.status, *failure


def _results(passages: Sequence[Passage]) -> tuple[tuple[Result, ...], bool]:
    """Clean and cut passages for the wire; say whether a passage was cut."""
    results, anything_cut = [], False
    for passage in passages[:MAX_RESULTS]:
        text, cut = clip(plain(passage.text).strip(), MAX_PASSAGE_CHARS)
        if text:
            title = one_line(passage.title, 200) or "(no title)"
            results.append(
                Result(
                    title=title,
                    url=one_line(passage.url, 500),
                    date=passage.date,
                    text=text,
                    identifiers=tuple(sorted(passage.identifiers)),
                )
            )
            anything_cut |= cut
    return tuple(results), anything_cut


def _guidance(
    name: str, error_type: ErrorType, alternatives: Sequence[str], *, patience: float | None, stored: Found | None
) -> str:
    """One imperative sentence that fits the alternatives; `patience` is set where a retry is worth it."""
    steps = []
    for alternative in alternatives:
        if alternative == "narrow_query_by_date_range":
            steps.append(f"ask {name} again with date_from and date_to")
        elif alternative == "simplify_query":
            steps.append(f"ask {name} with other or fewer words")
        elif alternative == "use_cached_snapshot" and stored is not None:
            age = age_in_words(stored.snapshot_age_seconds or 0)
            steps.append(f"repeat this call with use_snapshot: true (an answer stored {age} ago)")
        else:
            steps.append(f"search {alternative.removeprefix('try_source:')} for this topic")
    if patience is not None:
        steps.append("send the same call once more" + (f" after {patience:.0f} s" if patience else ""))
    choice = ", or ".join(steps)
    if error_type == "blocked":
        return f"Do not send this query to {name} again; {choice or 'go on with what you have'}."
    if not steps:
        return f"Go on without {name}, and report that it could not be searched."
    return f"{choice[0].upper()}{choice[1:]}; if nothing helps, report that {name} could not be searched."


def age_in_words(seconds: int) -> str:
    """Return an age in the largest unit of which there are two: "3 days", "90 minutes"."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"
