"""An index that is kept: what is read again and what is not, interruptions of every kind, several processes."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caveat_tools.clock import FakeClock, SystemClock
from caveat_tools.folder import list_folder
from caveat_tools.folder_progress import Progress
from caveat_tools.formats import Row, UnreadableError
from caveat_tools.source import Ask, Page, SourceError
from caveat_tools.sources.local import LeftOut, LocalSource
from caveat_tools.worker import GivenUpError, Worker, WorkerStoppedError
from made_files import docx, notebook, paragraph, pdf

T = TypeVar("T")
DAY_NS = 86_400_000_000_000


def folder(path: Path, files: dict[str, str | bytes]) -> Path:
    """Write files below `path`, as if they had been there since yesterday."""
    for name, content in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        aged(file)
    return path


def aged(file: Path) -> None:
    """Make a file a day older than it is."""
    before = file.stat().st_mtime_ns - DAY_NS
    os.utime(file, ns=(before, before))


def kept(index: Path, suffix: str = "sqlite") -> list[Path]:
    """Return the files of the indexes that are kept."""
    return list(index.glob(f"*.{suffix}"))


async def opened(path: Path, index: Path | None) -> tuple[LocalSource, int, list[str]]:
    """Open and close; return the source, how many files were read, and what was noticed."""
    told: list[Progress] = []
    notices: list[str] = []
    source = await LocalSource.open(path, index=index, on_progress=told.append, on_notice=notices.append)
    await asyncio.sleep(0)
    await source.aclose()
    return source, max((each.of_files for each in told), default=0), notices


async def found(path: Path, index: Path | None, query: str) -> Page:
    """Open, ask, close."""
    source = await LocalSource.open(path, index=index)
    try:
        return await source.page(Ask(query, limit=8), None)
    finally:
        await source.aclose()


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Where the index is kept."""
    return tmp_path / "indexes"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder of three documents, one of them damaged."""
    return folder(tmp_path / "docs", {"a.md": "Kariba dam", "b.txt": "Itaipu dam", "c.ipynb": "no notebook"})


async def test_an_unchanged_folder_is_not_read_again(docs: Path, index: Path) -> None:
    """The second opening reads nothing, and knows what the first one could not read."""
    first, read, _ = await opened(docs, index)
    assert read == 3
    again, read, notices = await opened(docs, index)
    assert (read, notices) == (0, [])
    assert again.left_out == first.left_out == (LeftOut("c.ipynb", "it is damaged, or no notebook"),)
    assert await found(docs, index, "kariba") == await found(docs, None, "kariba")


async def test_a_large_file_without_a_known_kind_is_looked_into_once(docs: Path, index: Path) -> None:
    """A film is no text and a log of 30 MB too large; both are known the next time."""
    folder(docs, {"film": b"\0", "all.log": "2026-12-01 a line of a log\n" * 1_200_000})
    os.truncate(docs / "film", 2_000_000_000)
    aged(docs / "film")
    for expected in (5, 0):
        source, read, _ = await opened(docs, index)
        assert (read, source.other_kinds) == (expected, {"": 1})
        assert source.left_out[0] == LeftOut("all.log", "it is larger than 20 MB")


async def test_what_was_added_changed_and_removed_is_known(docs: Path, index: Path) -> None:
    """Only what differs is read, and what is gone is not found any more."""
    await opened(docs, index)
    folder(docs, {"b.txt": "Hoover dam!!", "new/d.md": "Grand Coulee", "c.ipynb": notebook(("code", "Aswan", []))})
    (docs / "a.md").unlink()
    source, read, _ = await opened(docs, index)
    assert (read, source.left_out) == (3, ())
    totals = [(await found(docs, index, query)).total for query in ("kariba", "itaipu", "hoover", "coulee", "aswan")]
    assert totals == [0, 0, 1, 1, 1]


async def test_a_new_time_stamp_alone_costs_a_look_at_the_content(docs: Path, index: Path) -> None:
    """A fresh clone has new times; its documents keep their passages, and the next opening is cheap again."""
    await opened(docs, index)
    with closing(sqlite3.connect(kept(index)[0])) as database:
        before = database.execute("SELECT path, first FROM file ORDER BY path").fetchall()
        aged(docs / "a.md")
        assert (await opened(docs, index))[1] == 1
        assert database.execute("SELECT path, first FROM file ORDER BY path").fetchall() == before
    assert (await opened(docs, index))[1] == 0


async def test_a_change_within_the_same_tick_is_not_missed(docs: Path, index: Path) -> None:
    """Size and time of change say nothing about a file that was written when it was indexed."""
    now = SystemClock().now().timestamp()
    (docs / "a.md").write_text("Kariba dam")
    os.utime(docs / "a.md", (now, now))
    await opened(docs, index)
    (docs / "a.md").write_text("Hoover dam")
    os.utime(docs / "a.md", (now, now))
    assert [(await found(docs, index, query)).total for query in ("kariba", "hoover")] == [0, 1]


async def test_an_index_belongs_to_one_folder(tmp_path: Path, docs: Path, index: Path) -> None:
    """Two folders have two files, and a link to a folder has the one of the folder."""
    await opened(docs, index)
    await opened(folder(tmp_path / "other", {"a.md": "x"}), index)
    (tmp_path / "link").symlink_to(docs)
    await opened(tmp_path / "link", index)
    assert len(kept(index)) == 2


def overwrite(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5_000)


def other_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")


def without_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE passage")


def foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE file (x)")


def holes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[2_000:] = b"\x55" * (len(data) - 2_000)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [overwrite, other_version, without_table, foreign, holes])
async def test_a_damaged_or_foreign_index_is_built_anew(
    docs: Path, index: Path, damage: Callable[[Path], None]
) -> None:
    """Whatever has happened to the file, the folder is searched."""
    await opened(docs, index)
    damage(kept(index)[0])
    _, read, notices = await opened(docs, index)
    assert (read, notices) == (3, [])
    assert (await found(docs, index, "itaipu")).total == 1


async def test_damage_that_a_search_meets_is_mended_the_next_time(docs: Path, index: Path) -> None:
    """The search fails as unavailable, never as empty; the next run builds the index anew."""
    source = await LocalSource.open(docs, index=index)
    source._index._connection.execute("ROLLBACK")
    source._index._connection.execute("DROP TABLE passage")
    with pytest.raises(SourceError, match="the index cannot be read"):
        await source.page(Ask("kariba"), None)
    await source.aclose()
    assert not kept(index)
    assert (await found(docs, index, "kariba")).total == 1


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder and a copy of its index."""
    path = tmp_path_factory.mktemp("sound")
    files: dict[str, str | bytes] = {f"{n}.md": f"# Dams\n\nKariba dam {n} is высокая" for n in range(4)}
    docs = folder(path / "docs", {**files, "c.ipynb": "no notebook", "d.txt": "Größe".encode("cp1252")})
    asyncio.run(opened(docs, path / "indexes"))
    return docs, Path(shutil.copy(kept(path / "indexes")[0], path / "copy"))


