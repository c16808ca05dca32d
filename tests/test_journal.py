"""The journal: what is stored, what is asked again, what ends a run, and what does not."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from caveat import OwnTool, Report, research
from caveat.budget import Limits, Spent
from caveat.events import Event, RunStarted
from caveat.history import run_ids
from caveat.journal import (
    FILE_NAME,
    UNKEPT,
    DamagedError,
    DivergedError,
    Form,
    Journal,
    JournalError,
    LockedError,
    NewerError,
    Record,
    Scope,
    read_record,
    rests_on,
)
from caveat.prices import TurnUsage
from caveat.steps import ANSWER, OUTCOME, TURN
from caveat.turn import ModelError, Turn
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


# ---- what rests on what

_names = st.sampled_from(["search 1", "search 2", "delegate 1", "delegate 2"])
_turn = st.integers(1, 12).map(lambda number: f"turn {number}")


@st.composite
def keys(draw: st.DrawFn) -> str:
    """A step's key: of the model, or of a call, also of an agent within a turn of another one."""
    root = draw(st.sampled_from(["coordinator", "analysis", "synthesis"]))
    nested = draw(st.lists(st.tuples(_turn, st.sampled_from(["delegate 1", "delegate 2"])), max_size=1))
    leaf = draw(st.just("model") | _names.map(lambda name: f"{name}/outcome"))
    return "/".join([root, *(part for pair in nested for part in pair), draw(_turn), leaf])


@pytest.mark.parametrize(
    ("later", "key", "rests"),
    [
        ("coordinator/turn 10/model", "coordinator/turn 9/search 1/outcome", True),
        ("coordinator/turn 9/model", "coordinator/turn 10/search 1/outcome", False),
        ("coordinator/turn 3/delegate 1/turn 4/model", "coordinator/turn 3/search 2/outcome", False),
        ("coordinator/turn 3/delegate 1/turn 4/model", "coordinator/turn 3/delegate 2/turn 1/model", False),
        ("coordinator/turn 3/delegate 1/turn 4/model", "coordinator/turn 3/delegate 1/turn 1/search 1/outcome", True),
        ("coordinator/turn 4/delegate 1/turn 1/model", "coordinator/turn 3/delegate 2/turn 8/model", True),
        ("analysis/turn 1/model", "coordinator/turn 9/delegate 1/turn 2/model", True),
        ("synthesis/turn 1/model", "analysis/turn 2/model", True),
        ("coordinator/turn 9/model", "analysis/turn 1/model", False),
        ("elsewhere/turn 2/model", "coordinator/turn 1/model", False),
    ],
)
def test_what_rests_on_a_step(later: str, key: str, *, rests: bool) -> None:
    """Later turns of the same agent and of those that called it, and later stages; not what goes on beside it."""
    assert rests_on(later, key) == rests


@given(keys(), keys(), keys())
def test_resting_on_is_an_order(one: str, other: str, third: str) -> None:
    """No step rests on itself, no two on each other, and what rests on what rests on a step rests on that one, too."""
    assert not rests_on(one, one)
    assert not (rests_on(one, other) and rests_on(other, one))
    assert not (rests_on(one, other) and rests_on(other, third)) or rests_on(one, third)


@given(keys(), st.integers(1, 12), st.integers(1, 12))
def test_all_of_a_later_turn_rests_on_all_of_an_earlier_one(key: str, one: int, other: int) -> None:
    """Wherever in a run the two turns are, and whatever went on in them."""
    agent = key.rsplit("/turn ", 1)[0]
    for later, earlier in itertools.product(["model", "search 1/outcome", "delegate 2/turn 1/model"], repeat=2):
        assert rests_on(f"{agent}/turn {one}/{later}", f"{agent}/turn {other}/{earlier}") == (one > other)


# ---- the journal by itself

WORD: Form[str] = Form(
    write=lambda word, _: word, read=lambda body, _: str(body), has_failed=lambda word: word.startswith("failed")
)
FRAIL = replace(WORD, failure_stands_alone=False)
ASKED = {"question": "When?", "prompts": {"synthesis": "Write."}, "model": "small"}


