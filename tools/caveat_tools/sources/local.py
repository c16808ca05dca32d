"""The user's own documents: a folder of Markdown, text and HTML, searched with SQLite FTS5 inside the process.

Documents are cut into passages of 600 to 1 100 characters that know their heading and line. A query finds passages
that hold most of it, weighed by how rare its words are in the folder, so that a question about something the folder
does not mention is answered with "no match" and not with whatever shares a common word with it. Nothing depends on
the place of the folder, the time stamps or the order in which the file system lists its files.
"""

from __future__ import annotations

import asyncio
import html
import math
import os
import re
import sqlite3
import stat
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from caveat_tools.outcome import MAX_PASSAGE_CHARS, clip
from caveat_tools.source import Ask, Page, Passage, SourceError
from caveat_tools.words import content_terms, sentence_spans, terms

MARKDOWN: Final = frozenset({".md", ".markdown", ".mdown"})
TEXT: Final = frozenset({".txt", ".text"})
HTML: Final = frozenset({".html", ".htm", ".xhtml"})
MAX_FILE_BYTES: Final = 20_000_000

_ENOUGH_CHARS: Final = 600
_ROOM_CHARS: Final = 1_100
_LONGEST_HEADING: Final = 120
_CANDIDATES: Final = 200
_ENOUGH_OF_QUERY: Final = 0.5


class LocalFolderError(ValueError):
    """The folder cannot be searched. The message is one sentence for the user: what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder that was not read: its path inside the folder, and a clause why."""

    path: str
    reason: str

    @property
    def may_hold_evidence(self) -> bool:
        """False for what is left out on purpose: links, pipes and the like, and files without any text."""
        return self.reason not in {_A_LINK, _A_LINKED_FOLDER, _NO_TEXT}


_A_LINK: Final = "it is a link or not a regular file"
_A_LINKED_FOLDER: Final = "it is a link to a folder"
_NO_TEXT: Final = "it holds no text"


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
        self.other_kinds: dict[str, int] = {}
        """How many files are of a kind that is not read, by lower-case suffix ("" for files without one)."""
        self._folder = folder
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
                reason = await asyncio.to_thread(source._add, path)
                if reason:
                    left_out.append(LeftOut(_printable(path), reason))
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
        """The folder, as an absolute path."""
        return str(self._folder.resolve())

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
        if not wanted:
            raise SourceError("invalid_query", "the query holds no word", retryable=False)
        try:
            return await asyncio.to_thread(self._search, wanted, ask.limit, int(cursor or 0))
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

    def _add(self, path: str) -> str | None:
        """Index one file; return the reason if it is left out."""
        text, reason = _text_of(self._folder / path)
        if reason:
            return reason
        suffix = Path(path).suffix.lower()
        document = _read_html(text) if suffix in HTML else _read_text(text, headings=suffix in MARKDOWN)
        rows = list(_rows(_printable(path), document))
        if not rows:
            return _NO_TEXT
        with self._lock:
            self._index.executemany("INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?)", rows)
        self.documents += 1
        self.passages += len(rows)
        return None

    def _search(self, wanted: list[str], limit: int, offset: int) -> Page:
        with self._lock:
            ranked = self._ranked(wanted)
            shown = ranked[offset : offset + limit]
            rows = [
                self._index.execute("SELECT title, path, line, text FROM passage WHERE rowid = ?", (row,)).fetchone()
                for row in shown
            ]
        passages = tuple(Passage(title=title, url=f"{path}:{line}", text=text) for title, path, line, text in rows)
        end = offset + len(shown)
        return Page(passages, total=len(ranked), next_cursor=str(end) if end < len(ranked) else None)

    def _ranked(self, wanted: list[str]) -> list[int]:
        """Return the rows that hold enough of the query by weight, best first; ties in the order of the files."""
        counted = "SELECT doc FROM vocabulary WHERE term = ?"
        weights = {
            term: _weight((self._index.execute(counted, (term,)).fetchone() or (0,))[0], self.passages)
            for term in wanted
        }
        enough = _ENOUGH_OF_QUERY * math.fsum(weights.values())
        # A term is letters, digits and marks only: inside quotes no term can be FTS5 syntax.
        candidates = self._index.execute(
            "SELECT rowid FROM passage WHERE passage MATCH ? ORDER BY rank, rowid LIMIT ?",
            (" OR ".join(f'"{term}"' for term in wanted), _CANDIDATES),
        ).fetchall()
        ranked = []
        for (row,) in candidates:
            held = self._index.execute("SELECT heading || ' ' || body FROM passage WHERE rowid = ?", (row,)).fetchone()
            if math.fsum(weights[term] for term in weights.keys() & set(held[0].split())) >= enough:
                ranked.append(row)
        return ranked


