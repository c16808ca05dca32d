"""The journal: every finished step of a run, on disk, so that nothing finished is paid for twice.

    step    stored under this key? its output : do it, commit its output, return it

A key is the path of a scope and the step's own name, such as `coordinator/turn 3/search 2/outcome`. Both follow from
the order in which the model asked, never from the order in which answers came. Beside an output stands a digest of what
was asked; where a resumed run asks something else, it has diverged and ends. Exceptions are never stored.

A run may also begin with the first stages of another one, its parent: their steps are inherited, and taken as they are.

One SQLite file a run, in WAL: a killed process loses nothing that was committed. Only one process works on a run, by a
lock of the operating system, which dies with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import re
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec
from filelock import FileLock, Timeout

from caveat_tools.clock import Clock, SystemClock
from caveat_tools.outcome import to_json

FILE_NAME: Final = "journal.sqlite"
LOCK_NAME: Final = "journal.lock"
SCHEMA_VERSION: Final = 2
"""Version 1 had neither failures of a model, nor stages that were reached, nor inherited steps; it is read as it is."""

Stage: TypeAlias = Literal["retrieval", "analysis", "synthesis"]
PLACES: Final[Mapping[Stage, str]] = {"retrieval": "coordinator", "analysis": "analysis", "synthesis": "synthesis"}
"""The stages of a run in their order, each with the first part of its steps' keys."""

_ROOTS: Final = list(PLACES.values())
_INHERITED: Final = ""
"""Stands in place of a digest beside what another run asked."""

_TABLES: Final = (
    "CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE steps (
        key TEXT PRIMARY KEY, request TEXT NOT NULL, output TEXT NOT NULL, at TEXT NOT NULL, worked REAL NOT NULL)""",
    "CREATE TABLE texts (hash TEXT PRIMARY KEY, text TEXT NOT NULL)",
)

_OUT_OF_REACH: Final = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY}
"""What SQLite says of a file that is sound, as far as anybody can tell."""

T = TypeVar("T")


class JournalError(Exception):
    """A run cannot be gone on with; the message says why, in a sentence. Its journal is as it was."""


class DamagedError(JournalError):
    """The journal's file is not what was written, or there is none."""


class NewerError(JournalError):
    """The journal was written by a newer version of caveat."""


class LockedError(JournalError):
    """Another process, which is named, works on the run."""


class DivergedError(JournalError):
    """The run would now ask something else than it did: prompts, sources or caveat itself have changed."""


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How the outputs of one kind of step become JSON, and back.

    `write` is handed a function that keeps a text once, whatever number of steps hold it, and returns its hash; `read`
    one that gives the text back. `read` raises ValueError, KeyError or TypeError for JSON that it did not write. An
    output that `was_cut_short` is not stored. One that `has_failed` is asked for again where that is wanted, and,
    unless a `failure_stands_alone`, in each life of the run for as long as no stored step rests on it.
    """

    write: Callable[[T, Callable[[str], str]], Any]
    read: Callable[[Any, Callable[[str], str]], T]
    was_cut_short: Callable[[T], bool] = lambda _: False
    has_failed: Callable[[T], bool] = lambda _: False
    failure_stands_alone: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step. `request` is a digest; `worked` are the seconds of work until then, in all lives of the run."""

    key: str
    request: str
    output: Any
    at: datetime
    worked: float


@dataclass(frozen=True, slots=True)
class Record:
    """What a journal's file holds. `asked` makes the run the same again; `steps` are in the order of commits."""

    run_id: str
    asked: dict[str, Any]
    start: datetime
    caveat: str
    steps: dict[str, Step]
    texts: dict[str, str]
    report: dict[str, Any] | None = None
    is_over: bool = False
    """True where there is a report, and nothing left to go on with."""
    reached: tuple[Stage, ...] = ()
    """The stages that came to their end."""