class Asked(list[str]):
    """The steps that were done, not recalled."""

    async def step(self, place: Scope, name: str, word: str, form: Form[str] = WORD) -> str:
        async def call() -> str:
            self.append(f"{place.path}/{name}")
            return word

        return await place.step(name, "the same", call, form=form)


def begun(journal: Journal, clock: FakeClock | None = None, **asked: Any) -> Journal:
    journal.begin({**ASKED, **asked}, clock=clock or FakeClock(), on_warning=pytest.fail)
    return journal


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), max_size=8), st.randoms(use_true_random=False))
def test_each_agent_reads_the_same_time_again_in_whatever_order_they_go_on(
    work: list[tuple[int, int]], random: Random
) -> None:
    """What an agent decides by its time follows from its own steps, not from how far those beside it have come."""

    async def live(journal: Journal, clock: FakeClock, order: list[tuple[int, int]]) -> dict[int, list[float]]:
        coordinator = journal.scope("coordinator")
        await Asked().step(coordinator, "turn 1/model", "go")
        agents = [coordinator.apart(f"turn 2/delegate {number}") for number in range(3)]
        read: dict[int, list[float]] = {number: [agent.elapsed.seconds] for number, agent in enumerate(agents)}
        for number, seconds in order:
            await clock.sleep(seconds)
            await Asked().step(agents[number], f"turn {len(read[number])}/model", "done")
            read[number].append(agents[number].elapsed.monotonic())
        before = coordinator.elapsed.seconds
        for agent in agents:
            coordinator.elapsed.reach(agent.elapsed.seconds)
        read[3] = [before, coordinator.elapsed.seconds]
        return read

    with tempfile.TemporaryDirectory() as home:
        clock = FakeClock()
        with closing(begun(Journal("run", Path(home) / "run"), clock)) as journal:
            first = asyncio.run(live(journal, clock, work))
        assert first[3] == [0, sum(seconds for _, seconds in work)]
        shuffled = sorted(work, key=lambda _: random.random())
        clock = FakeClock()
        with closing(begun(Journal.open(Path(home) / "run"), clock)) as journal:
            assert asyncio.run(live(journal, clock, shuffled)) == first


async def test_time_stands_still_where_nothing_is_kept() -> None:
    """A place without a journal has no time of its own."""
    place = UNKEPT.within("turn 1").apart("delegate 1")
    await Asked().step(place, "model", "done")
    assert (UNKEPT.elapsed.seconds, place.elapsed.seconds) == (0, 0)