FLIPS = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(flips=FLIPS)
def test_flipped_bytes_of_an_index_give_an_answer_or_a_new_index(
    flips: list[tuple[int, int]], sound: tuple[Path, Path]
) -> None:
    """Whatever the damage is: the folder opens, a search is answered or fails as unavailable, and says no text."""
    docs, copy = sound
    [path] = kept(docs.parent / "indexes")
    damaged = bytearray(copy.read_bytes())
    for at, bits in flips:
        damaged[at % len(damaged)] ^= bits
    path.write_bytes(damaged)

    async def check() -> None:
        source = await LocalSource.open(docs, index=docs.parent / "indexes")
        failed = False
        for query in ("kariba dam", "высокая", "größe"):
            try:
                page = await source.page(Ask(query), None)
                assert all(isinstance(each.text, str) for each in page.passages)
            except SourceError as error:
                failed = True
                assert error.error_type == "unavailable"
                assert "kariba" not in str(error).casefold()
        await source.aclose()
        if failed:
            assert (await found(docs, docs.parent / "indexes", "kariba dam")).total == 4

    asyncio.run(check())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE file SET mtime_ns = NULL",
        "UPDATE file SET inode = x'ff'",
        "UPDATE file SET mtime_ns = 'soon'",
        "UPDATE file SET path = 7 WHERE status = 'unread'",
        "UPDATE file SET first = 'x'",
        "UPDATE file SET last = 9e99",
        "UPDATE file SET last = 9223372036854775807",
        "UPDATE file SET status = 'unread', reason = x'ff'",
        "UPDATE file SET status = 'unread', reason = CAST(x'ff' AS TEXT)",
    ],
)
async def test_an_index_that_holds_nonsense_is_built_anew_at_once(docs: Path, index: Path, change: str) -> None:
    """A value of another type is damage like any other."""
    await opened(docs, index)
    with closing(sqlite3.connect(kept(index)[0])) as database:
        database.execute(change)
        database.commit()
    _, read, notices = await opened(docs, index)
    assert (read, notices) == (3, [])
    assert (await found(docs, index, "itaipu")).total == 1


