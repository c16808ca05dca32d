"""The index of a folder: which files were read, from what content, and their passages, in one SQLite file with FTS5.

Answers depend on the documents alone: not on the order in which they came into the index, nor on what was in it before.
"""

from __future__ import annotations

import heapq
import math
import os
import sqlite3
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from caveat_tools.folder import File, shown
from caveat_tools.formats import Row

VERSION: Final = 2
"""Of the tables and of what is read from documents: with another one, an index is built anew."""

_CANDIDATES: Final = 200
_MAX_ROW: Final = 1 << 48
_ENOUGH_OF_QUERY: Final = 0.6
_ELSEWHERE: Final = 0.5  # what a term counts that stands in another passage of the same document
_SENTENCE_TERMS: Final = 12  # a passage with fewer is a heading, a menu or a list of links

# What the values of a damaged file cause: of another type, None, no UTF-8, out of every range.
_FROM_VALUES: Final = (TypeError, ValueError, AttributeError, IndexError, OverflowError)

Status = Literal["read", "unread", "empty", "report", "other"]
"""`unread` could hold evidence, also if `read` in part; `empty` is text without a word; `report` is one of caveat's
own; `other` is no text at all.
"""

# The ascii tokenizer parts at ASCII punctuation and spaces alone, so it takes terms of every script as they are.
# Paths are bytes, and times are decimal text: both can be what SQLite's own types do not hold.
_TABLES: Final = (
    """CREATE TABLE file (path BLOB PRIMARY KEY, size INTEGER, mtime_ns TEXT, ctime_ns TEXT, inode TEXT,
        checked_ns TEXT, digest BLOB, status TEXT, reason TEXT, guess TEXT, first INTEGER, last INTEGER)""",
    """CREATE VIRTUAL TABLE passage USING fts5
        (heading, body, place UNINDEXED, title UNINDEXED, text UNINDEXED, tokenize = 'ascii')""",
    "INSERT INTO passage(passage, rank) VALUES ('rank', 'bm25(2.0, 1.0)')",
)


