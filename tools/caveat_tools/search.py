"""Search one source, honestly: guard → wait → retry → source, and always a Found, an Empty or a Failed.

    guard     a query that this source has answered already is not sent again; nor is one to a source switched off
    wait      a source that asked for patience gets it, if the time is there; each request waits for its turn (`pace`)
    retry     `retry.with_retries`, per page, so that a page that has arrived is never asked for twice
    source    `Source.page`; its SourceError becomes a Failed that carries what had arrived before

Nothing here knows of the agent; the guidance that it writes is for whatever model reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias

import httpx2

from caveat_tools.breaker import Breaker
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

_ACCESS_FAILURES: Final[frozenset[ErrorType]] = frozenset(
    {"timeout", "unavailable", "rate_limited", "access_denied", "malformed_response"}
)
_OTHER_WORDS_MAY_HELP: Final[frozenset[ErrorType]] = frozenset(
    {"timeout", "invalid_query", "malformed_response", "blocked"}
)


@dataclass(frozen=True, slots=True)
class SearchStarted:
    """Told to the listener when a search begins."""

    source: str
    query: str


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


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """Told to the listener when a search has its outcome; `is_recalled` where an earlier life of the run had it."""

    outcome: Found | Empty | Failed
    is_recalled: bool = False


SearchEvent: TypeAlias = SearchStarted | SearchWaiting | SearchEnded


@dataclass
class _Desk:
    """What is known of one source in this run."""

    source: Source
    breaker: Breaker = field(default_factory=Breaker)
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS_AT_ONCE))
    patience_until: float = 0.0
    answered: dict[tuple[str, str, str], tuple[Found | Empty | Failed, int]] = field(default_factory=dict)
    failed: set[tuple[str, str, str]] = field(default_factory=set)
    asking: dict[tuple[str, str, str], asyncio.Lock] = field(default_factory=dict)


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

    async def search(self, source: str, ask: Ask, *, use_snapshot: bool = False) -> Found | Empty | Failed:
        """Return the outcome of one search, fitted to the wire, results not yet numbered.

        A named failure never raises; a bug in a source, or a cassette miss, does.
        """
        ask = replace(ask, query=plain(ask.query))  # half a character would break every later encoding
        if source not in self._desks:
            known = ", ".join(self._desks)
            name = one_line(source, 60)
            return not_sent(name, ask.query, "invalid_arguments", f"there is no source {name!r}", f"Use {known}.")
        self._on_event(SearchStarted(source, ask.query))
        outcome = fitted(await self._search(self._desks[source], ask, use_snapshot=use_snapshot))
        self._on_event(SearchEnded(outcome))
        return outcome

    def recall(self, ask: Ask, outcome: Found | Empty | Failed, at: datetime) -> None:
        """Take over what an earlier life of the run was answered, at a moment of the wall clock.

        Guard, breaker, patience and injected faults then know of it as if it had been asked here.
        """
        self._on_event(SearchEnded(outcome, is_recalled=True))
        desk = self._desks.get(outcome.source)
        if desk is None:
            return
        key = replace(ask, query=plain(ask.query)).key()
        is_access_failure = isinstance(outcome, Failed) and outcome.error_type in _ACCESS_FAILURES
        if is_access_failure:
            desk.failed.add(key)
        if not outcome.attempts:
            return
        self._faults.skip(outcome.source, outcome.attempts)
        then = self._clock.monotonic() - max(0.0, (self._clock.now() - at).total_seconds())
        if is_access_failure or not isinstance(outcome, Failed):
            desk.breaker.record(answered=not is_access_failure, now=then)
        if not isinstance(outcome, Failed) or _is_final(outcome):
            desk.answered[key] = outcome, ask.limit
        if isinstance(outcome, Failed) and outcome.error_type == "rate_limited":
            desk.patience_until = max(desk.patience_until, then + (outcome.retry_after_seconds or 0.0))

    def retried(self, outcome: Found | Empty | Failed) -> None:
        """Count the attempts of a search that is asked again, since injected faults have seen them."""
        self._faults.skip(outcome.source, outcome.attempts)

    async def _search(self, desk: _Desk, ask: Ask, *, use_snapshot: bool) -> Found | Empty | Failed:
        source, key = desk.source, ask.key()
        unusable = self._unusable(source, ask)
        if unusable is not None:
            return unusable
        if use_snapshot:
            return self._from_snapshot(desk, ask)
        async with desk.asking.setdefault(key, asyncio.Lock()):
            known = self._already_answered(desk, ask)
            if known is not None:
                return known
            async with desk.at_once:
                outcome = await self._asked(desk, ask)
            if not isinstance(outcome, Failed) or _is_final(outcome):
                desk.answered[key] = outcome, ask.limit
            if isinstance(outcome, Found):
                self._snapshots.keep(self._snapshot_key(source, ask), outcome, self._clock.now())
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

    def _already_answered(self, desk: _Desk, ask: Ask) -> Found | Failed | None:
        """The guard: return what stands for a query that needs no asking, or None where it may be sent."""
        name = desk.source.name
        earlier, limit = desk.answered.get(ask.key(), (None, 0))
        if isinstance(earlier, Found) and ask.limit <= limit:
            return earlier.model_copy(update={"attempts": 0})
        if isinstance(earlier, Empty):
            return self._failed(desk, ask, "blocked", f"{name} has already answered this query: it holds no match")
        if isinstance(earlier, Failed):
            why = f"{name} has already refused this query ({earlier.error_type}: {earlier.message})"
            return self._failed(desk, ask, "blocked", why)
        return None

    async def _asked(self, desk: _Desk, ask: Ask) -> Found | Empty | Failed:
        name = desk.source.name
        if desk.breaker.is_open(self._clock.monotonic()):
            why = f"{name} failed several times in a row and is left alone for now"
            return self._failed(desk, ask, "unavailable", why, retryable=False)
        so_far = _Progress()
        try:
            refusal = await self._patience(desk, ask)
            if refusal is not None:
                return refusal
            await self._stop.race(self._pages(desk.source, ask, so_far))
        except Stopped:
            after = f"; the last attempt: {so_far.last_error.message}" if so_far.last_error else ""
            return self._failed(desk, ask, "cancelled", f"stopped before the answer was complete{after}", so_far=so_far)
        except LateTurnError as error:
            return self._too_late(desk, ask, error.seconds, so_far)
        except SourceError as error:
            so_far.add(error.passages)
            return self._given_up(desk, ask, error, so_far)
        results, cut = _results(so_far.passages[: ask.limit])
        if not results and (so_far.passages or so_far.total):
            why = f"{name} says that there are matches, but no text of them arrived"
            return self._given_up(desk, ask, SourceError("malformed_response", why, retryable=True), so_far)
        desk.breaker.record(answered=True, now=self._clock.monotonic())
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

    async def _patience(self, desk: _Desk, ask: Ask) -> Failed | None:
        """Wait until the time a rate limit named; return a refusal where that is longer than a search may take."""
        seconds = desk.patience_until - self._clock.monotonic()
        if seconds <= 0:
            return None
        name = desk.source.name
        if seconds > self._policy.deadline:
            why = f"{name} asked for patience for {seconds:.0f} s more, longer than a search may take"
            return self._failed(desk, ask, "rate_limited", why, retryable=True, retry_after=seconds)
        self._on_event(SearchWaiting(name, ask.query, seconds, f"{name} asked for patience"))
        await self._stop.race(self._clock.sleep(seconds))
        return None

    async def _pages(self, source: Source, ask: Ask, so_far: _Progress) -> None:
        """Fill `so_far` page by page. Raises SourceError when a page stays away after its retries."""
        started = self._clock.monotonic()
        cursor: str | None = None

        async def page() -> Page:
            left = self._policy.deadline - (self._clock.monotonic() - started)
            try:
                async with self._turn(source, ask, max(0.0, left)):
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
            self._on_event(
                SearchWaiting(source.name, ask.query, wait.seconds, wait.error.message, wait.attempt, wait.attempts)
            )

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

    def _turn(self, source: Source, ask: Ask, within: float) -> AbstractAsyncContextManager[None]:
        """Return the turn at the source's host, where one has to be waited for."""
        pace = None if source.in_process else self._paces.get(host_of(source.place))
        if pace is None:
            return nullcontext()

        def waiting(seconds: float) -> None:
            if seconds > SHORT_WAIT_SECONDS:
                self._on_event(SearchWaiting(source.name, ask.query, seconds, f"{source.name} is asked by turns"))

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

    def _too_late(self, desk: _Desk, ask: Ask, seconds: float, so_far: _Progress) -> Failed:
        """Return the outcome of a search whose next turn would have come too late: for a retry, what failed before."""
        if so_far.last_error is not None:
            return self._given_up(desk, ask, so_far.last_error, so_far)
        name = desk.source.name
        why = f"{name} is asked by turns, and the next one comes in {seconds:.0f} s, too late for this search"
        return self._failed(desk, ask, "rate_limited", why, retryable=True, retry_after=seconds, so_far=so_far)

    def _given_up(self, desk: _Desk, ask: Ask, error: SourceError, so_far: _Progress) -> Failed:
        now = self._clock.monotonic()
        if error.error_type in _ACCESS_FAILURES:
            desk.breaker.record(answered=False, now=now)
        if error.error_type == "rate_limited" and error.retry_after_seconds is not None:
            desk.patience_until = max(desk.patience_until, now + error.retry_after_seconds)
        return self._failed(
            desk,
            ask,
            error.error_type,
            error.message,
            retryable=error.retryable,
            retry_after=error.retry_after_seconds,
            so_far=so_far,
        )

    def _failed(
        self,
        desk: _Desk,
        ask: Ask,
        error_type: ErrorType,
        why: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        so_far: _Progress | None = None,
    ) -> Failed:
        so_far = so_far or _Progress()
        name = desk.source.name
        stored = self._snapshots.served(self._snapshot_key(desk.source, ask), self._clock.now())
        alternatives = self._alternatives(desk, ask, error_type, has_snapshot=stored is not None)
        pointless = ask.key() in desk.failed or desk.breaker.is_open(self._clock.monotonic())
        patience = (retry_after or 0.0) if retryable and not pointless else None
        if error_type in _ACCESS_FAILURES:
            desk.failed.add(ask.key())
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

    def _alternatives(self, desk: _Desk, ask: Ask, error_type: ErrorType, *, has_snapshot: bool) -> tuple[str, ...]:
        """Name what can be done at this moment, most promising first."""
        if error_type in {"cancelled", "budget_exhausted"}:
            return ()
        names = []
        now = self._clock.monotonic()
        if error_type in _OTHER_WORDS_MAY_HELP and not desk.breaker.is_open(now):
            if desk.source.accepts_dates and not (ask.date_from or ask.date_to) and error_type != "invalid_query":
                names.append("narrow_query_by_date_range")
            names.append("simplify_query")
        if has_snapshot and error_type in _ACCESS_FAILURES:
            names.append("use_cached_snapshot")
        names += [
            f"try_source:{other.source.name}"
            for other in self._desks.values()
            if other is not desk
            and not other.breaker.is_open(now)
            and other.patience_until <= now
            and not isinstance(other.answered.get(ask.key(), (None, 0))[0], Empty | Failed)
        ]
        return tuple(names[:MAX_ALTERNATIVES])

    def _from_snapshot(self, desk: _Desk, ask: Ask) -> Found | Failed:
        if ask.key() not in desk.failed:
            why = (
                f"a stored answer takes the place of a failed search, and this one has not failed at {desk.source.name}"
            )
            return self._failed(desk, ask, "invalid_arguments", why)
        stored = self._snapshots.served(self._snapshot_key(desk.source, ask), self._clock.now())
        if stored is not None:
            return stored
        why = f"no answer of {desk.source.name} to this query is stored"
        return self._failed(desk, ask, "invalid_arguments", why)

    def _snapshot_key(self, source: Source, ask: Ask) -> SnapshotKey:
        return SnapshotKey(source.name, source.place, *ask.key())


def _is_final(failed: Failed) -> bool:
    """Say whether the source was asked and will not answer this query otherwise in this run."""
    return not failed.is_retryable and failed.attempts > 0 and failed.error_type != "cancelled"


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
