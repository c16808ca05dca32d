"""The user's own documents: a folder, searched with SQLite FTS5 inside the process.

Which files count is decided by `caveat_tools.folder`, how they are read by `caveat_tools.formats`, and the index is
`caveat_tools.index`; this module keeps the index up with the folder. A query finds passages that hold most of it,
weighed by how rare its words are in the folder, so that a question about something the folder does not mention is
answered with "no match" and not with whatever shares a common word with it. Nothing depends on the place of the folder,
the time stamps or the order in which the file system lists its files.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from io import BufferedReader
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from caveat_tools.clock import Clock, SystemClock
from caveat_tools.decoding import decode
from caveat_tools.folder import File, LeftOut, Listing, LocalFolderError, list_folder, shown, shown_kind, too_large
from caveat_tools.folder_progress import Progress
from caveat_tools.formats import APART, NoTextError, Reading, Row, UnreadableError, kind_of, max_bytes
from caveat_tools.index import Index, Known, Status, delete_index
from caveat_tools.own_report import LEFT_OUT
from caveat_tools.source import Ask, Page, Passage, SourceError, UnsearchableError
from caveat_tools.words import content_terms, terms
from caveat_tools.worker import GivenUpError, Worker, WorkerStoppedError

__all__ = ["LeftOut", "LocalFolderError", "LocalSource"]

KEEP_DAYS: Final = 180
"""After how many days an index that nobody has opened is deleted."""

_IN_PROCESS_BYTES: Final = 500_000  # a larger text is read by the worker, which an interrupt can end at once
_SNIFFED_BYTES: Final = 8_192
_RACY_NS: Final = 2_000_000_000  # the coarsest time stamps of a file system, those of FAT
_BATCH_FILES: Final = 100
_BATCH_PASSAGES: Final = 2_000
_BATCH_SECONDS: Final = 1.0
_LOCK_SECONDS: Final = 0.1
_OF_THE_DISK: Final = frozenset(
    {
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PERM),
    }
)
_KINDS_NAMED: Final = 10


class LocalSource:
    """A folder of documents as a `Source`. Made by `LocalSource.open`; give it back with `aclose`."""

    name = "local"
    accepts_dates = False
    in_process = True

    def __init__(self, folder: Path, index: Index, listing: Listing, unread: Iterable[LeftOut]) -> None:
        """Take an index that is up with the folder, and what could not be read although it may be another time."""
        self._folder = folder
        self._index = index
        remarks = index.remarks()
        left_out = [
            LeftOut(shown(each.path), each.reason, may_hold_evidence=each.status == "unread")
            for each in remarks
            if each.reason is not None
        ]
        self.left_out = tuple(sorted([*listing.left_out, *unread, *left_out], key=lambda each: each.path))
        """What could not be read, or only in part, by path."""
        self.guessed = {shown(each.path): each.guess for each in remarks if each.guess is not None}
        """The encoding of each file that is not sound UTF-8 or marked UTF-16, by path: a guess, and it can be wrong."""
        self.hidden = tuple(listing.hidden)
        """Files and folders left out because their names begin with a dot; folders end in a slash and count once."""
        self.ignored = tuple(listing.ignored)
        """Files and folders left out because a `.gitignore` in the folder or above it excludes them, likewise."""
        others = Counter(shown_kind(each.path) for each in remarks if each.status == "other")
        self.other_kinds = dict(sorted((listing.other_kinds + others).items()))
        """How many files are no text and no document, by lower-case suffix ("" for files without one)."""

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        index: Path | None = None,
        clock: Clock | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> LocalSource:
        """Read the folder, or what has changed in it, and return it, ready to be asked.

        `index` is a folder in which the index is kept for the next time; None keeps it no longer than the source. An
        index there that is damaged or of another version is built anew; if none can be kept there, `on_notice` is told
        why. `on_progress` is told before the first file and after each, if there is anything to read. Both are called
        on the event loop; the work is done in a thread and, for large files and formats other than text, in a process.

        A cancelled task stops within about a second and leaves no process behind; what was read is kept.
        Raises LocalFolderError.
        """
        loop = asyncio.get_running_loop()
        opening = _Opening(
            folder,
            index,
            clock or SystemClock(),
            lambda progress: loop.call_soon_threadsafe(on_progress, progress),
            lambda text: loop.call_soon_threadsafe(on_notice, text),
        )
        work = asyncio.ensure_future(asyncio.to_thread(opening.run))
        try:
            source = await asyncio.shield(work)
        except asyncio.CancelledError:
            opening.stop()
            await asyncio.wait({work})
            if not work.cancelled() and work.exception() is None:
                await work.result().aclose()
            raise
        if not source.documents:
            await source.aclose()
            raise LocalFolderError(_nothing_in(folder, source))
        return source

    @property
    def documents(self) -> int:
        """How many files have at least one passage in the index."""
        return self._index.documents

    @property
    def passages(self) -> int:
        """How many passages are in the index."""
        return self._index.passages

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
            raise UnsearchableError("the query holds no word that can be searched")
        offset = int(cursor or 0)
        try:
            hits, total = await asyncio.to_thread(self._index.search, wanted, names, ask.limit, offset)
        except sqlite3.DatabaseError as error:
            raise SourceError("unavailable", f"the index cannot be read: {error}", retryable=True) from error
        passages = tuple(Passage(title=hit.title, url=f"{hit.path}{hit.place}", text=hit.text) for hit in hits)
        end = offset + len(hits)
        return Page(passages, total=total, next_cursor=str(end) if end < total else None)

    async def aclose(self) -> None:
        """Close the index, after the query at hand. Closing twice is fine."""
        await asyncio.to_thread(self._index.close)


class _StoppedError(Exception):
    """The opening was told to stop."""


class _Opening:
    """One opening of a folder, in a thread: `run` does the work, `stop` ends it from another thread."""

    def __init__(
        self,
        folder: Path,
        kept_in: Path | None,
        clock: Clock,
        on_progress: Callable[[Progress], object],
        on_notice: Callable[[str], object],
    ) -> None:
        self._folder = folder
        self._kept_in = kept_in
        self._clock = clock
        self._on_progress = on_progress
        self._on_notice = on_notice
        self._stopped = threading.Event()
        self._worker = Worker()

    def stop(self) -> None:
        """Have `run` end soon, with _StoppedError."""
        self._stopped.set()
        self._worker.stop()

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError

    def run(self) -> LocalSource:
        """Return the source. Raises LocalFolderError or _StoppedError."""
        listing = list_folder(self._folder, self._go_on)
        try:
            if self._kept_in is not None and listing.files:
                try:
                    return self._kept(listing, self._kept_in)
                except (sqlite3.Error, OSError, NotImplementedError) as error:
                    self._on_notice(f"the index of {shown(str(self._folder))} is not kept for later runs: {error}")
            try:
                return self._filled(Index(None), listing)
            except sqlite3.Error as error:
                raise LocalFolderError(f"{shown(str(self._folder))} cannot be indexed: {error}.") from error
        finally:
            self._worker.close()

    def _kept(self, listing: Listing, kept_in: Path) -> LocalSource:
        """Bring the kept index up with the folder, while no other process does; one that is damaged begins anew."""
        kept_in.mkdir(parents=True, exist_ok=True)
        name = hashlib.blake2b(os.fsencode(self._folder.resolve()), digest_size=16).hexdigest()
        path = kept_in / f"{name}.sqlite"
        lock = FileLock(path.with_suffix(".lock"))
        has_waited = self._had_to_wait_for(lock)
        try:
            if has_waited:
                listing = list_folder(self._folder, self._go_on)
            _delete_old(kept_in, path, (self._clock.now() - timedelta(days=KEEP_DAYS)).timestamp())
            try:
                source = self._filled(Index(path), listing)
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", None) in _OF_THE_DISK:
                    raise
                delete_index(path)
                source = self._filled(Index(path), listing)
            os.utime(path)
            return source
        finally:
            lock.release()

    def _had_to_wait_for(self, lock: FileLock) -> bool:
        waiting = False
        while True:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if not waiting:
                    self._on_notice(f"another run is reading {shown(str(self._folder))}; waiting for it")
                waiting = True
                if self._stopped.wait(_LOCK_SECONDS):
                    raise _StoppedError from None
            else:
                return waiting

    def _filled(self, index: Index, listing: Listing) -> LocalSource:
        try:
            unread = _Update(self._folder, index, self._worker, self._clock, self._stopped, self._on_progress).run(
                listing
            )
            index.freeze()
            return LocalSource(self._folder, index, listing, unread)
        except BaseException:
            index.close()
            raise


class _Update:
    """Brings an index up with a folder: what is gone leaves, what is new or has changed is read."""

    def __init__(
        self,
        folder: Path,
        index: Index,
        worker: Worker,
        clock: Clock,
        stopped: threading.Event,
        on_progress: Callable[[Progress], object],
    ) -> None:
        self._folder = folder
        self._index = index
        self._worker = worker
        self._clock = clock
        self._stopped = stopped
        self._on_progress = on_progress
        self._unread: list[LeftOut] = []

    def run(self, listing: Listing) -> list[LeftOut]:
        """Return what could not be read and is tried again next time. Raises _StoppedError; what is done is kept."""
        known = self._index.known()
        changed = [file for file in listing.files if not _is_unchanged(file, known.get(file.path))]
        gone = known.keys() - {file.path for file in listing.files}
        if not changed and not gone:
            return []
        self._index.begin()
        self._index.remove(sorted(gone))
        started, done, of_bytes = self._clock.monotonic(), 0, sum(map(_bytes_to_read, changed))
        batch_files, batch_position, batch_began = 0, self._index.position, started
        try:
            for number, file in enumerate(changed):
                self._on_progress(Progress(number, len(changed), done, of_bytes, self._clock.monotonic() - started))
                self._go_on()
                self._take(file, known.get(file.path))
                done += _bytes_to_read(file)
                now = self._clock.monotonic()
                if (
                    number - batch_files >= _BATCH_FILES
                    or self._index.position - batch_position >= _BATCH_PASSAGES
                    or now - batch_began >= _BATCH_SECONDS
                ):
                    self._index.commit()
                    self._index.begin()
                    batch_files, batch_position, batch_began = number, self._index.position, now
        except (_StoppedError, WorkerStoppedError):
            self._index.commit()
            raise _StoppedError from None
        self._index.commit()
        if changed:
            seconds = self._clock.monotonic() - started
            self._on_progress(Progress(len(changed), len(changed), of_bytes, of_bytes, seconds))
        return self._unread

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError

    def _take(self, file: File, known: Known | None) -> None:
        """Bring one file into the index, or put down why it cannot be for now."""
        checked_ns, since = int(self._clock.now().timestamp() * 1e9), self._index.position
        try:
            with _opened(self._folder / file.path) as opened:
                status = os.fstat(opened.fileno())
                if not stat.S_ISREG(status.st_mode):
                    self._leave_out(file, "it is a link or not a regular file", may_hold_evidence=False)
                    return
                # the inode as listed: Windows tells it of an open file only
                now = File(file.path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, file.inode)
                self._read(opened, now, checked_ns, known)
        except OSError as error:
            self._index.drop_since(since)
            self._leave_out(file, f"it cannot be opened: {error.strerror}")
        except WorkerStoppedError:
            self._index.drop_since(since)
            raise

    def _leave_out(self, file: File, reason: str, *, may_hold_evidence: bool = True) -> None:
        self._index.remove([file.path])
        self._unread.append(LeftOut(shown(file.path), reason, may_hold_evidence=may_hold_evidence))

    def _read(self, opened: BufferedReader, file: File, checked_ns: int, known: Known | None) -> None:
        kind = kind_of(file.path)
        data: bytes | None = None
        outcome: tuple[Status, str | None, str | None] | None = None
        digest = b""
        if kind not in APART and file.size <= _IN_PROCESS_BYTES:
            data = opened.read(_IN_PROCESS_BYTES + 1)
            digest = _digest(data).digest()
        elif kind == "unknown" and decode(opened.read(_SNIFFED_BYTES)) is None:
            outcome = "other", None, None
        elif file.size > max_bytes(kind):
            outcome = "unread", too_large(kind), None
        else:
            opened.seek(0)
            digest = hashlib.file_digest(opened, _digest).digest()
        if known is not None and digest and digest == known.digest:
            self._index.keep_unchanged(file, checked_ns)
            return
        self._index.remove([file.path])
        since = self._index.position
        try:
            status, reason, guess = outcome or self._rows(file, data)
        except GivenUpError as error:  # without time and digest it is read again the next time
            status, reason, guess, checked_ns, digest = "unread", str(error), None, 0, b""
        if not _is_still(file, opened, self._folder / file.path):
            self._index.drop_since(since)
            self._leave_out(file, "it changed while it was read")
            return
        self._index.keep(file, checked_ns, digest, status, reason, guess, since)

    def _rows(self, file: File, data: bytes | None) -> tuple[Status, str | None, str | None]:
        """Add the passages of a file; return its status, the reason for it and the guess of its encoding."""
        kind, untitled, since = kind_of(file.path), Path(shown(file.path)).stem, self._index.position
        guess: str | None = None
        is_text = True
        reason: str | None = None
        try:
            if data is None:
                for answer in self._worker.read(self._folder / file.path, kind, untitled):
                    if isinstance(answer, dict):
                        guess, reason, is_text = answer["guess"], answer["unreadable"], answer["is_text"]
                    else:
                        self._index.add(answer)
            else:
                guess = self._add_text(Reading(self._folder / file.path, kind, untitled, data))
        except GivenUpError:
            raise
        except UnreadableError as error:
            reason = str(error)
            self._index.drop_since(since)
        except NoTextError:
            is_text = False
        if not is_text:
            return ("other", None, None) if kind == "unknown" else ("unread", "it is not text", None)
        if reason is not None:
            return "report" if reason == LEFT_OUT else "unread", reason, guess
        return ("read", None, guess) if self._index.position > since else ("empty", "it holds no text", guess)

    def _add_text(self, reading: Reading) -> str | None:
        rows: list[Row] = list(reading)
        self._index.add(rows)
        return reading.guess


def _bytes_to_read(file: File) -> int:
    """Return the size of a file, but 0 for one that is too large to be read."""
    return file.size if file.size <= max_bytes(kind_of(file.path)) else 0


def _digest(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _opened(path: Path) -> BufferedReader:
    """Open a file for reading, but no link, and without waiting at a pipe that has taken its place. Raises OSError."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags), "rb")