@pytest.mark.parametrize("value", ["NULL", "CAST(x'4b6172696261ff' AS TEXT)"])
async def test_a_damaged_text_is_not_shown_and_the_index_is_built_anew(docs: Path, index: Path, value: str) -> None:
    """The search says that the index is damaged, and nothing that stands in a document."""
    await opened(docs, index)
    with closing(sqlite3.connect(kept(index)[0])) as database:
        database.execute(f"UPDATE passage_content SET c4 = {value}")  # noqa: S608 - the values above
        database.commit()
    with pytest.raises(SourceError, match=r"^the index cannot be read: it is damaged$"):
        await found(docs, index, "kariba")
    assert (await found(docs, index, "kariba")).total == 1


async def test_without_a_place_to_keep_it_the_index_is_not_kept(tmp_path: Path, docs: Path) -> None:
    """A notice, no error."""
    (tmp_path / "file").write_text("x")
    source, read, [notice] = await opened(docs, tmp_path / "file")
    assert (source.documents, read) == (2, 3)
    assert notice.startswith("the index of ")
    assert "is not kept for later runs" in notice


async def test_an_index_that_nobody_opens_is_deleted_after_180_days(tmp_path: Path, docs: Path, index: Path) -> None:
    """Folders come and go; their indexes do not stay for ever."""
    for name, days in (("old", 181), ("recent", 179)):
        await opened(folder(tmp_path / name, {"a.md": "x"}), index)
        made = max(kept(index), key=lambda path: path.stat().st_mtime_ns)
        then = SystemClock().now().timestamp() - days * 86_400
        os.utime(made, (then, then))
    await opened(docs, index)
    assert len(kept(index)) == len(kept(index, "lock")) == 2


