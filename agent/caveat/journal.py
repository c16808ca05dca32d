"""The journal: every finished step of a run, on disk, so that nothing finished is paid for twice.

    step    stored under this key? its output : do it, commit its output, return it

A key is the path of a scope and the step's own name, such as `coordinator/turn 3/search 2/outcome`. Both follow from
the order in which the model asked, never from the order in which answers came. Beside an output stands a digest of what
was asked; where a resumed run asks something else, it has diverged and ends. Exceptions are never stored.

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
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

import msgspec
from filelock import FileLock, Timeout

from caveat_tools.clock import Clock, SystemClock
from caveat_tools.outcome import to_json

FILE_NAME: Final = "journal.sqlite"
LOCK_NAME: Final = "journal.lock"
SCHEMA_VERSION: Final = 1

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
    output that `was_cut_short` is not stored; one that `has_failed` is asked for again where that is wanted.
    """

    write: Callable[[T, Callable[[str], str]], Any]
    read: Callable[[Any, Callable[[str], str]], T]
    was_cut_short: Callable[[T], bool] = lambda _: False
    has_failed: Callable[[T], bool] = lambda _: False


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


@dataclass(frozen=True, slots=True)
class Scope:
    """A place in a run. Without a journal, steps are done and not kept."""

    journal: Journal | None = None
    path: str = ""

    def within(self, name: str) -> Scope:
        """Return the place of this name in this one."""
        return replace(self, path=f"{self.path}/{name}" if self.path else name)

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
        return await self.journal.step(self.within(name).path, request, call, form=form, recall=recall, retry=retry)


UNKEPT: Final = Scope()


