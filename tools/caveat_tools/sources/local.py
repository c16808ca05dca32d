"""The user's own documents: a folder of Markdown, text and HTML, searched with SQLite FTS5 inside the process.

Documents are read and cut into passages by `caveat_tools.documents`. A query finds passages that hold most of it,
weighed by how rare its words are in the folder, so that a question about something the folder does not mention is
answered with "no match" and not with whatever shares a common word with it. Nothing depends on the place of the folder,
the time stamps or the order in which the file system lists its files.
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import stat
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from caveat_tools.documents import decode, read_html, read_text
from caveat_tools.plain_text import one_line
from caveat_tools.source import Ask, Page, Passage, SourceError
from caveat_tools.words import content_terms, terms

MARKDOWN: Final = frozenset({".md", ".markdown", ".mdown"})
TEXT: Final = frozenset({".txt", ".text"})
HTML: Final = frozenset({".html", ".htm", ".xhtml"})
MAX_FILE_BYTES: Final = 20_000_000

_CANDIDATES: Final = 200
_ENOUGH_OF_QUERY: Final = 0.6
_ELSEWHERE: Final = 0.5  # what a term counts that stands in another passage of the same document
_SENTENCE_TERMS: Final = 12  # a passage with fewer is a heading, a menu or a list of links
_MAX_PATH_CHARS: Final = 400  # as shown: with its line it has to fit an address
_MAX_KIND_CHARS: Final = 20
_KINDS_NAMED: Final = 10


class LocalFolderError(ValueError):
    """The folder cannot be searched. The message is one sentence for the user: what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder that was not read: its path inside the folder, on one line, and a clause why.

    `may_hold_evidence` is False for what is left out on purpose: links, pipes and the like, and files without any text.
    """

    path: str
    reason: str
    may_hold_evidence: bool = field(default=True, kw_only=True)


class LocalSource:
    """A folder of documents as a `Source`. Made by `LocalSource.open`; give it back with `aclose`."""

    name = "local"
    accepts_dates = False
    in_process = True

    def __init__(self, folder: Path) -> None:
        """Make an empty index; `open` fills it."""
        self.documents = 0
        """How many files have at least one passage in the index."""
        self.passages = 0
        self.left_out: tuple[LeftOut, ...] = ()
        """What could not be read, by path."""
        self.guessed: dict[str, str] = {}
        """The encoding of each file that is not sound UTF-8 or marked UTF-16, by path: a guess, and it can be wrong."""
        self.other_kinds: dict[str, int] = {}
        """How many files are of a kind that is not read, by lower-case suffix ("" for files without one)."""
        self._folder = folder
        self._last_rows: list[int] = []  # of each document; its passages follow each other
        self._lock = threading.Lock()
        self._index = _empty_index()

    @classmethod
    async def open(
        cls, folder: Path, *, on_progress: Callable[[int, int], None] = lambda _done, _of: None
    ) -> LocalSource:
        """Read the folder and return it, ready to be asked.

        `on_progress` is called on the event loop with the files done and the files in all, after each file. The work
        is done in threads; a cancelled task stops after the file at hand. Raises LocalFolderError.
        """
        listing = await asyncio.to_thread(_list, folder)
        async with AsyncExitStack() as undo:
            source = cls(folder)
            undo.push_async_callback(source.aclose)
            left_out = list(listing.left_out)
            for done, path in enumerate(listing.documents, start=1):
                unread = await asyncio.to_thread(source._add, path)
                if unread:
                    left_out.append(unread)
                on_progress(done, len(listing.documents))
            source.left_out = tuple(sorted(left_out, key=lambda each: each.path))
            source.other_kinds = listing.other_kinds
            if not source.documents:
                raise LocalFolderError(_nothing_in(folder, source))
            await asyncio.to_thread(source._finish)
            undo.pop_all()
        return source

    @property
    def place(self) -> str:
        r"""The folder, as an absolute path; bytes of it that are not UTF-8 are written as `\xNN`."""
        return os.fsencode(self._folder.resolve()).decode("utf-8", "backslashreplace")

    @property
    def description(self) -> str:
        """One sentence for the model: what is in it, and how a query should look."""
        number = "one document" if self.documents == 1 else f"{self.documents} documents"
        return f"The user's own folder of {number}: send a few key words, in the language of the documents."

    async def page(self, ask: Ask, cursor: str | None) -> Page:
        """Return the passages that hold most of the query, best first; `cursor` is the number of those before.

        `total` counts the passages that hold enough of the query, among the 200 best ranked.
        Raises SourceError: `invalid_query` for a query without a word, `unavailable` when the index cannot be read.
        """
        wanted = content_terms(ask.query)
        capitals = " ".join(word for word in ask.query.split() if word[:1].isupper() or any(map(str.isdecimal, word)))
        names = set(terms(capitals)).intersection(wanted)
        if not wanted:
            raise SourceError("invalid_query", "the query holds no word", retryable=False)
        try:
            return await asyncio.to_thread(self._search, wanted, names, ask.limit, int(cursor or 0))
        except sqlite3.DatabaseError as error:
            raise SourceError("unavailable", f"the index cannot be read: {error}", retryable=True) from error

    async def aclose(self) -> None:
        """Close the index, after the file or query at hand. Closing twice is fine."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            self._index.close()

    def _finish(self) -> None:
        with self._lock:
            self._index.execute("INSERT INTO passage(passage) VALUES ('optimize')")
            self._index.execute("COMMIT")

    def _add(self, path: str) -> LeftOut | None:
        """Index one file, or return that and why it is left out."""
        shown = _shown(path)
        read = _text_of(self._folder / path, shown)
        if isinstance(read, LeftOut):
            return read
        text, guess = read
        suffix = Path(path).suffix.lower()
        document = read_html(text) if suffix in HTML else read_text(text, headings=suffix in MARKDOWN)
        if guess:
            self.guessed[shown] = guess
        rows = [
            (" ".join(terms(title)), body, shown, line, title, passage)
            for title, line, passage in document.passages(untitled=Path(shown).stem)
            if (body := " ".join(terms(passage)))
        ]
        if not rows:
            return LeftOut(shown, "it holds no text", may_hold_evidence=False)
        with self._lock:
            self._index.executemany("INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?)", rows)
        self.documents += 1
        self.passages += len(rows)
        self._last_rows.append(self.passages)
        return None

    def _search(self, wanted: list[str], names: set[str], limit: int, offset: int) -> Page:
        with self._lock:
            ranked = self._ranked(wanted, names)
            shown = ranked[offset : offset + limit]
            rows = [
                self._index.execute("SELECT title, path, line, text FROM passage WHERE rowid = ?", (row,)).fetchone()
                for row in shown
            ]
        passages = tuple(Passage(title=title, url=f"{path}:{line}", text=text) for title, path, line, text in rows)
        end = offset + len(shown)
        return Page(passages, total=len(ranked), next_cursor=str(end) if end < len(ranked) else None)

    def _ranked(self, wanted: list[str], names: set[str]) -> list[int]:
        """Return the rows that hold enough of the query by weight, best first; ties in the order of the files.

        What stands elsewhere in the same document counts half. Passages too short for a sentence come last. Where none
        holds enough, those have to do that hold every name and half of the words: a passage too many does less harm
        than the word that there is none.
        """
        # A term is letters, digits and marks only: inside quotes no term can be FTS5 syntax.
        match = {term: f'"{term}"' for term in wanted}
        select = "SELECT rowid FROM passage WHERE passage MATCH ? ORDER BY rowid"
        holding = {term: [row for (row,) in self._index.execute(select, (match[term],))] for term in wanted}
        weights = {term: _weight(len(rows), self.passages) for term, rows in holding.items()}
        enough = _ENOUGH_OF_QUERY * math.fsum(weights.values())
        candidates = self._index.execute(
            "SELECT rowid, body FROM passage WHERE passage MATCH ? ORDER BY rank, rowid LIMIT ?",
            (" OR ".join(match.values()), _CANDIDATES),
        ).fetchall()
        long: list[int] = []
        short: list[int] = []
        weak: list[int] = []
        for row, body in candidates:
            first, last = self._document(row)
            held = math.fsum(
                weights[term] * (1.0 if _reaches(rows, row, row) else _ELSEWHERE)
                for term, rows in holding.items()
                if _reaches(rows, first, last)
            )
            if held >= enough:
                (short if len(body.split()) < _SENTENCE_TERMS else long).append(row)
            else:
                there = {term for term, rows in holding.items() if _reaches(rows, row, row)}
                if names <= there and len(there) >= max(2, len(wanted) / 2):
                    weak.append(row)
        return long + short or weak

    def _document(self, row: int) -> tuple[int, int]:
        """Return the first and the last row of the document that a row belongs to."""
        number = bisect_left(self._last_rows, row)
        return (self._last_rows[number - 1] + 1 if number else 1), self._last_rows[number]