CONTENT = st.sampled_from(
    [
        *("", "---", b"\0", "Kariba", "Kariba dam", "dam dam", "Плотина Кариба"),
        "# Dams\n\nKariba dam\n\n# More\n\ndam wall",
    ]
)
STEPS = st.lists(
    st.dictionaries(st.sampled_from(["a.md", "b.txt", "c/d.md", "e", ".gitignore"]), st.none() | CONTENT, min_size=1),
    min_size=1,
    max_size=4,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_history_of_an_index_does_not_show_in_its_answers(
    steps: list[dict[str, str | bytes | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever came and went, an index that was kept answers like one that was made today, in the same order."""
    path = tmp_path_factory.mktemp("history")

    async def compare() -> None:
        for step in steps:
            for name, content in step.items():
                if content is None:
                    (path / "docs" / name).unlink(missing_ok=True)
                else:
                    folder(path / "docs", {name: content, "z.md": "The end of the dam."})
            folder(path / "docs", {"z.md": "The end of the dam."})
            updated = await LocalSource.open(path / "docs", index=path / "indexes")
            fresh = await LocalSource.open(path / "docs")
            for query in ("dam", "Kariba dam", "плотина", "wall end"):
                assert await updated.page(Ask(query, limit=8), None) == await fresh.page(Ask(query, limit=8), None)
            assert (updated.left_out, updated.ignored, updated.other_kinds) == (
                fresh.left_out,
                fresh.ignored,
                fresh.other_kinds,
            )
            await updated.aclose()
            await fresh.aclose()

    asyncio.run(compare())


# ---- interruptions and other processes


def child(docs: Path, index: Path, *, killed_at: int = -1) -> subprocess.Popen[str]:
    """Start another process that opens the folder, tells of each file, and waits when it is ready.

    It is killed at the file of this number, if at any.
    """
    code = """
import asyncio, os, signal, sys
from pathlib import Path
from typing import TypeVar
from caveat_tools.sources.local import LocalSource

def tell(now):
    print("read", now.files, flush=True)
    if now.files == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    source = await LocalSource.open(Path(sys.argv[1]), index=Path(sys.argv[2]),
        on_progress=tell, on_notice=lambda text: print(text, flush=True))
    print("ready", source.documents, flush=True)
    sys.stdin.read()
    await source.aclose()

asyncio.run(main())
"""
    command = [sys.executable, "-c", code, str(docs), str(index), str(killed_at)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], start: str) -> str:
    """Return the first line that starts so."""
    assert process.stdout is not None
    return next((line for line in process.stdout if line.startswith(start)), "")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A folder that takes a moment to read."""
    words = " ".join(f"word{n}" for n in range(1_500))
    return folder(tmp_path / "many", {f"{n:03}.md": f"{words} kariba{n}" for n in range(300)})


async def test_a_killed_run_keeps_what_it_has_read(many: Path, index: Path) -> None:
    """SIGKILL in the middle of the reading: the next run goes on from the last batch, and nothing is missing."""
    with child(many, index, killed_at=150) as process:
        assert not wait_for(process, "ready")
    source, read, notices = await opened(many, index)
    assert 0 < read <= 200
    assert (source.documents, notices) == (300, [])
    assert (await found(many, index, "kariba7")).total == 1


class WatchingClock(FakeClock):
    """Half a second passes whenever it is looked at; then it counts the files that another process would find kept."""

    def __init__(self, index: Path) -> None:
        super().__init__()
        self.kept: list[int] = []
        self._index = index

    def monotonic(self) -> float:
        with closing(sqlite3.connect(kept(self._index)[0])) as database:
            self.kept.append(database.execute("SELECT count(*) FROM file").fetchone()[0])
        return len(self.kept) / 2


async def test_what_is_read_is_kept_each_second(tmp_path: Path, index: Path) -> None:
    """A slow disk or large documents do not make an interrupt costly: it takes a second's work, not a batch's."""
    path = folder(tmp_path / "docs", {f"{n}.md": "Kariba" for n in range(4)})
    clock = WatchingClock(index)
    await (await LocalSource.open(path, index=index, clock=clock)).aclose()
    assert set(clock.kept) == {0, 1, 2, 3, 4}


async def test_two_processes_read_a_folder_once(many: Path, index: Path) -> None:
    """One reads, the other waits, says so, and finds everything done."""
    with child(many, index) as one:
        assert wait_for(one, "read 1")
        with child(many, index) as other:
            assert wait_for(other, "another run is reading many; waiting for it".replace("many", str(many)))
            assert wait_for(one, "ready") == "ready 300\n"
            assert wait_for(other, "re") == "ready 300\n"
            other.communicate()
        one.communicate()


async def test_a_search_sees_the_folder_as_it_was_when_it_was_opened(docs: Path, index: Path) -> None:
    """Another run that brings the index up to date does not change the answers of this one."""
    source = await LocalSource.open(docs, index=index)
    before = await source.page(Ask("dam"), None)
    folder(docs, {"a.md": "Kariba wall", "b.txt": "gone", "0.md": "dam dam dam"})
    assert (await found(docs, index, "dam")).total == 1
    assert await source.page(Ask("dam"), None) == before
    await source.aclose()


async def test_waiting_for_another_run_can_be_cancelled(docs: Path, index: Path) -> None:
    """Ctrl-C ends the waiting, too."""
    await opened(docs, index)
    lock = FileLock(kept(index, "lock")[0])
    with lock:
        waits = asyncio.Event()
        opening = asyncio.create_task(LocalSource.open(docs, index=index, on_notice=lambda _: waits.set()))
        await waits.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening


def children(parent: int | str = "self") -> list[str]:
    """Return the ids of the processes that a process has started and not yet seen to their end."""
    return [pid for task in Path(f"/proc/{parent}/task").glob("*/children") for pid in task.read_text().split()]


def is_running(pid: str) -> bool:
    """Say whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(look: Callable[[], T]) -> T:
    """Return what `look` gives, once that is something, or after ten seconds whatever it is."""
    for _ in range(200):
        if result := look():
            return result
        time.sleep(0.05)
    return look()


@pytest.fixture
def childless() -> Iterator[None]:
    """Check that no process is left behind, dead or alive."""
    before = set(children()) if sys.platform == "linux" else set()
    yield
    if sys.platform == "linux":
        assert set(children()) <= before


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of processes")
def test_a_killed_run_leaves_no_worker(large: Path, index: Path) -> None:
    """A worker whose parent is gone does not read on."""
    with child(large.parent, index) as process:
        assert wait_for(process, "read 0")
        [worker] = eventually(lambda: children(process.pid))
        process.kill()
    assert eventually(lambda: not is_running(worker))


@pytest.mark.usefixtures("childless")
async def test_cancelling_ends_the_worker_and_keeps_what_is_done(tmp_path: Path, index: Path) -> None:
    """A large file of unique words does not hold up an interrupt, and no process stays behind."""
    path = folder(tmp_path / "docs", {"a.md": "Kariba", "b.txt": " ".join(f"w{n}x" for n in range(1_000_000))})
    reading = asyncio.Event()

    def tell(now: Progress) -> None:
        if now.files == 1:
            reading.set()

    opening = asyncio.create_task(LocalSource.open(path, index=index, on_progress=tell))
    await reading.wait()
    await asyncio.sleep(0.3)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with closing(sqlite3.connect(kept(index)[0])) as database:
        assert database.execute("SELECT path FROM file").fetchall() == [(b"a.md",)]
        assert database.execute("SELECT text FROM passage").fetchall() == [("Kariba",)]


async def test_a_folder_of_notes_starts_no_process(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no worker does not pay for one; where none can be started, the documents that need it are named."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    (docs / "c.ipynb").unlink()
    folder(docs, {"c.pdf": pdf([["Aswan"]])})
    source, _, _ = await opened(docs, None)
    assert source.documents == 2
    assert source.left_out == (LeftOut("c.pdf", "it cannot be opened: No such file or directory"),)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A text that takes several seconds to read."""
    path = tmp_path / "large.txt"
    path.write_text(" ".join(f"w{n}x" for n in range(1_000_000)))
    return path


def test_a_document_that_takes_too_long_is_given_up_and_the_next_is_read(tmp_path: Path, large: Path) -> None:
    """The reason names the limit; the worker that hung is replaced."""
    worker = Worker(seconds_per_file=0.5)
    try:
        with pytest.raises(UnreadableError, match=r"reading it takes more than 0.5 s"):
            list(worker.read(large, "plain", "x"))
        (tmp_path / "a.pdf").write_bytes(pdf([["Kariba"]]))
        worker._seconds = 60
        rows, ending = worker.read(tmp_path / "a.pdf", "pdf", "x")
        assert isinstance(rows, list)
        assert isinstance(rows[0], Row)
        assert ending == {"guess": None, "unreadable": None, "is_text": True}
    finally:
        worker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of processes")
async def test_a_document_that_was_given_up_is_tried_again_the_next_time(tmp_path: Path, index: Path) -> None:
    """A crash or a full memory may be gone; a document that is damaged is not read again."""
    path = folder(
        tmp_path / "docs", {"a.md": "Kariba", "b.ipynb": "{", "c.txt": " ".join(f"w{n}x" for n in range(90_000))}
    )
    loop = asyncio.get_running_loop()

    def crash(now: Progress) -> None:
        if now.files == 2 and now.of_files == 3:
            loop.run_in_executor(None, kill_child)

    def kill_child() -> None:
        for pid in eventually(children):
            os.kill(int(pid), signal.SIGSEGV)

    source = await LocalSource.open(path, index=index, on_progress=crash)
    await source.aclose()
    assert source.left_out[1:] == (LeftOut("c.txt", "reading it ended in a crash"),)
    again, read, _ = await opened(path, index)
    assert (read, again.documents, len(again.left_out)) == (1, 2, 1)
    assert (await opened(path, index))[1] == 0


async def test_a_file_with_the_size_and_time_of_the_one_before_is_read(docs: Path, index: Path) -> None:
    """Text that is gone is not served: the time of the entry and its number tell, too, as they do for Git."""
    await opened(docs, index)
    for name, content in (("a.md", "Hoover dam"), ("b.txt", "Aswan! dam")):
        before = (docs / name).stat()
        if name == "a.md":
            (docs / "new").write_text(content)
            (docs / "new").replace(docs / name)
        else:
            (docs / name).write_text(content)
        os.utime(docs / name, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (docs / name).stat().st_size == before.st_size
    totals = [(await found(docs, index, query)).total for query in ("kariba", "hoover", "itaipu", "aswan")]
    assert totals == [0, 1, 0, 1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_that_may_not_be_read_any_more_is_named(docs: Path, index: Path) -> None:
    """Its passages leave the index, though its content has not changed."""
    await opened(docs, index)
    (docs / "a.md").chmod(0)
    source, _, _ = await opened(docs, index)
    assert source.left_out[0] == LeftOut("a.md", "it cannot be opened: Permission denied")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is set where /proc says how much there is")
def test_a_document_that_takes_too_much_memory_is_given_up(large: Path) -> None:
    """The limit is the worker's own; the process that searches does not notice."""
    worker = Worker(memory_bytes=20_000_000)
    try:
        with pytest.raises(GivenUpError, match="reading it takes too much memory"):
            list(worker.read(large, "plain", "x"))
    finally:
        worker.close()


@pytest.mark.parametrize("kill", ["crash", "stop"])
@pytest.mark.usefixtures("childless")
def test_a_worker_that_dies_is_a_reason_and_one_that_is_stopped_is_not(large: Path, kill: str) -> None:
    """A crash is told as such; after a stop nothing is read any more."""
    worker = Worker()
    answers = worker.read(large, "plain", "x")
    assert next(answers)
    if kill == "stop":
        worker.stop()
    elif worker._process is not None:
        os.kill(worker._process.pid, signal.SIGSEGV)
    with pytest.raises(WorkerStoppedError if kill == "stop" else UnreadableError):
        list(answers)
    worker.close()
    worker.close()
    with pytest.raises(WorkerStoppedError):
        next(worker.read(large, "plain", "x"))


async def test_documents_of_all_kinds_are_found_in_one_folder(tmp_path: Path) -> None:
    """Each by an address that says where in it the passage stands; what is cut off in the middle is named."""
    files: dict[str, str | bytes] = {
        "a.pdf": pdf([["Nothing here."], ["Kariba was finished in 1959."]]),
        "b.docx": docx(paragraph("Dams", "H1") + paragraph("Kariba is high.")),
        "c.csv": "Name,Year\nItaipu,1984\nKariba,1959\n",
        "code.py": "KARIBA = 1959\n",
        "LICENSE": "Kariba is free.",
        "scan.pdf": pdf([None]),
        "big.md": "x",
    }
    source = await LocalSource.open(folder(tmp_path, files), clock=FakeClock())
    page = await source.page(Ask("kariba", limit=8), None)
    await source.aclose()
    assert {each.url for each in page.passages} == {
        *("a.pdf#page=2", "b.docx#paragraph=2", "c.csv:2", "code.py:1", "LICENSE:1")
    }
    assert source.left_out == (LeftOut("scan.pdf", "its pages are pictures without text, as of a scan"),)


async def test_what_git_would_ignore_is_left_out_and_counted(tmp_path: Path) -> None:
    """Nested files, exceptions and folders as Git has them; a folder counts once. A broken pattern excludes nothing."""
    files: dict[str, str | bytes] = {
        ".gitignore": "*.log\n!keep.log\nbuild/\n/top.md\n[\n" + "*a" * 30 + "b\n",
        "sub/.gitignore": "*.md\n!good.md\n",
        **dict.fromkeys(["a.log", "keep.log", "build/x.md", "top.md", "a" * 100], "word"),
        **dict.fromkeys(["sub/top.md", "sub/good.md", "sub/build"], "word"),
    }
    source, _, _ = await opened(folder(tmp_path, files), None)
    assert source.ignored == ("a.log", "build/", "sub/top.md", "top.md")
    assert source.hidden == (".gitignore", "sub/.gitignore")
    assert source.documents == 4


WORK_TREE: dict[str, str | bytes] = {
    ".git/info/exclude": "secret.md\n*.bak\n",
    ".gitignore": "*.log\n/docs/old/\n!b.bak\n",
    "docs/.gitignore": "!keep.log\n",
    **dict.fromkeys(["docs/a.md", "docs/a.log", "docs/keep.log", "docs/old/a.md"], "word"),
    **dict.fromkeys(["docs/secret.md", "docs/a.bak", "docs/b.bak", "docs/new/old/a.md"], "word"),
}


async def test_what_is_excluded_above_the_folder_is_left_out(tmp_path: Path) -> None:
    """Patterns of the work tree hold in a folder of it, for its own paths; nearer files have the last word."""
    docs = folder(tmp_path, {"../.gitignore": "*.md\n", **WORK_TREE}) / "docs"
    (tmp_path / "link").symlink_to(docs)
    for path in (docs, tmp_path / "link"):
        source, _, _ = await opened(path, None)
        assert source.ignored == ("a.bak", "a.log", "old/", "secret.md")
        assert source.documents == 4


@pytest.mark.parametrize("pattern", ["docs", "/docs/", "docs/", "*", "inner", "docs/inner/", "docs/*"])
async def test_a_folder_that_is_named_is_searched_although_it_is_excluded(tmp_path: Path, pattern: str) -> None:
    """Whoever names build/docs means it; the other patterns hold there all the same."""
    files = {".git/HEAD": "", ".gitignore": f"{pattern}\n*.log\n", "docs/inner/a.md": "word", "docs/inner/a.log": "x"}
    source, _, _ = await opened(folder(tmp_path, dict(files)) / "docs" / "inner", None)
    assert (source.documents, source.ignored) == (1, ("a.log",))


HOSTILE = [
    *("*a" * 3 + "b", "a***a***b", "a**a**b", "*a*/" * 9 + "b", "**/a/" * 3 + "b", "**/*a*b/**/*c*d"),
    "\n".join(["*a*b"] * 20_000),
    "\n".join(f"*a*{n}b" for n in range(15_000)),
]


@pytest.mark.parametrize("patterns", HOSTILE)
@pytest.mark.usefixtures("_ends")
def test_a_hostile_gitignore_does_not_keep_the_listing_busy(tmp_path: Path, patterns: str) -> None:
    """Names that nearly match in every possible way are listed at once."""
    folder(tmp_path, {".gitignore": f"{patterns}\n*.log\n", "a.log": "x"})
    folder(tmp_path, {f"{('a' * 60 + '/') * 9}{'a' * 100}{n}": "x" for n in range(3)})
    assert len(list_folder(tmp_path).files) in {3, 4}


def test_the_end_of_a_gitignore_that_is_too_large_is_passed_over(tmp_path: Path) -> None:
    """A pattern cut in its middle could be a star, which excludes everything; Git ends lines at line feeds alone."""
    lines = "#" * 99 + "\n"
    folder(tmp_path, {".gitignore": lines * 999 + "#" * 98 + "\n*.bak\n", "a.md": "x", "b.bak": "x"})
    folder(tmp_path, {"sub/.gitignore": "nothing\u2028*\n/c.md\r\n!c.md\nc.md\n", "sub/c.md": "x", "sub/d.md": "x"})
    listing = list_folder(tmp_path)
    assert [file.path for file in listing.files] == ["a.md", "b.bak", "sub/d.md"]
    assert listing.ignored == ["sub/c.md"]


async def test_listing_a_folder_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of millions of files, or on a slow disk, does not hold up an interrupt."""
    path = folder(tmp_path / "docs", {f"{n}.md": "x" for n in range(3)})
    begun, loop = asyncio.Event(), asyncio.get_running_loop()
    go_on = threading.Event()
    scandir = os.scandir

    def slow(folder: Path) -> Any:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(10)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", slow)
    opening = asyncio.create_task(LocalSource.open(path))
    await begun.wait()
    opening.cancel()
    loop.call_later(0.05, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await opening


KINDS = [".md", ".txt", ".html", ".csv", ".ipynb", ".rst", ".py", "", ".conf", ".png", ".log", ".doc"]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.dictionaries(
        st.tuples(st.sampled_from(["a", "b/c", "d/e/f"]), st.sampled_from(KINDS)).map("".join),
        st.one_of(st.binary(max_size=80), st.text(max_size=40).map(str.encode)),
    )
)
def test_any_folder_gives_a_source_that_answers(
    files: dict[str, str | bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any bytes under any name: each file is read, left out with a reason, or counted."""
    path = folder(tmp_path_factory.mktemp("any"), {**files, "z.md": "Kariba dam"})
    source = asyncio.run(opened(path, None))[0]
    assert source.documents + len(source.left_out) + sum(source.other_kinds.values()) == len(files) + 1