async def test_what_goes_on_beside_a_failure_is_kept_when_that_is_asked_again(tmp_path: Path) -> None:
    """Only what rests on it is forgotten, and the run is no longer one that came to the end of its retrieval."""

    async def live(journal: Journal, outcome: str) -> Asked:
        asked, coordinator = Asked(), journal.scope("coordinator")
        for place in ("turn 1/delegate 1", "turn 1/delegate 2"):
            agent = coordinator.apart(place)
            await asked.step(agent, "turn 1/model", "look")
            await asked.step(agent, "turn 1/search 1", outcome if place.endswith("1") else "found")
            await asked.step(agent, "turn 2/model", "done")
        await asked.step(coordinator, "turn 2/model", "done")
        journal.reached("retrieval")
        await asked.step(journal.scope("analysis"), "turn 1/model", "claims")
        journal.reached("analysis")
        return asked

    folder = tmp_path / "run"
    with closing(begun(Journal("run", folder))) as journal:
        assert len(await live(journal, "failed: down")) == 8
        journal.finish({}, is_over=True)
    assert read_record(folder).reached == ("retrieval", "analysis")
    with closing(begun(Journal.open(folder, ask_failed_again=True))) as journal:
        place = journal.scope("coordinator").within("turn 1/delegate 1/turn 1")
        await Asked().step(place, "search 1", "found")
    record = read_record(folder)
    assert record.reached == ()
    assert not record.is_over
    assert set(record.steps) == {
        *(f"coordinator/turn 1/delegate {n}/turn 1/{name}" for n in (1, 2) for name in ("model", "search 1")),
        "coordinator/turn 1/delegate 2/turn 2/model",
    }
    with closing(begun(Journal.open(folder))) as journal:
        assert await live(journal, "") == [
            "coordinator/turn 1/delegate 1/turn 2/model",
            "coordinator/turn 2/model",
            "analysis/turn 1/model",
        ]
    assert read_record(folder).reached == ("retrieval", "analysis")


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_failure_of_a_subagents_model_holds_once_the_coordinator_went_on(
    tmp_path: Path, *, goes_on: bool
) -> None:
    """Until then nothing rests on it, and the next life asks that model again."""
    folder = tmp_path / "run"
    with closing(begun(Journal("run", folder))) as journal:
        agent = journal.scope("coordinator").apart("turn 1/delegate 1")
        await Asked().step(agent, "turn 1/model", "failed: overloaded", FRAIL)
        await Asked().step(journal.scope("coordinator"), "turn 1/delegate 2/turn 5/model", "done")
        if goes_on:
            await Asked().step(journal.scope("coordinator"), "turn 2/model", "without it")
    asked = Asked()
    with closing(begun(Journal.open(folder))) as journal:
        agent = journal.scope("coordinator").apart("turn 1/delegate 1")
        answer = await asked.step(agent, "turn 1/model", "done", FRAIL)
    assert (answer, len(asked)) == (("failed: overloaded", 0) if goes_on else ("done", 1))
    assert len(read_record(folder).steps) == (3 if goes_on else 2)
    with closing(begun(Journal.open(folder, ask_failed_again=True))) as journal:
        agent = journal.scope("coordinator").apart("turn 1/delegate 1")
        assert await asked.step(agent, "turn 1/model", "done", FRAIL) == "done"
    assert len(read_record(folder).steps) == 2


async def never() -> str:
    pytest.fail("this is not to be asked")


async def retrieved(folder: Path, *, is_whole: bool = True) -> Record:
    """The journal of a run whose retrieval, with a failed search in it, took 1,600 s, and that has an analysis."""
    clock = FakeClock()
    with closing(begun(Journal(folder.name, folder), clock)) as journal:
        coordinator = journal.scope("coordinator")
        for name, word in (("turn 1/model", "look"), ("turn 1/search 1/outcome", "failed: down")):
            await clock.sleep(800)
            await Asked().step(coordinator, name, word)
        await Asked().step(coordinator, "turn 2/delegate 1/turn 1/model", "failed: overloaded", FRAIL)
        if is_whole:
            journal.reached("retrieval")
            await Asked().step(journal.scope("analysis"), "turn 1/model", "claims")
            journal.reached("analysis")
            journal.finish({"of": "the parent"}, is_over=True)
    return read_record(folder)