class Journal:
    """The journal of one run: a new one, or with `Journal.open` one that goes on."""

    def __init__(self, run_id: str, folder: Path | None = None) -> None:
        """`folder` is the run's; the file is made when the run begins. Without a folder nothing is kept."""
        self.run_id = run_id
        self.folder = folder
        self.record: Record | None = None
        """What stood in the file when it was opened; None of a new run."""
        self.start = datetime.fromtimestamp(0, UTC)
        """When the run began, in its first life; known from `begin` on."""
        self._clock: Clock = SystemClock()
        self._on_warning: Callable[[str], None] = lambda _: None
        self._connection: sqlite3.Connection | None = None
        self._lock: FileLock | None = None
        self._asks_failed_again = False
        self._stored: dict[str, Step] = {}
        self._used: set[str] = set()
        self._texts: dict[str, str] = {}
        self._earlier = 0.0
        self._worked = 0.0
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
        journal.record, journal.start = record, record.start
        journal._stored, journal._texts = dict(record.steps), dict(record.texts)
        journal._earlier = max((step.worked for step in record.steps.values()), default=0.0)
        journal._asks_failed_again = ask_failed_again
        return journal

    @property
    def is_kept(self) -> bool:
        """True as long as steps are written to a file."""
        return self._connection is not None

    @property
    def earlier(self) -> float:
        """The seconds of work of all earlier lives of the run."""
        return self._earlier

    def monotonic(self) -> float:
        """Return the seconds of work of all lives of the run, as of its last step: a resumed run reads the same."""
        return self._worked

    async def gone_beyond(self) -> None:
        """Return once the run does something that is not in the journal: at once where it is new."""
        await self._beyond.wait()

    def scope(self, name: str) -> Scope:
        """Return the place of an agent."""
        return Scope(self, name)

    def begin(
        self, asked: Mapping[str, Any], *, clock: Clock, on_warning: Callable[[str], None] = lambda _: None
    ) -> None:
        """Store what makes the run the same again, as JSON; of a run that goes on, compare it.

        Raises DivergedError where it is not what it was. A file that cannot be made is a warning.
        """
        self._clock, self._on_warning, self._life_began = clock, on_warning, clock.monotonic()
        asked = json.loads(to_json(asked))
        if self.record is not None:
            changed = [name for name, value in asked.items() if self.record.asked.get(name) != value]
            if changed:
                raise DivergedError(
                    f"the run {self.run_id} has diverged: {_listed(changed)} changed since it began. Nothing was "
                    "spent; undo the change, or ask the question anew"
                )
            return
        self.start = clock.now()
        self._beyond.set()
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self.folder)
            self._connection = _connected(self.folder / FILE_NAME)
            with _transaction(self._connection) as run:
                for table in _TABLES:
                    run.execute(table)
                run.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
                began = {"start": self.start.isoformat(), "caveat": version("caveat")}
                _set(run, asked=asked, began=began, holder=_this_process())
        except (sqlite3.Error, OSError, JournalError) as error:
            self._go_on_without(error)

    async def step(
        self,
        key: str,
        request: Any,
        call: Callable[[], Awaitable[T]],
        *,
        form: Form[T],
        recall: Callable[[T, datetime], None],
        retry: Callable[[T], None],
    ) -> T:
        """Do what `Scope.step` says, under the whole key."""
        digest = hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()
        stored = self._stored.get(key)
        if stored is not None:
            if stored.request != digest:
                raise DivergedError(
                    f"the run {self.run_id} has diverged at {key}: what would be asked now is not what was asked then"
                    f"{self._since_when()}. Nothing finished was asked again; ask the question anew"
                )
            output = self._read(stored, form)
            if not (self._asks_failed_again and form.has_failed(output)):
                self._used.add(key)
                self._worked = max(self._worked, stored.worked)
                recall(output, stored.at)
                return output
            retry(output)
        self._beyond.set()
        output = await call()
        worked = self._earlier + self._clock.monotonic() - self._life_began
        if form.was_cut_short(output):
            self._worked = max(self._worked, worked)
        else:
            self._keep(key, digest, output, form, worked)
        return output

    def _read(self, stored: Step, form: Form[T]) -> T:
        try:
            return form.read(stored.output, self._texts.__getitem__)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(
                f"the journal of the run {self.run_id} is damaged: {stored.key} is unreadable"
            ) from error

    def _keep(self, key: str, digest: str, output: T, form: Form[T], worked: float) -> None:
        """Commit one step. Where it takes the place of a failure, what rested on that one is forgotten.

        A failure that came again is the stored one, with its time, so that what rested on it stays as it was.
        """
        texts: dict[str, str] = {}

        def keep(text: str) -> str:
            name = hashlib.sha256(text.encode()).hexdigest()
            texts[name] = text
            return name

        written = json.loads(to_json(form.write(output, keep)))
        before = self._stored.get(key)
        is_same = before is not None and before.output == written
        self._used.add(key)
        self._worked = max(self._worked, before.worked if before is not None and is_same else worked)
        if is_same:
            return
        forgotten: set[str] = set()
        if before is not None:
            turn = key.rsplit("/", 2)[0]
            forgotten = {each for each in self._stored.keys() - self._used if not each.startswith(f"{turn}/")}
            self._stored = {name: step for name, step in self._stored.items() if name not in forgotten}
        step = Step(key, digest, written, self._clock.now(), self._worked)
        self.commit(step, {name: text for name, text in texts.items() if name not in self._texts}, forgotten)
        self._texts |= texts

    def commit(self, step: Step, texts: Mapping[str, str], forgotten: Collection[str] = ()) -> None:
        """Write a step, and the texts that are not stored yet, in one transaction. A disk that fails is a warning."""
        row = (step.key, step.request, to_json(step.output), step.at.isoformat(), step.worked)

        def write(run: sqlite3.Connection) -> None:
            run.executemany("DELETE FROM steps WHERE key=?", [(key,) for key in forgotten])
            run.executemany("INSERT OR IGNORE INTO texts VALUES (?, ?)", list(texts.items()))
            run.execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?)", row)

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
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found > SCHEMA_VERSION:
                raise NewerError(f"the journal of the run {folder.name} was written by a newer caveat; use that one")
            problem = connection.execute("PRAGMA quick_check").fetchone()[0]
            if problem != "ok" or found != SCHEMA_VERSION:
                raise DamagedError(f"the journal of the run {folder.name} is damaged; it was left as it is")
            about = {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM run")}
            texts = dict(connection.execute("SELECT hash, text FROM texts"))
            rows = connection.execute("SELECT key, request, output, at, worked FROM steps ORDER BY rowid").fetchall()
        steps = {
            key: Step(key, request, json.loads(output), datetime.fromisoformat(at), float(worked))
            for key, request, output, at, worked in rows
        }
        start = datetime.fromisoformat(about["began"]["start"])
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
