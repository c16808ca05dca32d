"""The journal: what is stored, what is asked again, what ends a run, and what does not."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from caveat import OwnTool, Report, research
from caveat.budget import Limits, Spent
from caveat.events import Event, RunStarted
from caveat.journal import (
    FILE_NAME,
    DamagedError,
    DivergedError,
    Form,
    Journal,
    JournalError,
    LockedError,
    NewerError,
    read_record,
)
from caveat.prices import TurnUsage
from caveat.steps import ANSWER, OUTCOME, TURN
from caveat.turn import Turn
from caveat_tools.clock import FakeClock
from caveat_tools.outcome import Empty, Failed, Found, Result
from caveat_tools.retry import RetryPolicy
from caveat_tools.source import Ask, Page, Passage, SourceError
from caveat_tools.stop import Stop
from scripted import ScriptedModel, ScriptedSource, message, passage, tool_use
from test_resume import comparable

SENTENCE = "The Kariba Dam was finished in 1959 after five years of work."


class Crash(BaseException):
    """What ends a life of a run in these tests."""


def look(query: str, **more: Any) -> dict[str, Any]:
    return tool_use("search", f"toolu_{query}", topic_id="T1", source="wiki", query=query, **more)


def finding() -> list[dict[str, Any]]:
    found = {"topic_id": "T1", "text": "In 1959.", "evidence": [{"id": "S1", "quote": "finished in 1959"}]}
    return [tool_use("report_findings", "toolu_end", findings=[found])]


WRITE = [tool_use("write_sections", "toolu_write", sections=[{"topic_id": "T1", "text": "In 1959 [C1]."}])]


@dataclass
class World:
    """A model that answers by the conversation, a source, and a home; each can end a life."""

    home: Path
    coordinator: list[list[dict[str, Any]]]
    answers: Mapping[str, Any] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    crash_at_turn: int = 0
    model_asked: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source = QuerySource(self.answers)

    def reply(self, body: dict[str, Any]) -> Any:
        is_coordinator = any(tool["name"] == "search" for tool in body["tools"])
        number = sum(said["role"] == "assistant" for said in body["messages"])
        self.model_asked.append(f"{'coordinator' if is_coordinator else 'synthesis'} {number + 1}")
        if len(self.model_asked) == self.crash_at_turn:
            raise Crash
        return message(self.coordinator[min(number, len(self.coordinator) - 1)] if is_coordinator else WRITE)

    async def live(self, **more: Any) -> Report:
        script = ScriptedModel([self.reply])
        self.source.asked.clear()
        self.model_asked.clear()
        return await research(
            "When was the Kariba dam finished?",
            **{
                "sources": [self.source],
                "model": script.model(self.clock, RetryPolicy(attempts=1)),
                "clock": self.clock,
                "home": self.home,
                "new_id": lambda: "abc",
                "on_event": self.events.append,
                **more,
            },
        )

    @property
    def folder(self) -> Path:
        return next((self.home / "runs").iterdir())

    async def go_on(self, *, ask_failed_again: bool = False, **more: Any) -> Report:
        return await self.live(journal=Journal.open(self.folder, ask_failed_again=ask_failed_again), **more)


@dataclass
class QuerySource(ScriptedSource):
    """Answers by the query: passages, an error to raise, or a function to await first."""

    steps: Any = field(default_factory=dict)

    async def page(self, ask: Ask, cursor: str | None) -> Page:
        self.asked.append((ask, cursor))
        step = self.steps.get(ask.query, [passage(SENTENCE)])
        if callable(step):
            step = await step()
        if isinstance(step, BaseException):
            raise step
        return Page(tuple(step))

    @property
    def queries(self) -> list[str]:
        return [ask.query for ask, _ in self.asked]


def world(home: Path, *coordinator: list[dict[str, Any]], **more: Any) -> World:
    return World(home, [*coordinator, finding()], **more)


async def test_what_was_done_before_a_crash_is_not_done_again(tmp_path: Path) -> None:
    """The second life asks for what is missing only, and says what it had; the report counts both lives."""
    whole = await world(tmp_path / "whole", [look("dam")], [look("wall")]).live()
    run = world(tmp_path / "run", [look("dam")], [look("wall")], crash_at_turn=3)
    with pytest.raises(Crash):
        await run.live()
    run.crash_at_turn = 0
    report = await run.go_on()
    assert run.model_asked == ["coordinator 3", "synthesis 1"]
    assert run.source.queries == []
    assert comparable(report.to_json()) == comparable(whole.to_json())
    assert next(e for e in reversed(run.events) if isinstance(e, RunStarted)).recalled == 4


async def test_a_journal_holds_no_text_of_a_source_twice(tmp_path: Path) -> None:
    """Two searches that find the same passage store it once."""
    run = world(tmp_path, [look("dam"), look("wall")])
    await run.live()
    record = read_record(run.folder)
    assert list(record.texts.values()) == [SENTENCE]
    with closing(sqlite3.connect(run.folder / FILE_NAME)) as file:
        outputs = "".join(row[0] for row in file.execute("SELECT output FROM steps"))
    assert SENTENCE not in outputs


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_the_order_in_which_searches_end_changes_neither_report_nor_keys(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Steps are named by the order in which the model asked."""
    bells = [asyncio.Event() for _ in order]
    turns = [asyncio.Event(), *bells]

    def answer(place: int) -> Callable[[], Any]:
        async def wait() -> list[Passage]:
            position = order.index(place)
            await turns[position].wait()
            turns[position + 1].set()
            return [passage(f"{SENTENCE} Version {place}.", f"Title {place}")]

        return wait

    turns[0].set()
    run = world(tmp_path, [look(f"q{n}") for n in range(3)], answers={f"q{n}": answer(n) for n in range(3)})
    # two calls at once go to one source, so each query has a source of its own
    sources = [QuerySource({f"q{n}": answer(n)}, name=f"wiki{n}") for n in range(3)]
    run.coordinator[0] = [
        tool_use("search", f"toolu_{n}", topic_id="T1", source=f"wiki{n}", query=f"q{n}") for n in range(3)
    ]
    report = await run.live(sources=sources)
    record = read_record(run.folder)
    assert sorted(record.steps) == [
        "coordinator/turn 1/model",
        "coordinator/turn 1/search 1/outcome",
        "coordinator/turn 1/search 2/outcome",
        "coordinator/turn 1/search 3/outcome",
        "coordinator/turn 2/model",
        "synthesis/turn 1/model",
    ]
    for place in range(3):
        output = record.steps[f"coordinator/turn 1/search {place + 1}/outcome"].output
        assert record.texts[output["results"][0]["text"]].endswith(f"Version {place}.")
    assert [query.query for query in report.topics[0].queries] == ["q0", "q1", "q2"]