async def test_a_run_begins_with_the_retrieval_of_another_one(tmp_path: Path) -> None:
    """Whatever is asked now; nothing of it is asked again, its time is the parent's, and then the run's own begins."""

    async def live(journal: Journal, clock: FakeClock) -> tuple[Asked, list[float]]:
        asked, coordinator = Asked(), journal.scope("coordinator")
        assert await coordinator.step("turn 1/model", "another prompt", never, form=WORD) == "look"
        await asked.step(coordinator, "turn 1/search 1/outcome", "found")
        await asked.step(coordinator, "turn 2/delegate 1/turn 1/model", "done", FRAIL)
        read = [coordinator.elapsed.seconds]
        journal.reached("retrieval")
        analysis = journal.scope("analysis")
        read.append(analysis.elapsed.seconds)
        await clock.sleep(5)
        await asked.step(analysis, "turn 1/model", "other claims")
        journal.reached("retrieval")
        journal.reached("analysis")
        return asked, [*read, analysis.elapsed.seconds]

    parent = await retrieved(tmp_path / "parent")
    bytes_before = (tmp_path / "parent" / FILE_NAME).read_bytes()
    child, clock = tmp_path / "child", FakeClock()
    with closing(begun(Journal.branch(parent, child, "analysis"), clock, model="large")) as journal:
        assert await live(journal, clock) == (["analysis/turn 1/model"], [1_600, 0, 5])
        assert journal.earlier == 0
    record = read_record(child)
    assert (record.asked["parent"], record.asked["from"], record.asked["model"]) == ("parent", "analysis", "large")
    assert (record.report, record.is_over, record.reached) == (None, False, ("retrieval", "analysis"))
    assert {key: step.output for key, step in record.steps.items()} == {
        **{key: step.output for key, step in parent.steps.items()},
        "analysis/turn 1/model": "other claims",
    }
    with closing(begun(Journal.open(child, ask_failed_again=True), model="large")) as journal:
        assert journal.earlier == 5
        assert await live(journal, FakeClock()) == ([], [1_600, 0, 5])
    with closing(Journal.open(child)) as journal, pytest.raises(DivergedError, match="the model changed"):
        begun(journal, model="small")
    assert (tmp_path / "parent" / FILE_NAME).read_bytes() == bytes_before
    grandchild = Journal.branch(record, tmp_path / "grandchild", "synthesis")
    with closing(begun(grandchild, prompts={"synthesis": "Write less."})):
        assert await Asked().step(grandchild.scope("analysis"), "turn 1/model", "") == "other claims"
    assert read_record(tmp_path / "grandchild").asked["parent"] == "child"


async def test_the_prose_of_a_run_is_written_anew_with_another_prompt(tmp_path: Path) -> None:
    """From what the run has found, down to its failures; neither the sources nor the coordinator's model are asked."""
    down = SourceError("access_denied", "no", retryable=False)
    run = world(tmp_path, [look("dam")], [look("wall")], answers={"wall": down})
    first = await run.live()
    parent, prompt = read_record(run.folder), tmp_path / "synthesis.md"
    prompt.write_text("Write briefly.")
    run.source.steps, child = {}, tmp_path / "runs" / "child"
    again = await run.live(journal=Journal.branch(parent, child, "synthesis"), prompts={"synthesis": prompt})
    assert (run.model_asked, run.source.queries) == (["synthesis 1"], [])
    assert comparable(again.to_json()) == comparable(first.to_json())
    assert (again.run.id, again.run.model_calls) == ("child", first.run.model_calls)
    assert (await run.live(journal=Journal.open(child), prompts={"synthesis": prompt})).run.id == "child"
    assert run.model_asked == []


async def test_time_that_was_spent_on_searching_is_not_the_time_of_another_runs_prose(tmp_path: Path) -> None:
    """What the limit of time refused in the parent stays refused, and the prose has all the time there is."""

    async def slow() -> list[Passage]:
        await run.clock.sleep(1_700)
        return [passage(SENTENCE)]

    run = world(tmp_path, [look("a")], [look("b")], answers={"a": slow})
    run.coordinator[1] += finding()
    first = await run.live()
    assert [query.status for query in first.topics[0].queries] == ["found", "failed"]
    assert run.source.queries == ["a"]
    again = await run.live(journal=Journal.branch(read_record(run.folder), tmp_path / "runs" / "child", "synthesis"))
    assert (run.model_asked, run.source.queries) == (["synthesis 1"], [])
    assert [query.status for query in again.topics[0].queries] == ["found", "failed"]
    assert again.run.seconds < 100


async def test_nothing_is_asked_under_a_stage_that_is_another_runs(tmp_path: Path) -> None:
    """Where this would be asked, the two runs are not one; it is said before it is."""
    parent = await retrieved(tmp_path / "parent")
    asked = Asked()
    with closing(begun(Journal.branch(parent, tmp_path / "child", "synthesis"))) as journal:
        with pytest.raises(DivergedError, match=r"diverged at coordinator/turn 3/model: .* its parent did not ask it"):
            await asked.step(journal.scope("coordinator"), "turn 3/model", "more")
        with pytest.raises(DivergedError, match="at analysis/turn 2/model"):
            await asked.step(journal.scope("analysis"), "turn 2/model", "more")
    assert asked == []