def _reaches(rows: list[int], first: int, last: int) -> bool:
    """Say whether one of the sorted rows lies between two rows, both included."""
    at = bisect_left(rows, first)
    return at < len(rows) and rows[at] <= last


def _weight(holding: int, of: int) -> float:
    """Return 1 plus the idf of a term that `holding` of `of` passages hold: largest for none.

    In a small folder the idf alone would let one word that it lacks outweigh all the others.
    """
    return 1 + math.log(1 + (of - holding + 0.5) / (holding + 0.5))


def _empty_index() -> sqlite3.Connection:
    """Return an in-memory index within an open transaction. `heading` and `body` are terms, parted by spaces."""
    index = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    # The ascii tokenizer parts at ASCII punctuation and spaces alone, so it takes terms of every script as they are.
    index.execute(
        "CREATE VIRTUAL TABLE passage USING fts5"
        "(heading, body, path UNINDEXED, line UNINDEXED, title UNINDEXED, text UNINDEXED, tokenize = 'ascii')"
    )
    index.execute("INSERT INTO passage(passage, rank) VALUES ('rank', 'bm25(2.0, 1.0)')")
    index.execute("BEGIN")
    return index


# ---- which files


@dataclass(frozen=True, slots=True)
class _Listing:
    documents: list[str]
    left_out: list[LeftOut]
    other_kinds: dict[str, int]