def _weight(holding: int, of: int) -> float:
    """Return the idf of a term that `holding` of `of` passages hold: above zero for every count, largest for none."""
    return math.log(1 + (of - holding + 0.5) / (holding + 0.5))


def _empty_index() -> sqlite3.Connection:
    """Return an in-memory index within an open transaction. `heading` and `body` are terms, parted by spaces."""
    index = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    # The ascii tokenizer parts at ASCII punctuation and spaces alone, so it takes terms of every script as they are.
    index.execute(
        "CREATE VIRTUAL TABLE passage USING fts5"
        "(heading, body, path UNINDEXED, line UNINDEXED, title UNINDEXED, text UNINDEXED, tokenize = 'ascii')"
    )
    index.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(passage, row)")
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
    try:
        os.scandir(folder).close()
    except FileNotFoundError as error:
        raise LocalFolderError(f"{folder} does not exist: name a folder of Markdown, text or HTML files.") from error
    except NotADirectoryError as error:
        raise LocalFolderError(f"{folder} is a file: name the folder that it is in.") from error
    except OSError as error:
        raise LocalFolderError(f"{folder} cannot be opened ({error.strerror}): check its permissions.") from error
    documents: list[str] = []
    left_out: list[LeftOut] = []
    others: Counter[str] = Counter()

    def relative(path: Path) -> str:
        return path.relative_to(folder).as_posix()

    def unreadable(error: OSError) -> None:
        left_out.append(LeftOut(_printable(relative(Path(error.filename))), f"it cannot be opened: {error.strerror}"))

    for parent, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [path for name in folders if (path := Path(parent, name)).is_symlink()]
        left_out.extend(LeftOut(_printable(relative(path)), _A_LINKED_FOLDER) for path in links)
        for name in files:
            suffix = Path(name).suffix.lower()
            if name.startswith("."):
                continue
            if suffix in MARKDOWN | TEXT | HTML:
                documents.append(relative(Path(parent, name)))
            else:
                others[suffix] += 1
    return _Listing(sorted(documents), left_out, dict(sorted(others.items())))


def _nothing_in(folder: Path, source: LocalSource) -> str:
    """Return the sentence for a folder without a single passage."""
    if source.left_out:
        first = source.left_out[0]
        return f"None of the documents in {folder} could be read (the first, {first.path}: {first.reason})."
    others = ", ".join(f"{number} {suffix or 'without a suffix'}" for suffix, number in source.other_kinds.items())
    seen = f" (only files of other kinds: {others})" if others else ""
    return f"{folder} holds no Markdown, text or HTML file{seen}: name a folder that does."


def _printable(path: str) -> str:
    """Return a path that can be encoded: bytes of a file name that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


# ---- bytes to text


def _text_of(path: Path) -> tuple[str, str | None]:
    """Return the text of a file with line feeds only, or "" and a clause that says why it is left out."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return "", _A_LINK
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return "", f"it cannot be opened: {error.strerror}"
    if len(data) > MAX_FILE_BYTES:
        return "", f"it is larger than {MAX_FILE_BYTES // 1_000_000} MB"
    text = _decoded(data)
    if text is None or "\0" in text:
        return "", "it is not text"
    return text.replace("\r\n", "\n").replace("\r", "\n"), None


_HIGH_LETTERS: Final = re.compile(rb"[\xa8\xb8\xc0-\xff]+")