async def test_a_changed_prompt_is_a_diverged_run_and_nothing_is_spent(tmp_path: Path) -> None:
    """The error names what changed; neither model nor source is asked."""
    run = world(tmp_path, [look("dam")], crash_at_turn=2)
    with pytest.raises(Crash):
        await run.live()
    changed = tmp_path / "coordinator.md"
    changed.write_text("Be brief.")
    with pytest.raises(DivergedError, match=r"the prompts changed since it began\. Nothing was spent"):
        await run.go_on(prompts={"coordinator": changed})
    assert run.model_asked == []
    assert run.source.queries == []
    run.crash_at_turn = 0
    assert (await run.go_on()).exit_code == 0


async def test_changed_sources_are_a_diverged_run(tmp_path: Path) -> None:
    """A source more, or one that says something else of itself."""
    run = world(tmp_path, [look("dam")])
    await run.live()
    run.source.description = "Another one."
    with pytest.raises(DivergedError, match="the sources or what they say of themselves"):
        await run.go_on()
    assert run.model_asked == []


async def test_a_request_that_is_not_the_stored_one_ends_the_run(tmp_path: Path) -> None:
    """Where the program itself asks something else at a step, the answer that is stored belongs to another question."""
    run = world(tmp_path, [look("dam")])
    await run.live()
    with closing(sqlite3.connect(run.folder / FILE_NAME)) as file, file:
        file.execute("UPDATE steps SET request='0' WHERE key='coordinator/turn 2/model'")
    with pytest.raises(DivergedError, match="diverged at coordinator/turn 2/model"):
        await run.go_on()
    assert run.model_asked == []