def _is_unchanged(file: File, known: Known | None) -> bool:
    """Say whether size, times of change and entry are as they were, and the time is not so near to when the file was
    looked at that a later change could bear it, too ("racily clean" in Git's words).
    """
    if known is None:
        return False
    before = (known.size, known.mtime_ns, known.ctime_ns, known.inode)
    if (file.size, file.mtime_ns, file.ctime_ns, file.inode) != before:
        return False
    return file.mtime_ns < known.checked_ns - _RACY_NS


def _is_still(file: File, opened: BufferedReader, path: Path) -> bool:
    """Say whether a file is, open and at its path, what it was before it was read. Raises OSError where it is gone."""
    states = (os.fstat(opened.fileno()), path.lstat())
    before = (file.size, file.mtime_ns, file.ctime_ns)
    is_same = os.path.samestat(*states)
    return is_same and all((each.st_size, each.st_mtime_ns, each.st_ctime_ns) == before for each in states)


def _delete_old(folder: Path, but: Path, before: float) -> None:
    """Delete the indexes that were last opened before a time (in seconds since 1970)."""
    for path in folder.glob("*.sqlite"):
        with suppress(FileNotFoundError):  # another run was faster
            if path != but and path.stat().st_mtime < before:
                delete_index(path)
                path.with_suffix(".lock").unlink()


def _nothing_in(folder: Path, source: LocalSource) -> str:
    """Return the sentence for a folder without a single passage."""
    named = shown(str(folder))
    if source.left_out:
        first = source.left_out[0]
        return f"None of the documents in {named} could be read (the first, {first.path}: {first.reason})."
    kinds = Counter(source.other_kinds).most_common(_KINDS_NAMED)
    seen = [f"{number} {suffix or 'without a suffix'}" for suffix, number in kinds]
    seen += [f"{len(source.hidden)} hidden"] if source.hidden else []
    seen += [f"{len(source.ignored)} excluded by .gitignore"] if source.ignored else []
    others = f" (only others: {', '.join(seen)})" if seen else ""
    return f"{named} holds no document{others}: name a folder that does."