def _decoded(data: bytes) -> str | None:
    """Decode a document: by its byte order mark, else as UTF-8, else as Windows-1251 or Windows-1252; None if binary.

    Text that is UTF-8 but for a few broken bytes stays UTF-8, with U+FFFD for those. Of the two Windows code pages,
    1251 (Cyrillic) is taken where at least half of the letters beyond ASCII stand next to another one, as they do in
    Russian words and not in French or German ones. Every other encoding comes out as wrong letters of one of them.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("utf-8-sig", "replace")
    if text.count("\ufffd") * 10 < len(text) - len(text.encode("ascii", "ignore")):
        return text
    runs = [len(run) for run in _HIGH_LETTERS.findall(data)]
    cyrillic = 2 * sum(length for length in runs if length > 1) >= sum(runs) > 0
    return data.decode("cp1251" if cyrillic else "cp1252", "replace")


# ---- text to passages


@dataclass(slots=True)
class _Section:
    """A heading with its path, and the paragraphs below it up to the next heading, each with its 1-based line.

    Joined, the paragraphs of a section are its text, blank lines included.
    """

    headings: tuple[str, ...] = ()
    own: tuple[int, str] | None = None
    paragraphs: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Document:
    title: str | None = None
    sections: list[_Section] = field(default_factory=lambda: [_Section()])
    _above: list[tuple[int, str]] = field(default_factory=list)

    def open_section(self, level: int, heading: str, line: int, verbatim: str) -> None:
        """Begin a section; the first heading of level 1 names a document that has no title yet."""
        while self._above and self._above[-1][0] >= level:
            self._above.pop()
        self._above.append((level, heading))
        self.sections.append(_Section(tuple(each for _, each in self._above), (line, verbatim)))
        if level == 1 and self.title is None:
            self.title = heading


def _rows(path: str, document: _Document) -> Iterator[tuple[str, str, str, int, str, str]]:
    """Yield what the index holds of each passage: terms of the title, terms, path, line, title, text."""
    top = document.title or Path(path).stem
    below = [*document.sections[1:], _Section()]
    for section, following in zip(document.sections, below, strict=True):
        if not section.paragraphs and section.own and following.headings[:-1] != section.headings:
            section.paragraphs.append(section.own)  # a heading with nothing below it is evidence of its own
        title = " › ".join(section.headings if section.headings[:1] == (top,) else (top, *section.headings))
        heading = " ".join(terms(title))
        for line, text in _grouped(section.paragraphs):
            if body := " ".join(terms(text)):
                yield heading, body, path, line, title, text


def _grouped(paragraphs: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join neighbouring paragraphs to passages of about 600 to 1 100 characters, with the line of the first."""
    first, text = 0, ""
    for line, paragraph in paragraphs:
        if text and len(text) + len(paragraph.rstrip()) > _ROOM_CHARS:
            yield first, text.strip()
            text = ""
        if not text:
            first = line
        text += paragraph
        if len(text.rstrip()) >= _ENOUGH_CHARS:
            yield first, text.strip()
            text = ""
    yield first, text.strip()


def _pieces(paragraph: str) -> Iterator[str]:
    """Cut a paragraph that is too long for a passage: after a sentence, else at a space, else anywhere."""
    begin, end = 0, len(paragraph.rstrip())
    stops = [stop for _, stop in sentence_spans(paragraph)] if end > MAX_PASSAGE_CHARS else []
    while end - begin > MAX_PASSAGE_CHARS:
        window = begin + _ROOM_CHARS
        before = bisect_right(stops, window)
        cut = stops[before - 1] if before else begin
        if cut <= begin:
            cut = 1 + max(paragraph.rfind(space, begin, window) for space in " \n")
        if cut <= begin:
            cut = window
        yield paragraph[begin:cut]
        begin = cut
    yield paragraph[begin:]


_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*?)[ \t#]*$")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")


def _read_text(text: str, *, headings: bool) -> _Document:
    """Read plain text, or Markdown if `headings` is set: what starts with # outside a fence opens a section."""
    document = _Document()
    fence = ""
    paragraph: list[str] = []
    began, after_blank = 1, False

    def close() -> None:
        line = began
        for piece in _pieces("".join(paragraph)):
            blank = len(piece) - len(piece.lstrip())
            if piece.strip():
                document.sections[-1].paragraphs.append((line + piece.count("\n", 0, blank), piece))
            line += piece.count("\n")

    for number, line in enumerate(text.split("\n"), start=1):
        heading = _HEADING.match(line) if headings and not fence and len(line) <= _LONGEST_HEADING else None
        blank = not line.strip()
        if heading or (after_blank and not blank):
            close()
            paragraph, began = [], number
        after_blank = blank
        if heading:
            document.open_section(len(heading[1]), heading[2], number, line)
            began = number + 1
            continue
        paragraph.append(line + "\n")
        if headings and (mark := _FENCE.match(line)) and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
    close()
    return document


# ---- HTML

# Not html.parser: on unclosed tags and comments it takes time that grows with the square of the file, 40 s for 400 kB.
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG: Final = re.compile(
    r"""<(?P<close>/?)(?P<name>[a-zA-Z][^\s/<>]*+) (?: =\s*"[^"]*" | =\s*'[^']*' | = | [^<>=]+ )*+ >
        |<[!?/][^<>]*>""",
    re.VERBOSE,
)
_ENDLESS_REFERENCE: Final = re.compile(r"&#\d{10,};?")
_SPACES: Final = re.compile(r"\s+")
_SPACES_BEFORE_BREAK: Final = re.compile(r"[ \t]+\n")

_UNSEEN: Final = frozenset({"script", "style", "template", "svg", "nav", "title"})
_RAW: Final = frozenset({"script", "style"})
_DEEPEST: Final = 32
_BREAKS: Final = {"br": "\n", "li": "\n- ", "tr": "\n", "dt": "\n", "dd": "\n", "option": "\n"}
_HEADINGS: Final = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
_BLOCK: Final = re.compile(
    """address|article|aside|blockquote|body|details|div|dl|fieldset|figcaption|figure|footer|form|head|header|hr|html
    |h[1-6]|main|nav|ol|p|pre|section|summary|table|ul""",
    re.VERBOSE,
)


def _read_html(text: str) -> _Document:
    """Read the visible text of HTML, however malformed: no scripts, styles or navigation.

    Blocks are parted by blank lines, list items start with "- ", cells of a table row are parted by tabs. The line of a
    passage is that on which its first block begins.
    """
    end = text.rfind("-->") + 3  # where no comment ends any more, none is looked for
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text[:end]) + text[end:]
    reader = _HtmlReader(_UNSEEN)
    reader.read(text)
    if reader.unclosed - _RAW:
        reader = _HtmlReader(_RAW)  # rather show navigation than lose all that follows it
        reader.read(text)
    return reader.document