async def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What the stop cut short was not finished: it is asked again, and the report is that of a run without a stop."""
    whole = await world(tmp_path / "whole", [look("dam"), look("wall")]).live()
    stop = Stop()

    async def stopped() -> list[Passage]:
        stop.ask()
        await asyncio.Event().wait()
        return []

    run = world(tmp_path / "run", [look("dam"), look("wall")], answers={"wall": stopped})
    assert (await run.live(stop=stop)).run.end == "stopped"
    assert not read_record(run.folder).is_over
    run.source.steps = {}
    report = await run.go_on()
    assert run.source.queries == ["wall"]
    assert comparable(report.to_json()) == comparable(whole.to_json())
    assert read_record(run.folder).is_over


async def test_a_run_whose_model_failed_goes_on_with_the_turn_that_failed(tmp_path: Path) -> None:
    """A failure of the model is never stored."""
    run = world(tmp_path, [look("dam")])
    working = run.reply

    def failing(body: dict[str, Any]) -> Any:
        return working(body) if len(body["messages"]) == 1 else {**message([]), "stop_reason": None}

    run.reply = failing  # type: ignore[method-assign]
    assert (await run.live()).run.end == "model_failed"
    assert not read_record(run.folder).is_over
    run.reply = working  # type: ignore[method-assign]
    assert (await run.go_on()).run.end == "finished"
    assert run.model_asked == ["coordinator 2", "synthesis 1"]


async def test_the_guard_knows_what_an_earlier_life_was_answered(tmp_path: Path) -> None:
    """A query that was empty before the crash is refused after it, as it would have been."""
    run = world(tmp_path, [look("unicorn")], [look("unicorn", limit=4)], answers={"unicorn": []}, crash_at_turn=2)
    with pytest.raises(Crash):
        await run.live()
    run.crash_at_turn = 0
    report = await run.go_on()
    assert run.source.queries == []
    assert [query.error_type for query in report.topics[0].queries] == [None, "blocked"]


@pytest.mark.parametrize(("pause", "asked"), [(0.0, []), (3_600.0, ["d"])])
async def test_the_breaker_knows_of_failures_in_an_earlier_life(tmp_path: Path, pause: float, asked: list[str]) -> None:
    """Three failures before a crash keep the source switched off after it, for as long as they would have."""
    down = SourceError("access_denied", "no", retryable=False)
    run = world(
        tmp_path, [look("a"), look("b"), look("c")], [look("d")], answers=dict.fromkeys("abc", down), crash_at_turn=2
    )
    with pytest.raises(Crash):
        await run.live()
    run.crash_at_turn = 0
    await run.clock.sleep(pause)
    await run.go_on(limits=Limits())
    assert run.source.queries == asked


async def test_a_rate_limit_holds_in_the_next_life(tmp_path: Path) -> None:
    """The patience that a source asked for is had, less what has passed."""
    limited = SourceError("rate_limited", "slow down", retryable=True, retry_after_seconds=500)
    run = world(tmp_path, [look("a")], [look("b")], answers={"a": limited}, crash_at_turn=2)
    with pytest.raises(Crash):
        await run.live()
    run.crash_at_turn = 0
    await run.clock.sleep(100)
    report = await run.go_on()
    assert run.source.queries == []
    assert [query.error_type for query in report.topics[0].queries] == ["rate_limited", "rate_limited"]


async def test_injected_faults_are_counted_over_all_lives(tmp_path: Path) -> None:
    """The second call was struck before the crash, so the first one after it is the third."""
    run = world(tmp_path, [look("a")], [look("b")], crash_at_turn=2)
    with pytest.raises(Crash):
        await run.live(inject="wiki:403*1")
    run.crash_at_turn = 0
    report = await run.go_on(inject="wiki:403*1")
    assert [query.status for query in report.topics[0].queries] == ["failed", "found"]


async def test_tokens_and_time_count_over_all_lives(tmp_path: Path) -> None:
    """A limit that two lives reach together ends the second."""
    limits = Limits(tokens=50)  # each turn has 15
    looks = [[look(query)] for query in "abcdef"]
    whole = await world(tmp_path / "whole", *looks).live(limits=limits)
    run = world(tmp_path / "run", *looks, crash_at_turn=3)
    with pytest.raises(Crash):
        await run.live(limits=limits)
    run.crash_at_turn = 0
    report = await run.go_on(limits=limits)
    assert report.run.end == "tokens_spent"
    assert report.run.model_calls == 4
    assert run.model_asked == ["coordinator 3", "coordinator 4"]
    assert comparable(report.to_json()) == comparable(whole.to_json())


async def test_a_warning_about_time_is_no_reason_to_diverge(tmp_path: Path) -> None:
    """What was said of the time in the first life is said again in the second, which takes none."""

    async def slow() -> list[Passage]:
        await run.clock.sleep(1_400)
        return [passage(SENTENCE)]

    run = world(tmp_path, [look("a")], [look("b")], answers={"a": slow}, crash_at_turn=3)
    with pytest.raises(Crash):
        await run.live()
    run.crash_at_turn = 0
    report = await run.go_on()
    assert run.model_asked[0] == "coordinator 3"
    assert report.run.seconds >= 1_400


async def test_a_run_whose_time_was_over_when_it_was_killed_still_reports_what_it_had(tmp_path: Path) -> None:
    """Time ends what is under way, not what is in the journal."""
    run = world(tmp_path, [look("a")], [look("b")], crash_at_turn=3)
    with pytest.raises(Crash):
        await run.live()
    with closing(sqlite3.connect(run.folder / FILE_NAME)) as file, file:
        file.execute("UPDATE steps SET worked=2000 WHERE key='coordinator/turn 2/search 1/outcome'")
    run.crash_at_turn = 0
    report = await run.go_on()
    assert [query.status for query in report.topics[0].queries] == ["found", "found"]
    assert len(run.model_asked) <= 2  # the last turn may just be in time, and the prose
    assert run.source.queries == []


async def test_failed_searches_are_asked_again_where_that_is_wanted(tmp_path: Path) -> None:
    """One that is found now changes what the model saw: later turns are asked anew, searches beside it are not."""
    down = SourceError("access_denied", "no", retryable=False)
    run = world(tmp_path, [look("a"), look("b")], answers={"a": down})
    assert (await run.live()).exit_code == 3
    run.source.steps = {}
    report = await run.go_on(ask_failed_again=True)
    assert run.source.queries == ["a"]
    assert run.model_asked == ["coordinator 2", "synthesis 1"]
    assert report.exit_code == 0
    assert (await run.go_on()).exit_code == 0
    assert run.model_asked == []


async def test_asking_failed_searches_again_can_itself_be_killed(tmp_path: Path) -> None:
    """What rested on the failure was forgotten when its answer came, so the next life goes on from there."""
    down = SourceError("access_denied", "no", retryable=False)
    run = world(tmp_path, [look("a")], [look("b")], answers={"a": down})
    await run.live()
    run.source.steps, run.crash_at_turn = {}, 1
    with pytest.raises(Crash):
        await run.go_on(ask_failed_again=True)
    run.crash_at_turn = 0
    report = await run.go_on()
    assert run.model_asked == ["coordinator 2", "coordinator 3", "synthesis 1"]
    assert [query.status for query in report.topics[0].queries] == ["found", "found"]


async def test_a_search_that_fails_again_in_the_same_way_changes_nothing(tmp_path: Path) -> None:
    """Only the failed search is asked; the rest of the run rests on the same failure as before."""
    down = SourceError("access_denied", "no", retryable=False)
    run = world(tmp_path, [look("a"), look("b")], [look("c")], answers={"a": down})
    first = await run.live()
    again = await run.go_on(ask_failed_again=True)
    assert run.source.queries == ["a"]
    assert run.model_asked == []
    assert comparable(again.to_json()) == comparable(first.to_json())


async def test_time_that_a_search_takes_to_fail_again_changes_nothing_that_rests_on_it(tmp_path: Path) -> None:
    """Near the limit of time, too: what the model was told of it stays as it was."""

    async def down() -> Any:
        await run.clock.sleep(800)
        return SourceError("access_denied", "no", retryable=False)

    run = world(tmp_path, [look("a")], [look("b")], answers={"a": down})
    first = await run.live()
    again = await run.go_on(ask_failed_again=True)
    assert run.source.queries == ["a"]
    assert run.model_asked == []
    assert comparable(again.to_json())["topics"] == comparable(first.to_json())["topics"]


async def test_two_runs_at_once_keep_a_journal_each(tmp_path: Path) -> None:
    """Also in one process and under the same id; neither gets in the other's way."""
    first, second = (world(tmp_path, [look("dam")]) for _ in range(2))
    reports = await asyncio.gather(first.live(new_id=lambda: "one"), second.live(new_id=lambda: "two"))
    third = await first.live(new_id=lambda: "one")
    ids = {report.run.id for report in (*reports, third)}
    assert ids == {"2026-01-02-one", "2026-01-02-two", "2026-01-02-one-2"}
    assert all(read_record(folder).is_over for folder in (tmp_path / "runs").iterdir())
    assert all("journal" not in note for report in reports for note in report.notes)