async def test_a_run_that_is_not_through_with_a_stage_is_no_beginning_of_another(tmp_path: Path) -> None:
    """The sentence says what to do first; nothing is made."""
    parent = await retrieved(tmp_path / "parent", is_whole=False)
    with pytest.raises(JournalError, match=r"does not say that its retrieval came to an end.*`caveat resume parent`"):
        Journal.branch(parent, tmp_path / "child", "analysis")
    with pytest.raises(JournalError, match="its analysis came to an end"):
        Journal.branch(replace(parent, reached=("retrieval",)), tmp_path / "child", "synthesis")
    with pytest.raises(JournalError, match="it is over, so ask the question anew"):
        Journal.branch(replace(parent, is_over=True), tmp_path / "child", "analysis")
    assert not (tmp_path / "child").exists()


async def test_a_kill_while_a_journal_is_made_leaves_nothing_that_passes_for_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has its name once it is whole; the next attempt begins it anew."""
    parent = await retrieved(tmp_path / "runs" / "parent")

    def killed(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        journal = Journal.branch(parent, tmp_path / "runs" / "child", "analysis")
        with closing(journal), pytest.raises(Crash):
            begun(journal)
    assert run_ids(tmp_path) == ["parent"]
    begun(Journal.branch(parent, tmp_path / "runs" / "child", "analysis")).close()
    assert run_ids(tmp_path) == ["child", "parent"]
    assert len(read_record(tmp_path / "runs" / "child").steps) == 3


async def test_a_journal_takes_no_other_ones_place(tmp_path: Path) -> None:
    """A new run under the name of one that there is keeps nothing, and says so."""
    await retrieved(tmp_path / "run")
    warnings: list[str] = []
    with closing(Journal("run", tmp_path / "run")) as journal:
        journal.begin(ASKED, clock=FakeClock(), on_warning=warnings.append)
    assert len(warnings) == 1
    assert "there is a run run already" in warnings[0]
    assert len(read_record(tmp_path / "run").steps) == 4


async def test_a_run_of_an_older_caveat_goes_on_as_it_is(tmp_path: Path) -> None:
    """It is marked as one of this version once it does, and not before."""
    folder = tmp_path / "run"
    await retrieved(folder)
    with closing(sqlite3.connect(folder / FILE_NAME)) as file, file:
        file.execute("DELETE FROM run WHERE name='reached'")
        file.execute("PRAGMA user_version=1")
    record = read_record(folder)
    assert record.reached == ()
    with pytest.raises(JournalError, match="it is over, so ask the question anew"):
        Journal.branch(record, tmp_path / "child", "analysis")

    def version() -> int:
        with closing(sqlite3.connect(folder / FILE_NAME)) as file:
            return int(file.execute("PRAGMA user_version").fetchone()[0])

    with closing(Journal.open(folder)) as journal, pytest.raises(DivergedError, match="the model changed"):
        begun(journal, model="large")
    assert version() == 1
    with closing(begun(Journal.open(folder))) as journal:
        assert await Asked().step(journal.scope("coordinator"), "turn 1/model", "") == "look"
    assert version() == 2


async def test_a_parent_that_is_none_of_ours_is_damage(tmp_path: Path) -> None:
    """A stage that does not exist."""
    folder = tmp_path / "run"
    await retrieved(folder)
    with closing(sqlite3.connect(folder / FILE_NAME)) as file, file:
        file.execute("""UPDATE run SET value='{"from": "reading"}' WHERE name='asked'""")
    with pytest.raises(DamagedError, match="is damaged"):
        read_record(folder)


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


@given(st.text(), st.booleans(), st.none() | st.floats(0, 10**6))
def test_a_failure_of_a_model_is_the_same_after_the_journal(said: str, retryable: bool, patience: float | None) -> None:
    """Its kind and its words, and what may help."""
    error = ModelError("rate_limited", said, retryable=retryable, retry_after_seconds=patience)
    read = stored_and_read(error, TURN)
    assert isinstance(read, ModelError)
    assert vars(read) == vars(error)
    assert TURN.has_failed(read)


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