def _list(folder: Path) -> _Listing:
    """List the files of a folder by relative POSIX path, without hidden ones; links to folders are not followed."""
    named = _shown(str(folder))
    try:
        os.scandir(folder).close()
    except FileNotFoundError as error:
        raise LocalFolderError(f"{named} does not exist: name a folder of Markdown, text or HTML files.") from error
    except NotADirectoryError as error:
        raise LocalFolderError(f"{named} is a file: name the folder that it is in.") from error
    except OSError as error:
        raise LocalFolderError(f"{named} cannot be opened ({error.strerror}): check its permissions.") from error
    documents: list[str] = []
    left_out: list[LeftOut] = []
    others: Counter[str] = Counter()
    waiting = [""]  # not os.walk, which calls itself for each level and so ends in a RecursionError before Python 3.12
    while waiting:
        parent = waiting.pop()
        try:
            entries = _entries(folder / parent)
        except OSError as error:
            left_out.append(LeftOut(_shown(parent), f"it cannot be opened: {error.strerror}"))
            continue
        for name, is_folder, is_link in entries:
            path = f"{parent}/{name}" if parent else name
            suffix = Path(name).suffix.lower()
            if is_folder and is_link:
                left_out.append(LeftOut(_shown(path), "it is a link to a folder", may_hold_evidence=False))
            elif is_folder:
                waiting.append(path)
            elif suffix in MARKDOWN | TEXT | HTML:
                documents.append(path)
            else:
                others[one_line(suffix, _MAX_KIND_CHARS)] += 1
    return _Listing(sorted(documents), left_out, dict(sorted(others.items())))


def _entries(folder: Path) -> list[tuple[str, bool, bool]]:
    """Return what a folder holds but for hidden names: each name, whether it is (a link to) a folder, and a link."""
    with os.scandir(folder) as entries:
        return [
            (
                entry.name,
                # for a link that leads in a circle, entry.is_dir() would raise
                os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir(follow_symlinks=False),  # noqa: PTH112
                entry.is_symlink(),
            )
            for entry in entries
            if not entry.name.startswith(".")
        ]


def _nothing_in(folder: Path, source: LocalSource) -> str:
    """Return the sentence for a folder without a single passage."""
    named = _shown(str(folder))
    if source.left_out:
        first = source.left_out[0]
        return f"None of the documents in {named} could be read (the first, {first.path}: {first.reason})."
    kinds = Counter(source.other_kinds).most_common(_KINDS_NAMED)
    others = ", ".join(f"{number} {suffix or 'without a suffix'}" for suffix, number in kinds)
    seen = f" (only files of other kinds: {others})" if others else ""
    return f"{named} holds no Markdown, text or HTML file{seen}: name a folder that does."


def _shown(path: str) -> str:
    """Return a path as it is shown: on one line, without controls; bytes that are not UTF-8 become U+FFFD.

    One that is too long loses its beginning.
    """
    line = one_line(path, len(path) + 1)
    return (line if len(line) <= _MAX_PATH_CHARS else "…" + line[1 - _MAX_PATH_CHARS :]) or "?"


def _text_of(path: Path, shown: str) -> tuple[str, str | None] | LeftOut:
    """Return the text of a file with line feeds only and its encoding if guessed, or why it is left out."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return LeftOut(shown, "it is a link or not a regular file", may_hold_evidence=False)
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return LeftOut(shown, f"it cannot be opened: {error.strerror}")
    if len(data) > MAX_FILE_BYTES:
        return LeftOut(shown, f"it is larger than {MAX_FILE_BYTES // 1_000_000} MB")
    return decode(data) or LeftOut(shown, "it is not text")