async def test_a_second_process_is_told_who_works_on_a_run(tmp_path: Path) -> None:
    """And gets no further."""
    run = world(tmp_path, [look("dam")])
    await run.live()
    with (
        closing(Journal.open(run.folder)),
        pytest.raises(LockedError, match=f"is being worked on by process {os.getpid()} on "),
    ):
        Journal.open(run.folder)
    Journal.open(run.folder).close()


def damaged(content: bytes) -> bytes:
    return content[:100] + b"\xff" * 4_000 + content[4_100:]


@pytest.mark.parametrize("damage", [damaged, lambda _: b"", lambda _: b"not a database", lambda c: c[: len(c) // 2]])
async def test_a_damaged_journal_is_refused_and_left_as_it_is(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """A sentence, and not a byte is changed: somebody may still mend it."""
    run = world(tmp_path, [look("dam")])
    await run.live()
    file = run.folder / FILE_NAME
    content = damage(file.read_bytes())
    file.write_bytes(content)
    with pytest.raises(DamagedError, match="is damaged"):
        Journal.open(run.folder)
    assert file.read_bytes() == content


async def test_a_journal_of_a_newer_caveat_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """It may hold what this version would drop."""
    run = world(tmp_path, [look("dam")])
    await run.live()
    file = run.folder / FILE_NAME
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version=99")
        connection.execute("PRAGMA journal_mode=DELETE")
    content = file.read_bytes()
    with pytest.raises(NewerError, match="was written by a newer caveat"):
        Journal.open(run.folder)
    assert file.read_bytes() == content


async def test_a_step_that_cannot_be_read_ends_the_run(tmp_path: Path) -> None:
    """JSON that is no turn is damage, not an answer."""
    run = world(tmp_path, [look("dam")])
    await run.live()
    with closing(sqlite3.connect(run.folder / FILE_NAME)) as file, file:
        file.execute("UPDATE steps SET output='{}' WHERE key='coordinator/turn 1/model'")
    with pytest.raises(DamagedError, match="coordinator/turn 1/model is unreadable"):
        await run.go_on()


class FailingDisk(Journal):
    """A journal whose disk takes no more after some steps."""

    pragma = "query_only=ON"
    commits = 0

    def commit(self, *step: Any) -> None:
        self.commits += 1
        if self.commits == 3 and self._connection is not None:
            self._connection.execute(f"PRAGMA {self.pragma}")
        super().commit(*step)


@pytest.mark.parametrize(("pragma", "said"), [("query_only=ON", "readonly"), ("max_page_count=1", "full")])
async def test_a_disk_that_fails_in_mid_run_costs_the_journal_only(tmp_path: Path, pragma: str, said: str) -> None:
    """One warning, the whole report; and the run can be gone on with from what was kept."""
    long = " ".join([SENTENCE, *("and more" for _ in range(100))])
    many = [look(f"q{n}") for n in range(4)]
    run = world(tmp_path, [look("dam")], many, answers={f"q{n}": [passage(f"{n} {long}", f"{n}")] for n in range(4)})
    journal = FailingDisk("2026-01-02-abc", tmp_path / "runs" / "2026-01-02-abc")
    journal.pragma = pragma
    report = await run.live(journal=journal)
    assert [note for note in report.notes if "journal" in note and said in note] == [
        note for note in report.notes if "journal" in note
    ]
    assert len([note for note in report.notes if "journal" in note]) == 1
    assert report.exit_code == 0
    kept = len(read_record(run.folder).steps)
    assert 2 <= kept < (steps := 9)
    again = await run.go_on()
    assert len(run.model_asked) + len(run.source.queries) == steps - kept
    assert again.exit_code == 0


async def test_a_journal_without_a_folder_keeps_nothing(tmp_path: Path) -> None:
    """The run is as any other; there is nothing to go on with."""
    run = world(tmp_path, [look("dam")])
    report = await run.live(journal=Journal("of-my-own"))
    assert report.run.id == "of-my-own"
    assert not (tmp_path / "runs" / "of-my-own" / FILE_NAME).exists()


async def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    """The report comes all the same."""
    home = tmp_path / "file"
    home.write_text("")
    run = world(home, [look("dam")])
    report = await run.live()
    assert len([note for note in report.notes if "not kept on disk" in note or "journal" in note]) == 1


async def test_a_journal_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    """Such as on a disk that only reads."""
    run = world(tmp_path, [look("dam")])
    await run.live()
    (run.folder / "journal.lock").unlink(missing_ok=True)
    (run.folder / "journal.lock").mkdir()
    with pytest.raises(JournalError, match="cannot be locked"):
        Journal.open(run.folder)


class Arguments(BaseModel):
    topic_id: str
    river: str


async def test_a_callers_own_tool_is_not_called_again(tmp_path: Path) -> None:
    """Neither where it gave evidence nor where it gave any other JSON."""
    called = []

    async def gauge(arguments: Arguments) -> Any:
        called.append(arguments.river)
        if arguments.river == "Zambezi":
            return Found(source="gauge", query="Zambezi", results=(Result(title="t", url="u", text=SENTENCE),))
        return {"level": 3}

    calls = [tool_use("gauge", f"toolu_{r}", topic_id="T1", river=r) for r in ("Zambezi", "Kafue")]
    run = world(tmp_path, calls, crash_at_turn=2)
    tools = [OwnTool("gauge", "Reads a gauge.", Arguments, gauge)]
    with pytest.raises(Crash):
        await run.live(tools=tools)
    run.crash_at_turn = 0
    report = await run.go_on(tools=tools)
    assert called == ["Zambezi", "Kafue"]
    assert report.claims[0].verified


# ---- what is written can be read

_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_count = st.integers(0, 10**9)


def _failed(**fields: Any) -> Failed:  # hypothesis would give the class its required fields twice, under both names
    return Failed(**fields)


_cost = st.none() | st.floats(0, 1_000)
_turns = st.builds(
    Turn,
    content=st.lists(
        st.builds(lambda text: {"type": "text", "text": text}, st.text())
        | st.builds(
            lambda name, value: {"type": "tool_use", "id": name, "name": name, "input": {"v": value}}, st.text(), _json
        ),
        max_size=3,
    ),
    stop_reason=st.text(),
    broken=st.dictionaries(st.text(), st.text(), max_size=2),
    usage=st.builds(TurnUsage, _count, _count, _count, _count),
    spent=st.builds(Spent, _count, _count, _count, _cost, _cost),
    answered_by=st.text(),
)
_results = st.builds(
    Result,
    title=st.text(max_size=200),
    url=st.text(max_size=500),
    date=st.none() | st.text(),
    text=st.text(min_size=1, max_size=1_200),
    identifiers=st.lists(st.text(), max_size=3).map(tuple),
)
_outcomes = (
    st.builds(
        Found,
        source=st.text(),
        query=st.text(),
        total=st.none() | _count,
        results=st.lists(_results, min_size=1, max_size=3).map(tuple),
        truncated=st.booleans(),
        attempts=_count,
    )
    | st.builds(
        Found,
        source=st.text(),
        query=st.text(),
        results=st.lists(_results, min_size=1, max_size=3).map(tuple),
        served_from=st.just("snapshot"),
        snapshot_age_seconds=_count,
    )
    | st.builds(Empty, source=st.text(), query=st.text(), guidance=st.text(min_size=1), attempts=_count)
    | st.builds(
        _failed,
        source=st.text(),
        error_type=st.sampled_from(["unavailable", "rate_limited"]),
        attempted_query=st.text(),
        partial_results=st.lists(_results, max_size=3).map(tuple),
        alternative_approaches=st.just(("simplify_query", "try_source:wikipedia")),
        is_retryable=st.booleans(),
        retry_after_seconds=st.none() | st.floats(0, 10**6),
        attempts=_count,
        message=st.text(min_size=1),
        guidance=st.text(min_size=1),
        truncated=st.booleans(),
    )
)


def stored_and_read(value: Any, form: Form[Any]) -> Any:
    """Write a value as the journal does, and read it."""
    texts: dict[str, str] = {}

    def keep(text: str) -> str:
        return texts.setdefault(text, text) and str(list(texts).index(text))

    written = json.loads(json.dumps(form.write(value, keep)))
    return form.read(written, lambda name: list(texts)[int(name)])


@given(_turns)
def test_a_turn_is_the_same_after_the_journal(turn: Turn) -> None:
    """All of it, also what broke and what it cost."""
    assert stored_and_read(turn, TURN) == turn


@given(_outcomes)
def test_an_outcome_is_the_same_after_the_journal(outcome: Any) -> None:
    """Also what is for the report and not for the model."""
    read = stored_and_read(outcome, OUTCOME)
    assert read == outcome
    assert read.attempts == outcome.attempts


@given(_outcomes | st.dictionaries(st.text(), _json) | st.text())
def test_an_own_tools_answer_is_the_same_after_the_journal(answer: Any) -> None:
    """Evidence or any other JSON."""
    assert stored_and_read(answer, ANSWER) == answer


@given(_json, st.sampled_from([TURN, OUTCOME, ANSWER]))
def test_any_json_is_an_output_or_damage(body: Any, form: Form[Any]) -> None:
    """What cannot be read raises only what the journal takes for damage."""
    nothing: dict[str, str] = {}
    with suppress(ValueError, KeyError, TypeError):
        form.read(body, nothing.__getitem__)