class _HtmlReader:
    """Collects the blocks of one HTML text into a document."""

    def __init__(self, unseen: frozenset[str]) -> None:
        self.document = _Document()
        self.unclosed: set[str] = set()
        self._unseen = unseen
        self._inside: list[str] = []  # the unseen elements that are open
        self._title: list[str] = []
        self._preformatted = False
        self._level = 0  # of the heading that is open
        self._block: list[str] = []
        self._line = 0  # on which the block's first character stands

    def read(self, text: str) -> None:
        line, position = 1, 0
        for tag in _TAG.finditer(text):
            self._data(text[position : tag.start()], line)
            line += text.count("\n", position, tag.end())
            position = tag.end()
            if tag["close"] is not None:
                (self._end if tag["close"] else self._start)(tag["name"].lower())
        self._data(text[position:], line)
        self._end_block()
        self.unclosed = set(self._inside)
        if self._title:
            self.document.title = clip(" ".join("".join(self._title).split()), _LONGEST_HEADING)[0] or None

    def _start(self, name: str) -> None:
        if self._inside and self._inside[-1] in _RAW:
            return
        if not self._inside and _BLOCK.fullmatch(name):
            self._end_block()
            self._level = _HEADINGS.get(name, self._level)
            self._preformatted = name == "pre"
        if name in self._unseen and len(self._inside) < _DEEPEST:
            self._inside.append(name)
        elif not self._inside and name in _BREAKS:
            self._block.append(_BREAKS[name])
        elif not self._inside and name in {"td", "th"} and self._block and not self._block[-1].endswith("\n"):
            self._block.append("\t")

    def _end(self, name: str) -> None:
        if name in self._inside:
            del self._inside[self._inside.index(name) :]
        elif _BLOCK.fullmatch(name) and not self._inside:
            self._end_block()
            self._preformatted = False
            if name in _HEADINGS:
                self._level = 0

    def _data(self, data: str, line: int) -> None:
        if self._inside:
            if self._inside == ["title"]:
                self._title.append(_unescaped(data))
            return
        if not self._line and (visible := data.lstrip()):
            self._line = line + data.count("\n", 0, len(data) - len(visible))
        data = _unescaped(data)
        if not self._preformatted:
            data = _SPACES.sub(" ", data)
            if not self._block or self._block[-1][-1:].isspace():
                data = data.lstrip()
        if data:
            self._block.append(data)

    def _end_block(self) -> None:
        text = _SPACES_BEFORE_BREAK.sub("\n", "".join(self._block)).strip() if self._line else ""
        if text and self._level and len(text) <= _LONGEST_HEADING:
            self.document.open_section(self._level, " ".join(text.split()), self._line, text)
        elif text:
            paragraphs = self.document.sections[-1].paragraphs
            paragraphs.extend((self._line, piece) for piece in _pieces(text + "\n\n") if piece.strip())
        if text:
            self._level = 0
        self._block = []
        self._line = 0


def _unescaped(data: str) -> str:
    """Decode character references; html.unescape alone refuses numbers of thousands of digits with a ValueError."""
    return html.unescape(_ENDLESS_REFERENCE.sub("\ufffd", data)) if "&" in data else data