@dataclass(slots=True)
class Elapsed:
    """The seconds of work of all lives of a run, as of the last step of one agent: a resumed run reads the same."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        """Return the seconds."""
        return self.seconds

    def reach(self, seconds: float) -> None:
        """Come to so many seconds, if it were less."""
        self.seconds = max(self.seconds, seconds)


@dataclass(frozen=True, slots=True)
class Scope:
    """A place in a run. Without a journal, steps are done and not kept, and its time stands still."""

    journal: Journal | None = None
    path: str = ""
    elapsed: Elapsed = field(default_factory=Elapsed)
    """Moved by the steps of this place, and by those of all places that are `within` it."""

    def within(self, name: str) -> Scope:
        """Return the place of this name in this one, with the same time."""
        return replace(self, path=f"{self.path}/{name}" if self.path else name)

    def apart(self, name: str) -> Scope:
        """Return the place of this name in this one, with a time of its own that begins at this one's.

        For what goes on beside others: its steps do not move this one's time, until the caller lets it `reach` theirs.
        """
        return replace(self.within(name), elapsed=Elapsed(self.elapsed.seconds))

    async def step(
        self,
        name: str,
        request: Any,
        call: Callable[[], Awaitable[T]],
        *,
        form: Form[T],
        recall: Callable[[T, datetime], None] = lambda *_: None,
        retry: Callable[[T], None] = lambda _: None,
    ) -> T:
        """Return the stored output of this step, or that of `call`, which is stored before it is returned.

        `request` is JSON that says what is asked. `recall` hears of a stored output, and when it was stored, before it
        is returned; `retry` of a stored failure that is asked for again. Raises DivergedError where something else was
        asked here, DamagedError where the output cannot be read, and what `call` raises, of which nothing is stored.
        """
        if self.journal is None:
            return await call()
        return await self.journal.step(self.within(name), request, call, form=form, recall=recall, retry=retry)


UNKEPT: Final = Scope()


def rests_on(later: str, key: str) -> bool:
    """Say whether what is asked at the step `later` follows from the output of the step `key`.

    The turns of an agent rest on its earlier ones with all that these called, and a stage on the stages before it. What
    one turn called goes on side by side, and none of it rests on another.
    """
    for place, (one, other) in enumerate(zip(later.split("/"), key.split("/"), strict=False)):
        if one == other:
            continue
        if place == 0:
            return one in _ROOTS and other in _ROOTS and _ROOTS.index(one) > _ROOTS.index(other)
        turns = [re.fullmatch(r"turn ([0-9]+)", part) for part in (one, other)]
        after, before = (int(turn[1]) if turn else 0 for turn in turns)
        return after > before > 0
    return False


def stages_before(stage: Stage) -> tuple[Stage, ...]:
    """Return the stages that come before a stage. Raises ValueError where there is none of this name."""
    stages = list(PLACES)
    return tuple(stages[: stages.index(stage)])


def _stage_of(key: str) -> Stage | None:
    root = key.split("/", 1)[0]
    return next((stage for stage, place in PLACES.items() if place == root), None)


class Journal:
    """The journal of one run: of a new one, of one that goes on (`open`), or of one that has a parent (`branch`)."""

    def __init__(self, run_id: str, folder: Path | None = None) -> None:
        """`folder` is the run's; the file is made when the run begins. Without a folder nothing is kept."""
        self.run_id = run_id
        self.folder = folder
        self.record: Record | None = None
        """What there was when the run went on, or what it inherits from its parent; None of any other new run."""
        self.elapsed = Elapsed()
        """The time of the run's stages, which follow one another."""
        self.start = datetime.fromtimestamp(0, UTC)
        """When the run began, in its first life; known from `begin` on."""
        self._clock: Clock = SystemClock()
        self._on_warning: Callable[[str], None] = lambda _: None
        self._connection: sqlite3.Connection | None = None
        self._lock: FileLock | None = None
        self._asks_failed_again = False
        self._is_branch = False
        self._inherited: tuple[Stage, ...] = ()
        self._reached: tuple[Stage, ...] = ()
        self._has_own_time = True
        self._stored: dict[str, Step] = {}
        self._texts: dict[str, str] = {}
        self._earlier = 0.0
        self._life_began = 0.0
        self._beyond = asyncio.Event()

    @classmethod
    def open(cls, folder: Path, *, ask_failed_again: bool = False) -> Self:
        """Open the journal of a run to go on with it; with `ask_failed_again`, failed searches are asked again.

        Raises LockedError, DamagedError, NewerError, or JournalError where it cannot be written.
        """
        journal = cls(folder.name, folder)
        record = read_record(folder)
        journal._lock = locked(folder)
        try:
            record = read_record(folder)  # again: whoever held the lock until now may have gone on
            journal._connection = _connected(folder / FILE_NAME)
            _set(journal._connection, holder=_this_process())
        except sqlite3.Error as error:
            journal.close()
            raise JournalError(f"the journal of the run {folder.name} cannot be written: {error}") from error
        except JournalError:
            journal.close()
            raise
        journal._take(record)
        journal._asks_failed_again = ask_failed_again
        return journal

    @classmethod
    def branch(cls, parent: Record, folder: Path, stage: Stage) -> Self:
        """Return the journal of a new run that does a stage and all later ones anew; the earlier ones are the parent's.

        Its file is made in `folder` when the run begins. What it inherits is not compared with what would be asked now,
        and its failures are not asked again. Raises JournalError where the parent has not come to the end of a stage
        before.
        """
        inherited = stages_before(stage)
        missing = next((each for each in inherited if each not in parent.reached), None)
        if missing:
            way_out = (
                "it is over, so ask the question anew"
                if parent.is_over
                else f"`caveat resume {parent.run_id}` goes on with it, and then this is possible"
            )
            raise JournalError(
                f"the journal of the run {parent.run_id} does not say that its {missing} came to an end, so the "
                f"{stage} of a new run cannot begin with it; {way_out}"
            )
        journal = cls(folder.name, folder)
        asked = {**parent.asked, "parent": parent.run_id, "from": stage}
        steps = {
            key: replace(step, request=_INHERITED) for key, step in parent.steps.items() if _stage_of(key) in inherited
        }
        journal._is_branch = True
        journal._take(
            replace(parent, run_id=folder.name, asked=asked, steps=steps, reached=inherited, report=None, is_over=False)
        )
        return journal

    def _take(self, record: Record) -> None:
        self.record, self.start = record, record.start
        self._stored, self._texts, self._reached = dict(record.steps), dict(record.texts), record.reached
        own = (step.worked for step in record.steps.values() if step.request != _INHERITED)
        self._earlier = max(own, default=0.0)
        if "from" in record.asked:
            self._inherited = stages_before(record.asked["from"])
            self._has_own_time = not self._inherited

    @property
    def is_kept(self) -> bool:
        """True as long as steps are written to a file."""
        return self._connection is not None

    @property
    def earlier(self) -> float:
        """The seconds of work of all earlier lives of the run."""
        return self._earlier

    async def gone_beyond(self) -> None:
        """Return once the run does something that is not in the journal: at once where it is new."""
        await self._beyond.wait()

    def scope(self, name: str) -> Scope:
        """Return the place of a stage's agent; the stages share the run's time, since they follow one another."""
        return Scope(self, name, self.elapsed)

    def begin(
        self, asked: Mapping[str, Any], *, clock: Clock, on_warning: Callable[[str], None] = lambda _: None
    ) -> None:
        """Store what makes the run the same again, as JSON; of a run that goes on, compare it.

        A new run that has a parent stores what it inherits, too. Raises DivergedError where a run that goes on is not
        what it was. A file that cannot be made is a warning.
        """
        self._clock, self._on_warning, self._life_began = clock, on_warning, clock.monotonic()
        asked = dict(json.loads(to_json(asked)))
        if self.record is not None and not self._is_branch:
            changed = [name for name, value in asked.items() if self.record.asked.get(name) != value]
            if changed:
                raise DivergedError(
                    f"the run {self.run_id} has diverged: {_listed(changed)} changed since it began. Nothing was "
                    "spent; undo the change, or ask the question anew"
                )
            self._write(_set_version)
            return
        self.start = clock.now()
        if self.record is None:
            self._beyond.set()
        else:
            asked = {**asked, **{name: self.record.asked[name] for name in ("parent", "from")}}
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self.folder)
            self._make(self.folder, asked)
            self._connection = _connected(self.folder / FILE_NAME)
        except (sqlite3.Error, OSError, JournalError) as error:
            self._go_on_without(error)

    def _make(self, folder: Path, asked: Mapping[str, Any]) -> None:
        """Make the file under another name first, so that a kill leaves a whole one or none."""
        if (folder / FILE_NAME).exists():
            raise JournalError(f"there is a run {folder.name} already")
        path = folder / f"{FILE_NAME}.new"
        path.unlink(missing_ok=True)
        began = {"start": self.start.isoformat(), "caveat": version("caveat")}
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file, _transaction(file) as run:
            for table in _TABLES:
                run.execute(table)
            _set_version(run)
            _set(run, asked=asked, began=began, holder=_this_process(), reached=self._reached)
            run.executemany("INSERT INTO texts VALUES (?, ?)", list(self._texts.items()))
            run.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", [_row(s) for s in self._stored.values()])
        path.replace(folder / FILE_NAME)

    def reached(self, stage: Stage) -> None:
        """Store that a stage came to its end by itself, so that another run can begin with it.

        Behind the last stage that a run inherits, its own time begins: `elapsed` is 0 again.
        """
        if not self._has_own_time and stage == self._inherited[-1]:
            self._has_own_time = True
            self.elapsed.seconds = 0.0
        if stage not in self._reached:
            self._reached += (stage,)
            self._write(lambda run: _set(run, reached=self._reached))

    async def step(
        self,
        place: Scope,
        request: Any,
        call: Callable[[], Awaitable[T]],
        *,
        form: Form[T],
        recall: Callable[[T, datetime], None],
        retry: Callable[[T], None],
    ) -> T:
        """Do what `Scope.step` says, under the key that is the path of `place`, and move its time."""
        key, elapsed = place.path, place.elapsed
        digest = hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()
        stored = self._stored.get(key)
        if stored is not None:
            if stored.request not in {_INHERITED, digest}:
                raise DivergedError(
                    f"the run {self.run_id} has diverged at {key}: what would be asked now is not what was asked then"
                    f"{self._since_when()}. Nothing finished was asked again; ask the question anew"
                )
            output = self._read(stored, form)
            if not (form.has_failed(output) and self._is_asked_again(stored, form)):
                elapsed.reach(stored.worked)
                recall(output, stored.at)
                return output
            retry(output)
        elif _stage_of(key) in self._inherited:
            raise DivergedError(
                f"the run {self.run_id} has diverged at {key}: this would be asked now, and its parent did not ask it. "
                "Nothing was spent; ask the question anew"
            )
        self._beyond.set()
        output = await call()
        worked = self._earlier + self._clock.monotonic() - self._life_began
        if form.was_cut_short(output):
            elapsed.reach(worked)
        else:
            self._keep(place, digest, output, form, worked)
        return output

    def _is_asked_again(self, failure: Step, form: Form[T]) -> bool:
        if failure.request == _INHERITED:
            return False
        is_bound = form.failure_stands_alone or any(rests_on(each, failure.key) for each in self._stored)
        return self._asks_failed_again or not is_bound

    def _read(self, stored: Step, form: Form[T]) -> T:
        try:
            return form.read(stored.output, self._texts.__getitem__)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(
                f"the journal of the run {self.run_id} is damaged: {stored.key} is unreadable"
            ) from error

    def _keep(self, place: Scope, digest: str, output: T, form: Form[T], worked: float) -> None:
        """Commit one step. Where it takes the place of a failure, what rests on that one is forgotten.

        A failure that came again is the stored one, with its time, so that what rests on it stays as it was.
        """
        texts: dict[str, str] = {}

        def keep(text: str) -> str:
            name = hashlib.sha256(text.encode()).hexdigest()
            texts[name] = text
            return name

        key, elapsed = place.path, place.elapsed
        written = json.loads(to_json(form.write(output, keep)))
        before = self._stored.get(key)
        if before is not None and before.output == written:
            elapsed.reach(before.worked)
            return
        elapsed.reach(worked)
        forgotten: set[str] = set()
        if before is not None:
            forgotten = {each for each in self._stored if rests_on(each, key)}
            self._stored = {name: step for name, step in self._stored.items() if name not in forgotten}
            if stage := _stage_of(key):
                self._reached = tuple(each for each in self._reached if each in stages_before(stage))
        step = Step(key, digest, written, self._clock.now(), elapsed.seconds)
        self.commit(step, {name: text for name, text in texts.items() if name not in self._texts}, forgotten)
        self._texts |= texts

    def commit(self, step: Step, texts: Mapping[str, str], forgotten: Collection[str] = ()) -> None:
        """Write a step, and the texts that are not stored yet, in one transaction. A disk that fails is a warning.

        A run in which steps are `forgotten` has something left to go on with.
        """

        def write(run: sqlite3.Connection) -> None:
            run.executemany("DELETE FROM steps WHERE key=?", [(key,) for key in forgotten])
            run.executemany("INSERT OR IGNORE INTO texts VALUES (?, ?)", list(texts.items()))
            run.execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?)", _row(step))
            _set(run, reached=self._reached, **({"is_over": False} if forgotten else {}))

        self._write(write)

    def finish(self, report: Mapping[str, Any], *, is_over: bool) -> None:
        """Store the report, as JSON; `is_over` where there is nothing left to go on with."""
        self._write(lambda run: _set(run, report=report, is_over=is_over))

    def _write(self, write: Callable[[sqlite3.Connection], None]) -> None:
        if self._connection is None:
            return
        try:
            with _transaction(self._connection) as run:
                write(run)
        except sqlite3.Error as error:
            self._go_on_without(error)

    def _go_on_without(self, error: Exception) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._on_warning(
            f"the run's journal cannot be written ({error}): the run goes on, and what it does from here on is lost if "
            "it is killed"
        )

    def _since_when(self) -> str:
        then, now = self.record.caveat if self.record else "", version("caveat")
        return f" (by caveat {then}; this is {now})" if then != now else ""

    def close(self) -> None:
        """Close the file and let others have it. Closing twice does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def read_record(folder: Path) -> Record:
    """Read a run's journal without changing it. Raises DamagedError or NewerError."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise DamagedError(f"the run {folder.name} has no journal")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("BEGIN")  # all that follows is of one moment, whoever is writing
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found > SCHEMA_VERSION:
                raise NewerError(f"the journal of the run {folder.name} was written by a newer caveat; use that one")
            problem = connection.execute("PRAGMA quick_check").fetchone()[0]
            if problem != "ok" or found == 0:
                raise DamagedError(f"the journal of the run {folder.name} is damaged; it was left as it is")
            about = {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM run")}
            texts = dict(connection.execute("SELECT hash, text FROM texts"))
            rows = connection.execute("SELECT key, request, output, at, worked FROM steps ORDER BY rowid").fetchall()
        steps = {
            key: Step(key, request, json.loads(output), datetime.fromisoformat(at), float(worked))
            for key, request, output, at, worked in rows
        }
        start = datetime.fromisoformat(about["began"]["start"])
        stages_before(about["asked"].get("from", "retrieval"))
        report = about.get("report")
        return Record(
            folder.name,
            dict(about["asked"]),
            start,
            str(about["began"]["caveat"]),
            steps,
            texts,
            dict(report) if report is not None else None,
            is_over=bool(about.get("is_over")),
            reached=tuple(stage for stage in PLACES if stage in about.get("reached", ())),
        )
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
        if getattr(error, "sqlite_errorcode", None) in _OUT_OF_REACH:
            raise JournalError(f"the journal of the run {folder.name} cannot be read: {error}") from error
        raise DamagedError(f"the journal of the run {folder.name} is damaged; it was left as it is") from error


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    with connection:  # commits, or takes all back
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def _set_version(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _row(step: Step) -> tuple[str, str, str, str, float]:
    return step.key, step.request, to_json(step.output), step.at.isoformat(), step.worked


def _set(connection: sqlite3.Connection, **values: Any) -> None:
    rows = [(name, to_json(value)) for name, value in values.items()]
    connection.executemany("INSERT OR REPLACE INTO run VALUES (?, ?)", rows)


def locked(folder: Path) -> FileLock:
    """Take the run's lock. Raises LockedError with who holds it, or JournalError."""
    lock = FileLock(folder / LOCK_NAME, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise LockedError(
            f"the run {folder.name} is being worked on by {_holder(folder)}; wait for it or end it"
        ) from None
    except OSError as error:
        raise JournalError(f"the run {folder.name} cannot be locked: {error.strerror or error}") from error
    return lock


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": platform.node()}


def _holder(folder: Path) -> str:
    try:
        uri = f"{(folder / FILE_NAME).absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            row = connection.execute("SELECT value FROM run WHERE name='holder'").fetchone()
        holder = json.loads(row[0])
        return f"process {holder['pid']} on {holder['host']}"
    except (sqlite3.Error, ValueError, KeyError, TypeError):
        return "another process"


_IN_WORDS: Final = {
    "question": "the question",
    "sources": "the sources",
    "docs": "the folder of documents",
    "model": "the model",
    "offline": "whether a language model is asked",
    "limits": "the limits",
    "inject": "the injected faults",
    "prompts": "the prompts",
    "tools": "the sources or what they say of themselves",
    "own": "the program's own sources, tools or model",
}


def _listed(names: list[str]) -> str:
    words = [_IN_WORDS.get(name, name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