class Known(NamedTuple):
    """What the index knows of a file: when it was last looked at (`checked_ns`), and the digest of its content."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    checked_ns: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Remark:
    """A file about which there is more to say than that it was read."""

    path: str
    status: Status
    reason: str | None
    guess: str | None


class Hit(NamedTuple):
    """A passage that was found: the path of its file, its place in it, its title and its text."""

    path: str
    place: str
    title: str
    text: str


@contextmanager
def _damage_is_named(*causes: type[Exception]) -> Iterator[None]:
    """Turn what a damaged file can cause into sqlite3.DatabaseError.

    That is UnicodeDecodeError, which also a message of SQLite causes that holds a damaged name, and `causes`.
    """
    caught: tuple[type[Exception], ...] = (UnicodeDecodeError, *causes)
    try:
        yield
    except caught as error:
        raise sqlite3.DatabaseError("it is damaged") from error


class Index:
    """One index. Used from one thread at a time, but for `search` and `close`.

    Every method raises sqlite3.Error where the file cannot be used, also where what it holds makes no sense.
    """

    def __init__(self, path: Path | None) -> None:
        """Open or create; with None, in a nameless file that SQLite keeps in memory as far as it is small.

        Raises sqlite3.Error where the file cannot be used or was written by another version.
        """
        self.documents = 0
        """How many files have at least one passage. Set by `freeze`."""
        self.passages = 0
        self._firsts: list[int] = []  # first and last row of each document, by first row, and its number by path
        self._lasts: list[int] = []
        self._numbers: list[int] = []
        self._paths: list[str] = []
        self._lock = threading.Lock()
        self._path = path
        self._is_damaged = False
        self._connection = sqlite3.connect(path or "", timeout=10, isolation_level=None, check_same_thread=False)
        self._connection.text_factory = _text
        try:
            with _damage_is_named(*_FROM_VALUES):
                self._prepare(path)
                self._next = self._after_the_last()
        except sqlite3.Error:
            self._connection.close()
            raise

    def _prepare(self, path: Path | None) -> None:
        run = self._connection.execute
        (version,) = run("PRAGMA user_version").fetchone()
        is_new = version == 0 and not run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not is_new and version != VERSION:
            raise sqlite3.DatabaseError("the index was written by another version of caveat")
        if path is not None:
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = NORMAL")
        if is_new:
            run("BEGIN")
            for table in _TABLES:
                run(table)
            run(f"PRAGMA user_version = {VERSION}")
            run("COMMIT")
        run("SELECT rowid FROM passage LIMIT 1").fetchone()  # damage is better met now than in a search

    def _after_the_last(self) -> int:
        (last,) = self._connection.execute("SELECT max(last) FROM file").fetchone()
        if last is not None and not (isinstance(last, int) and 0 <= last < _MAX_ROW):
            raise sqlite3.DatabaseError("it is damaged")
        return 1 + (last or 0)

    # ---- what is in it

    @_damage_is_named(*_FROM_VALUES)
    def known(self) -> dict[str, Known]:
        """Return what is known of each file, by path."""
        rows = self._connection.execute("SELECT path, size, mtime_ns, ctime_ns, inode, checked_ns, digest FROM file")
        return {
            os.fsdecode(path): Known(size, int(mtime), int(ctime), int(inode), int(seen), digest)
            for path, size, mtime, ctime, inode, seen, digest in rows
        }

    @_damage_is_named()
    def begin(self) -> None:
        """Begin a batch of changes."""
        self._connection.execute("BEGIN IMMEDIATE")

    @_damage_is_named()
    def commit(self) -> None:
        """Keep the changes since `begin`."""
        self._connection.execute("COMMIT")

    @_damage_is_named()
    def add(self, rows: Sequence[Row]) -> None:
        """Add passages of the file at hand, which `keep` or `drop` then closes."""
        numbered = [
            (number, row.heading, row.body, row.place, row.title, row.text)
            for number, row in enumerate(rows, start=self._next)
        ]
        self._connection.executemany(
            "INSERT INTO passage(rowid, heading, body, place, title, text) VALUES (?, ?, ?, ?, ?, ?)", numbered
        )
        self._next += len(rows)

    @property
    def position(self) -> int:
        """The number of the next passage."""
        return self._next

    @_damage_is_named()
    def drop_since(self, position: int) -> None:
        """Take back the passages from `position` on."""
        self._connection.execute("DELETE FROM passage WHERE rowid >= ?", (position,))
        self._next = position

    @_damage_is_named()
    def keep(
        self,
        file: File,
        checked_ns: int,
        digest: bytes,
        status: Status,
        reason: str | None,
        guess: str | None,
        since: int,
    ) -> None:
        """Enter a file whose passages are those from `since` on."""
        self._connection.execute(
            "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(os.fsencode(file.path), file.size, str(file.mtime_ns), str(file.ctime_ns), str(file.inode)),
                *(str(checked_ns), digest),
                *(status, reason, guess, since, self._next - 1),
            ),
        )

    @_damage_is_named()
    def keep_unchanged(self, file: File, checked_ns: int) -> None:
        """Enter that a file was looked at again and has the content that is known."""
        self._connection.execute(
            "UPDATE file SET mtime_ns = ?, ctime_ns = ?, inode = ?, checked_ns = ? WHERE path = ?",
            (str(file.mtime_ns), str(file.ctime_ns), str(file.inode), str(checked_ns), os.fsencode(file.path)),
        )

    @_damage_is_named()
    def remove(self, paths: Iterable[str]) -> None:
        """Forget files and their passages."""
        for path in map(os.fsencode, paths):
            rows = self._connection.execute("SELECT first, last FROM file WHERE path = ?", (path,)).fetchone()
            if rows is not None:
                self._connection.execute("DELETE FROM passage WHERE rowid BETWEEN ? AND ?", rows)
                self._connection.execute("DELETE FROM file WHERE path = ?", (path,))

    @_damage_is_named(*_FROM_VALUES)
    def remarks(self) -> list[Remark]:
        """Return the files that were not read, or not as sound text, by path."""
        rows = self._connection.execute(
            "SELECT path, status, reason, guess FROM file WHERE status != 'read' OR guess IS NOT NULL ORDER BY path"
        )
        return [
            Remark(os.fsdecode(path), status, reason and _checked(reason), guess and _checked(guess))
            for path, status, reason, guess in rows
        ]

    @_damage_is_named(*_FROM_VALUES)
    def freeze(self) -> None:
        """Make ready for `search`. What other processes change from now on is not seen."""
        self._connection.execute("BEGIN")
        files = self._connection.execute("SELECT first, last, path FROM file ORDER BY path")
        rows = [(first, last, path) for first, last, path in files if last >= first]
        self._paths = [shown(os.fsdecode(path)) for _, _, path in rows]
        by_row = sorted((first, last, number) for number, (first, last, _) in enumerate(rows))
        self._firsts = [first for first, _, _ in by_row]
        self._lasts = [last for _, last, _ in by_row]
        self._numbers = [number for _, _, number in by_row]
        self.documents = len(rows)
        self.passages = sum(last - first + 1 for first, last, _ in by_row)

    def close(self) -> None:
        """Close the file, after the query at hand; one that could not be searched is deleted, to be built anew.

        Closing twice does nothing.
        """
        with self._lock:
            self._connection.close()
            if self._is_damaged and self._path is not None:
                delete_index(self._path)

    # ---- search

    def search(self, wanted: Sequence[str], names: set[str], limit: int, offset: int) -> tuple[list[Hit], int]:
        """Return the passages that hold enough of the terms, best first, from `offset` on, and how many there are.

        Raises sqlite3.Error.
        """
        with self._lock:
            try:
                with _damage_is_named(*_FROM_VALUES):
                    ranked = self._ranked(wanted, names)
                    return [self._hit(row) for row in ranked[offset : offset + limit]], len(ranked)
            except sqlite3.ProgrammingError:  # it is closed
                raise
            except sqlite3.DatabaseError:
                self._is_damaged = True
                raise

    def _hit(self, row: int) -> Hit:
        select = "SELECT place, title, text FROM passage WHERE rowid = ?"
        place, title, text = self._connection.execute(select, (row,)).fetchone()
        return Hit(self._paths[self._numbers[self._document(row)]], _checked(place), _checked(title), _checked(text))

    def _ranked(self, wanted: Sequence[str], names: set[str]) -> list[int]:
        """Return the rows that hold enough of the query by weight, best first; ties in the order of the paths.

        What stands elsewhere in the same document counts half. Passages too short for a sentence come last. Where none
        holds enough, those have to do that hold every name and half of the words: a passage too many does less harm
        than the word that there is none.
        """
        # A term is letters, digits and marks only: inside quotes no term can be FTS5 syntax.
        match = {term: f'"{term}"' for term in wanted}
        select = "SELECT rowid FROM passage WHERE passage MATCH ? ORDER BY rowid"
        holding = {term: [row for (row,) in self._connection.execute(select, (match[term],))] for term in wanted}
        weights = {term: _weight(len(rows), self.passages) for term, rows in holding.items()}
        enough = _ENOUGH_OF_QUERY * math.fsum(weights.values())
        long: list[int] = []
        short: list[int] = []
        weak: list[int] = []
        for row in self._candidates(" OR ".join(match.values())):
            document = self._document(row)
            held = math.fsum(
                weights[term] * (1.0 if _reaches(rows, row, row) else _ELSEWHERE)
                for term, rows in holding.items()
                if _reaches(rows, self._firsts[document], self._lasts[document])
            )
            if held >= enough:
                (body,) = self._connection.execute("SELECT body FROM passage WHERE rowid = ?", (row,)).fetchone()
                (short if len(body.split()) < _SENTENCE_TERMS else long).append(row)
            else:
                there = {term for term, rows in holding.items() if _reaches(rows, row, row)}
                if names <= there and len(there) >= max(2, len(wanted) / 2):
                    weak.append(row)
        return long + short or weak

    def _candidates(self, match: str) -> list[int]:
        """Return the best rows by FTS5's rank, which is the same for the same documents whatever their history."""
        rows = self._connection.execute("SELECT rank, rowid FROM passage WHERE passage MATCH ?", (match,)).fetchall()
        if len(rows) > _CANDIDATES:
            worst = heapq.nsmallest(_CANDIDATES, [rank for rank, _ in rows])[-1]
            rows = [row for row in rows if row[0] <= worst]
        rows.sort(key=lambda row: (row[0], self._numbers[self._document(row[1])], row[1]))
        return [row for _, row in rows[:_CANDIDATES]]

    def _document(self, row: int) -> int:
        """Return which document, by first row, a row belongs to. Raises IndexError for one that belongs to none."""
        document = bisect_right(self._firsts, row) - 1
        if document < 0 or row > self._lasts[document]:
            raise IndexError
        return document


def delete_index(path: Path) -> None:
    """Delete an index. Processes that have it open keep what they see. Raises OSError."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _text(data: bytes) -> str:
    """Decode what is stored as text. (The error of sqlite3 itself would show the text in its message.)"""
    return data.decode()


def _checked(value: str) -> str:
    """Return what should be text. Raises TypeError where the file holds something else in its place."""
    if not isinstance(value, str):
        raise TypeError
    return value


def _reaches(rows: list[int], first: int, last: int) -> bool:
    """Say whether one of the sorted rows lies between two rows, both included."""
    at = bisect_left(rows, first)
    return at < len(rows) and rows[at] <= last


def _weight(holding: int, of: int) -> float:
    """Return 1 plus the idf of a term that `holding` of `of` passages hold: largest for none.

    In a small folder the idf alone would let one word that it lacks outweigh all the others.
    """
    return 1 + math.log(1 + (of - holding + 0.5) / (holding + 0.5))
