"""A folder of the user's documents: what is read, what is named as left out, what a query finds and does not."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat_tools.clock import FakeClock
from caveat_tools.documents import Markup, read_html, read_text, unescaped
from caveat_tools.folder_progress import Progress, spoken
from caveat_tools.formats import Reading, kind_of
from caveat_tools.outcome import MAX_PASSAGE_CHARS
from caveat_tools.source import Ask, Page, Passage, Source, SourceError
from caveat_tools.sources.local import LeftOut, LocalFolderError, LocalSource
from caveat_tools.words import terms

MARKUPS: Final[tuple[Markup, ...]] = ("plain", "markdown", "rst")
PROSE = "Water fell over the rim of the wall and ran on towards the sea without a stop. "


def folder(path: Path, files: dict[str, str | bytes]) -> Path:
    """Write files below `path` and return it."""
    for name, content in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


async def asked(path: Path, query: str, limit: int = 8) -> Page:
    """Open, ask once, close."""
    source = await LocalSource.open(path)
    try:
        return await source.page(Ask(query, limit=limit), None)
    finally:
        await source.aclose()


async def opened(path: Path) -> LocalSource:
    """Open and close: what was counted stays readable."""
    source = await LocalSource.open(path)
    await source.aclose()
    return source


DAMS: dict[str, str | bytes] = {
    "kariba.md": "# Kariba Dam\n\nIntroduction to the wall.\n\n## History\n\nThe dam was finished in 1959.\n",
    "notes/itaipu.txt": "The Itaipu dam generated its first power in 1984.\n",
    "notes/плотины.md": "# Плотины\n\nПлотина Кариба построена на реке Замбези.\n",
    "zh.md": "# 大坝\n\n卡里巴大坝位于赞比西河。\n",
    "page.html": "<title>Hoover</title><p>Hoover dam stands on the Colorado &amp; is tall.</p>",
}


async def test_a_passage_names_its_heading_and_its_line(tmp_path: Path) -> None:
    """A find says in which section and on which line of which file it stands, with no trace of the machine."""
    page = await asked(folder(tmp_path, DAMS), "Kariba finished", limit=1)
    assert page.passages == (
        Passage(title="Kariba Dam › History", url="kariba.md:7", text="The dam was finished in 1959."),
    )


@pytest.mark.parametrize(
    ("query", "url"),
    [
        ("when did Itaipu generate power", "notes/itaipu.txt:1"),
        ("Где построили плотину Кариба?", "notes/плотины.md:3"),
        ("卡里巴大坝", "zh.md:3"),
        ("HOOVER colorado", "page.html:1"),
    ],
)
async def test_documents_are_found_in_their_own_language(tmp_path: Path, query: str, url: str) -> None:
    """Markdown, text and HTML are found by words in another form, in scripts with and without spaces."""
    assert [each.url for each in (await asked(folder(tmp_path, DAMS), query)).passages] == [url]


@pytest.mark.parametrize("others", [0, 5, 500])
@pytest.mark.parametrize("query", ["Three Gorges dam finished", "Kariba Dam finished"])
async def test_a_topic_that_the_folder_lacks_is_empty(tmp_path: Path, query: str, others: int) -> None:
    """Passages that share only the common words of a query are not offered as an answer, however small the folder."""
    files: dict[str, str | bytes] = {f"{n}.md": f"The dam of river {n} is high." for n in range(others)}
    page = await asked(folder(tmp_path, {**files, "itaipu.md": "The Itaipu dam was finished in 1984."}), query)
    assert page == Page(total=0)


@pytest.mark.parametrize("others", [0, 5, 500])
async def test_one_word_that_the_folder_lacks_does_not_hide_a_passage_that_holds_the_others(
    tmp_path: Path, others: int
) -> None:
    """Few documents or many, a query with a stray word finds what it is about."""
    files: dict[str, str | bytes] = {f"{n}.md": f"The bakery of Orlec has number {n}." for n in range(others)}
    text = "The new footbridge over the Mirna gorge was opened on 9 October 2021."
    folder(tmp_path, {**files, "notes.md": f"# The council of Orlec\n\nBread is dear.\n\n## Opening\n\n{text}\n"})
    page = await asked(tmp_path, "present footbridge Mirna gorge Orlec opened")
    assert page.passages[0].text == text


async def test_a_word_that_the_folder_lacks_and_that_is_no_name_hides_nothing(tmp_path: Path) -> None:
    """Asked for the colour of the tower, a passage that only says "green" is found, and a reader can judge."""
    files: dict[str, str | bytes] = {f"{n}.md": f"Note {n} is about bread." for n in range(8)}
    page = await asked(
        folder(tmp_path, {**files, "c.md": "The tower was painted green in 1999."}), "colour tower painted"
    )
    assert [passage.url for passage in page.passages] == ["c.md:1"]


async def test_what_stands_elsewhere_in_the_document_counts_half(tmp_path: Path) -> None:
    """A section need not repeat what its document is about; another document does not help."""
    about = "# Backoff\n\n## Exponential growth\n\nA retry can help here.\n"
    jitter = "## Jitter\n\nJitter is a random share in each wait.\n"
    one = await asked(folder(tmp_path / "one", {"a.md": about + jitter}), "jitter help exponential backoff")
    assert {each.title for each in one.passages} == {"Backoff › Jitter", "Backoff › Exponential growth"}
    parted = await asked(folder(tmp_path / "two", {"a.md": about, "b.md": jitter}), "jitter help exponential backoff")
    assert [each.url for each in parted.passages] == ["a.md:5"]


async def test_passages_too_short_for_a_sentence_come_last(tmp_path: Path) -> None:
    """A heading or a menu that repeats the query does not stand before the prose that answers it."""
    text = f"Near the sea Kariba and other walls hold back what falls on the hills. {PROSE}"
    page = await asked(folder(tmp_path, {"menu.txt": "Kariba\nHome", "prose.txt": text, "z.txt": PROSE}), "kariba")
    assert [each.url for each in page.passages] == ["prose.txt:1", "menu.txt:1"]


async def test_a_query_without_a_word_is_refused(tmp_path: Path) -> None:
    """A query of signs is the model's mistake, not an empty result."""
    with pytest.raises(SourceError) as caught:
        await asked(folder(tmp_path, DAMS), "???")
    assert (caught.value.error_type, caught.value.retryable) == ("invalid_query", False)


async def test_pages_follow_each_other_without_gap_or_repeat(tmp_path: Path) -> None:
    """The cursor leads through all matches once, in the order of the files where they match equally well."""
    source = await LocalSource.open(folder(tmp_path, {f"{n}.txt": "Kariba dam" for n in range(7)}))
    found: list[str] = []
    cursor: str | None = None
    for size in (3, 3, 1):
        page = await source.page(Ask("kariba", limit=3), cursor)
        assert (len(page.passages), page.total) == (size, 7)
        found += [each.url for each in page.passages]
        cursor = page.next_cursor
    assert cursor is None
    assert found == [f"{n}.txt:1" for n in range(7)]
    await source.aclose()


async def test_a_word_in_the_heading_counts_more_than_in_the_text(tmp_path: Path) -> None:
    """A section about the topic stands before one that mentions it."""
    files: dict[str, str | bytes] = {"a.md": "# Rivers\n\nKariba by the way.", "b.md": "# Kariba\n\nIt is a wall."}
    page = await asked(folder(tmp_path, {**files, "c.md": "Nothing.", "d.md": "No.", "e.md": "Nil."}), "kariba")
    assert [each.url for each in page.passages] == ["b.md:3", "a.md:3"]


async def test_the_answer_does_not_depend_on_time_stamps_or_creation_order(tmp_path: Path) -> None:
    """The same documents give the same page on another machine."""
    one, other = folder(tmp_path / "one", DAMS), folder(tmp_path / "other", dict(reversed(DAMS.items())))
    for file in other.rglob("*.*"):
        os.utime(file, (1, 1))
    assert await asked(one, "dam") == await asked(other, "dam")


async def test_a_closed_index_is_unavailable_and_closing_twice_is_fine(tmp_path: Path) -> None:
    """A database error is a failed access, never an empty result."""
    source: Source = await LocalSource.open(folder(tmp_path, DAMS))
    await source.aclose()
    await source.aclose()
    with pytest.raises(SourceError) as caught:
        await source.page(Ask("dam"), None)
    assert (caught.value.error_type, caught.value.retryable) == ("unavailable", True)


async def test_concurrent_queries_get_their_own_answers(tmp_path: Path) -> None:
    """One source serves parallel subagents."""
    source = await LocalSource.open(folder(tmp_path, DAMS))
    queries = ["Itaipu", "Hoover", "плотина"] * 5
    pages = await asyncio.gather(*(source.page(Ask(query), None) for query in queries))
    assert [page.passages[0].url for page in pages[:3]] == ["notes/itaipu.txt:1", "page.html:1", "notes/плотины.md:3"]
    assert pages[:3] * 5 == pages
    await source.aclose()


async def test_the_description_says_what_is_in_it(tmp_path: Path) -> None:
    """The model is told the size of the folder and the form of a query."""
    source = await opened(folder(tmp_path, DAMS))
    assert (source.name, source.accepts_dates, source.in_process) == ("local", False, True)
    assert "5 documents" in source.description
    assert "key words" in source.description


async def test_progress_is_told_before_and_after_each_file(tmp_path: Path) -> None:
    """The command line can show how far the reading is, and how long it will take."""
    told: list[Progress] = []
    source = await LocalSource.open(folder(tmp_path, DAMS), clock=FakeClock(), on_progress=told.append)
    size = sum(len(str(content).encode()) for content in DAMS.values())
    assert [(each.files, each.of_files) for each in told] == [(n, 5) for n in range(6)]
    assert [told[0].bytes, told[-1].bytes, told[-1].of_bytes] == [0, size, size]
    await source.aclose()


def test_the_pace_is_told_every_few_seconds() -> None:
    """A line at the start, then one every three seconds with rate and time left, and none for nothing to read."""
    lines: list[str] = []
    listener = spoken(Path("/x/notes"), lines.append)
    for second in range(8):
        listener(Progress(3_000 * second, 21_000, 12_000_000 * second, 84_000_000, float(second)))
    assert lines == [
        "reading notes: 21 000 files, 84 MB",
        "reading notes: 9 000 of 21 000 files, 12 MB/s, about 4 s left",
        "reading notes: 18 000 of 21 000 files, 12 MB/s, about 1 s left",
    ]
    listener = spoken(Path("/x/notes"), lines.append)
    listener(Progress(10, 400, 2_000, 9_000_000, 5.0))
    listener(Progress(20, 400, 900_000, 9_000_000, 60.0))
    assert lines[3:] == [
        "reading notes: 10 of 400 files, 1 kB/s, about 375 min left",
        "reading notes: 20 of 400 files, 15 kB/s, about 9 min left",
    ]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path / "nowhere", "does not exist"),
        (lambda path: folder(path, {"a.md": "text"}) / "a.md", "is a file"),
        (lambda path: path, "holds no document: name a folder that does"),
        (lambda path: folder(path, {"a.png": "x", ".b.md": "x"}), "only others: 1 .png, 1 hidden"),
        (
            lambda path: folder(path, {"a.md": "x", ".gitignore": "*"}),
            "only others: 1 hidden, 1 excluded by .gitignore",
        ),
        (lambda path: folder(path, {"a.doc": "x"}), "documents of the kind .doc are not read"),
        (lambda path: folder(path, {"a.md": " \n"}), "None of the documents in"),
        (lambda path: path / ("a" * 300), "cannot be opened"),
        (lambda path: path / "a\0b", "is no name of a folder"),
    ],
)
async def test_a_folder_that_cannot_be_searched_is_refused_with_a_sentence(
    tmp_path: Path, make: Callable[[Path], Path], says: str
) -> None:
    """The user is told what is wrong and what to do, before any model is asked."""
    with pytest.raises(LocalFolderError, match=says) as caught:
        await LocalSource.open(make(tmp_path))
    assert "\n" not in str(caught.value)


async def test_what_was_not_read_is_named(tmp_path: Path) -> None:
    """Files that could hold evidence and were not read are listed with a reason; other kinds are counted."""
    folder(tmp_path, {"good.md": "Text.", "nul.txt": b"a\0b", "empty.md": "", "signs.txt": "---", "big.txt": ""})
    folder(tmp_path, {"a.PNG": "", "b.png": "", "data": b"\0\1", "sub/in.md": "x", "old.doc": "x", "LICENSE": "Free."})
    folder(tmp_path, {".hidden.md": "x", ".git/x.md": "x", "env/pyvenv.cfg": "", "env/lib/a.py": "x"})
    os.truncate(tmp_path / "big.txt", 20_000_001)
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "link.md").symlink_to("good.md")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    source = await opened(tmp_path)
    assert source.documents == 3
    assert source.other_kinds == {"": 1, ".png": 2}
    assert (source.hidden, source.ignored) == ((".git/", ".hidden.md"), ())
    assert source.left_out == (
        LeftOut("big.txt", "it is larger than 20 MB"),
        LeftOut("empty.md", "it holds no text", may_hold_evidence=False),
        LeftOut("env/", "it holds an environment of Python, not documents", may_hold_evidence=False),
        LeftOut("link.md", "it is a link or not a regular file", may_hold_evidence=False),
        LeftOut("nul.txt", "it is not text"),
        LeftOut("old.doc", "documents of the kind .doc are not read"),
        LeftOut("pipe.txt", "it is a link or not a regular file", may_hold_evidence=False),
        LeftOut("signs.txt", "it holds no text", may_hold_evidence=False),
        LeftOut("sub/loop", "it is a link to a folder", may_hold_evidence=False),
    )


async def test_a_deeply_nested_folder_is_read(tmp_path: Path) -> None:
    """1 500 folders inside each other are no reason to end with a traceback."""
    nested = tmp_path
    for _ in range(1_500):
        nested = nested / "d"
        nested.mkdir()
    (nested / "in.md").write_text("Kariba")
    try:
        page = await asked(tmp_path, "kariba")
    finally:
        (nested / "in.md").unlink()
        while nested != tmp_path:  # here and not by pytest, which calls itself for each level
            nested.rmdir()
            nested = nested.parent
    [passage] = page.passages
    assert passage.title == "in"
    assert passage.url.startswith("…")
    assert passage.url.endswith("/d/d/in.md:1")
    assert len(passage.url) < 500


async def test_a_folder_too_deep_to_be_opened_is_named(tmp_path: Path) -> None:
    """What the system cannot open could hold evidence; all else is read."""
    folder(tmp_path, {"good.md": "Text."})
    inner = os.open(tmp_path, os.O_RDONLY)
    for _ in range(45):
        os.mkdir("d" * 100, dir_fd=inner)
        outer, inner = inner, os.open("d" * 100, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    source = await opened(tmp_path)
    [left_out] = source.left_out
    assert (source.documents, left_out.reason) == (1, "it cannot be opened: File name too long")
    assert left_out.may_hold_evidence
    assert len(left_out.path) <= 400


async def test_a_link_that_leads_in_a_circle_does_not_hide_its_neighbours(tmp_path: Path) -> None:
    """It is left out, and the folder that it is in is read."""
    folder(tmp_path, {"sub/good.md": "Text."})
    (tmp_path / "sub" / "circle.md").symlink_to("circle.md")
    source = await opened(tmp_path)
    assert (source.documents, source.left_out) == (
        1,
        (LeftOut("sub/circle.md", "it is a link or not a regular file", may_hold_evidence=False),),
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
async def test_the_name_of_a_file_cannot_break_out_of_its_line(tmp_path: Path) -> None:
    """Line breaks and escape sequences in names reach neither a list of what was left out nor an address or title."""
    folder(tmp_path, {"a\n\n# Kariba\x1b[31m.md": "Kariba", "b\n- b.md": "", "\u200b/x.md": "", "c.\n\udcff": b"\0"})
    (tmp_path / "links\r\nlink").symlink_to(tmp_path)
    source = await LocalSource.open(tmp_path)
    [passage] = (await source.page(Ask("kariba"), None)).passages
    await source.aclose()
    assert (passage.url, passage.title) == ("a # Kariba.md:1", "a # Kariba")
    assert [each.path for each in source.left_out] == ["/x.md", "b - b.md", "links link"]
    assert source.other_kinds == {". \ufffd": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
async def test_a_folder_of_any_name_can_be_searched_and_reported(tmp_path: Path) -> None:
    """Its place can be written down, and differs for different folders; messages about it are one line."""
    names = [b"caf\xe9", b"caf\xe8", b"a\nb"]
    places = {(await opened(folder(tmp_path / os.fsdecode(name), {"a.md": "x"}))).place for name in names}
    assert len(places) == len(names)
    assert "".join(places).encode()
    with pytest.raises(LocalFolderError, match="a b\ufffd does not exist"):
        await LocalSource.open(tmp_path / "a\nb\udcff")


async def test_a_folder_of_many_kinds_is_refused_in_a_short_sentence(tmp_path: Path) -> None:
    """The most frequent kinds are named, not all of them."""
    kinds: dict[str, str | bytes] = {f"{number}.kind{number}": b"\0" for number in range(50)}
    folder(tmp_path, {**kinds, "x.png": "", "y.png": ""})
    with pytest.raises(LocalFolderError, match=r"only others: 2 \.png, 1 ") as caught:
        await LocalSource.open(tmp_path)
    assert len(str(caught.value)) < 800


class DisturbedClock(FakeClock):
    """A clock that changes a folder when it is asked for the time: after the listing, and before each file."""

    def __init__(self, *disturbances: Callable[[], object]) -> None:
        super().__init__()
        self._waiting = list(disturbances)

    def now(self) -> datetime:
        if self._waiting:
            self._waiting.pop(0)()
        return super().now()


async def test_files_that_vanish_or_grow_while_the_folder_is_read_are_no_traceback(tmp_path: Path) -> None:
    """What is gone is named; what has changed is read as it is then."""
    folder(tmp_path, {"a.md": "x", "b.md": "x", "c.md": "x", "d.md": "x"})

    def change() -> None:
        (tmp_path / "b.md").unlink()
        (tmp_path / "c.md").write_text("Now about Kariba.")
        (tmp_path / "d.md").unlink()
        os.mkfifo(tmp_path / "d.md")

    source = await LocalSource.open(tmp_path, clock=DisturbedClock(change))
    page = await source.page(Ask("kariba"), None)
    await source.aclose()
    assert [each.text for each in page.passages] == ["Now about Kariba."]
    assert source.left_out == (
        LeftOut("b.md", "it cannot be opened: No such file or directory"),
        LeftOut("d.md", "it is a link or not a regular file", may_hold_evidence=False),
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_files_and_folders_without_permission_are_named(tmp_path: Path) -> None:
    """A file that the user may not read is disclosed, and does not end the reading of the others."""
    folder(tmp_path, {"good.md": "Text.", "secret.md": "x", "closed/in.md": "x"})
    (tmp_path / "secret.md").chmod(0)
    (tmp_path / "closed").chmod(0)
    source = await opened(tmp_path)
    (tmp_path / "closed").chmod(0o700)
    reason = "it cannot be opened: Permission denied"
    assert source.left_out == (LeftOut("closed", reason), LeftOut("secret.md", reason))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
async def test_a_file_name_that_is_not_utf8_can_still_be_reported(tmp_path: Path) -> None:
    """Every address can be written as UTF-8, whatever the file system allows."""
    (tmp_path / os.fsdecode(b"caf\xe9.md")).write_text("Kariba")
    assert (await asked(tmp_path, "kariba")).passages[0].url == "caf\ufffd.md:1"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("Плотина".encode("utf-8-sig"), "Плотина"),
        ("Плотина".encode("utf-16"), "Плотина"),
        ("Плотина достроена".encode("cp1251"), "Плотина достроена"),
        ("Плотина Кариба достроена в 1959 году".encode("koi8-r"), "Плотина Кариба достроена в 1959 году"),
        ("Le café était fermé".encode("cp1252"), "Le café était fermé"),
        ("Das “Ende”".encode("cp1252"), "Das “Ende”"),
        ("Die größte Röste heißt Köln à la carte".encode("cp1252"), "Die größte Röste heißt Köln à la carte"),
        ("ПЛОТИНА КАРИБА И ОЗЕРО".encode("cp1251"), "ПЛОТИНА КАРИБА И ОЗЕРО"),
        ("Плотина достроена".encode() + b"\xd0 end", "Плотина достроена\ufffd end"),
        ("a \ufffd stays".encode(), "a \ufffd stays"),
    ],
)
async def test_the_encoding_of_a_document_is_found_out(tmp_path: Path, data: bytes, text: str) -> None:
    """Old files in Russian or a western language are read as what they are; a broken byte stays one."""
    page = await asked(folder(tmp_path, {"a.txt": data}), text)
    assert [each.text for each in page.passages] == [text]


async def test_a_guessed_encoding_is_told(tmp_path: Path) -> None:
    """A reader learns of which files the letters could be wrong."""
    files: dict[str, str | bytes] = {
        "a.txt": "Größe".encode("cp1252"),
        "b.txt": "Größe",
        "c.txt": "Плотина".encode("cp1251"),
    }
    assert (await opened(folder(tmp_path, files))).guessed == {"a.txt": "Windows-1252", "c.txt": "Windows-1251"}


def passages_of(text: str) -> list[tuple[str, int, str]]:
    """Return title, line and text of the passages of an HTML page."""
    return list(read_html(text).passages(untitled="page"))


async def test_markdown_sections_and_lines(tmp_path: Path) -> None:
    """Fences hide what looks like a heading, nested headings make a path, a bare heading is evidence itself."""
    text = (
        "Before all.\r\n\r\n# Dams #\r\n## Kariba\r\n\r\n\r\nBuilt word.\r\n```\r\n# not a word heading\r\n```\r\n\r\n"
        "More word.\r\n### Bare word\r\n## Empty word\r\n"
    )
    page = await asked(folder(tmp_path, {"a.md": text}), "word")
    assert {(each.title, each.url): each.text for each in page.passages} == {
        ("Dams › Kariba", "a.md:7"): "Built word.\n```\n# not a word heading\n```\n\nMore word.",
        ("Dams › Kariba › Bare word", "a.md:13"): "### Bare word",
        ("Dams › Empty word", "a.md:14"): "## Empty word",
    }
    assert (await asked(tmp_path, "before all")).passages[0].title == "Dams"


async def test_paragraphs_are_grouped_and_long_ones_cut_at_sentences(tmp_path: Path) -> None:
    """Passages are long enough to understand and short enough to send, and cite the line they begin on."""
    short, long = PROSE * 3, (PROSE.replace(" over", "\nover") * 40).strip()
    page = await asked(folder(tmp_path, {"a.txt": f"{short}\n\n{short}\n\n\n{short}\n\n{long}\n"}), "water rim")
    first, *others = sorted(page.passages, key=lambda each: int(each.url.partition(":")[2]))
    assert first.text == f"{short}\n\n{short}\n\n\n{short}".strip()
    lines = (tmp_path / "a.txt").read_text().split("\n")
    for each in others:
        assert 600 <= len(each.text) <= MAX_PASSAGE_CHARS
        assert each.text.endswith("stop.")
        assert each.text.split("\n")[0] in lines[int(each.url.partition(":")[2]) - 1]


async def test_a_megabyte_without_a_space_is_cut_anywhere(tmp_path: Path) -> None:
    """A line that no sentence or space divides is still read, in pieces that fit."""
    source = await LocalSource.open(folder(tmp_path, {"a.txt": "x" * 1_000_000 + " kariba"}))
    page = await source.page(Ask("kariba"), None)
    assert len(page.passages[0].text) <= MAX_PASSAGE_CHARS
    assert source.passages == 910
    await source.aclose()


def test_html_shows_its_visible_text() -> None:
    """Scripts, styles and navigation go; entities, lists, tables and preformatted lines are as a reader sees them."""
    text = """<!DOCTYPE html><html><head><title>Kariba &amp;
co</title><style>p > a {}</style></head>
<body><nav><p>Menu</p></nav><!-- <p>hidden</p> --><h1>Dams</h1>
<p>The <b>Kariba</b>&nbsp;dam
is&#32;high.</p>
<script>if (a < b && "</nav>") { document.write("<p>x</p>") }</script>
<h2 title="a > b">Facts</h2><ul><li>one</li>
<li>two</ul><table><tr><th>Height<th>Year</tr>
<tr><td>128 m</td><td>1959</td></tr></table>
<pre>
  x = 1
    y</pre><h2>Bare</h2></body></html>"""
    assert passages_of(text) == [
        ("Kariba & co › Dams", 4, "The Kariba dam is high."),
        ("Kariba & co › Dams › Facts", 7, "- one\n- two\n\nHeight\tYear\n128 m\t1959\n\nx = 1\n    y"),
        ("Kariba & co › Dams › Bare", 12, "Bare"),
    ]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("Up to 2<sup>64</sup>, not 10<sup><i>−3</i></sup>.", "Up to 2^64, not 10^−3."),
        ("The 19<sup>th</sup> of x<sup>2</sup>, in 1959<sup>[1]</sup>", "The 19th of x2, in 1959[1]"),
        ("H<sub>2</sub>O: 5<sup></sup>5 and <sup>7</sup>", "H2O: 55 and 7"),
    ],
)
def test_a_power_is_not_read_as_one_number(markup: str, text: str) -> None:
    """A raised number after a digit is marked with ^; ordinals and footnote marks are not."""
    assert [passage for _, _, passage in passages_of(f"<p>{markup}</p>")] == [text]


def test_a_long_heading_opens_a_section_and_stays_evidence() -> None:
    """Its title is cut, nothing of it is lost, and a link to the heading itself is no part of it."""
    long = "Dams " * 30
    text = f"<h1>Rivers<a class='headerlink' href='#rivers'>¶</a></h1><h2>{long}</h2><p>High.</p>"
    ((title, line, passage),) = passages_of(text)
    assert (title, line, passage) == (f"Rivers › {'Dams ' * 22}Dams…", 1, f"{long.strip()}\n\nHigh.")


@pytest.mark.parametrize(
    "text",
    [
        "<p>Kariba<nav>dam",
        "<p>Kariba<nav>Menu</nav>dam",
        "<title>Kariba dam",
        "<p title=don't>Kariba</p> dam",
        "<![if IE]><p>Kariba <!-- dam",
        "<a <b Kariba dam",
        "<svg><title>icon</title></svg>Kariba <3 dam",
        "<p>Kariba</p></nav></h1></p><h1>dam",
        "<a title='>Kariba dam",
    ],
)
def test_malformed_html_loses_no_text(text: str) -> None:
    """A tag that is never closed does not silently take the rest of the document with it."""
    assert {"kariba", "dam"} <= {term for _, _, passage in passages_of(text) for term in terms(passage)}


@pytest.mark.parametrize("head", ["<?xml version='1.0'?>", '<html xmlns="http://www.w3.org/1999/xhtml">'])
@pytest.mark.parametrize("empty", ['<script src="a.js"/>', "<style/>", "<title/>", "<nav />", "<p/>"])
def test_an_empty_element_of_xhtml_hides_nothing_after_it(head: str, empty: str) -> None:
    """A slash closes an element where the text is XHTML; what comes after it is read, and no script is."""
    text = f"{head}{empty}<p>Kariba</p><script>var x = '<b/>';</script><nav>Menu</nav><p>dam</p>"
    assert [passage for _, _, passage in passages_of(text)] == ["Kariba\n\ndam"]


def test_a_section_of_cdata_in_xhtml_is_text() -> None:
    """It holds no markup: what looks like tags in it is text, too, and a script in it stays hidden."""
    text = "<?xml version='1.0'?><p>Kariba <![CDATA[is\n<high> & wide]]>.</p><script><![CDATA[a </b> c]]></script>"
    assert [passage for _, _, passage in passages_of(text)] == ["Kariba is <high> & wide."]
    assert [passage for _, _, passage in passages_of("<p>Kariba <![CDATA[dam]]>.</p>")] == ["Kariba ."]


@pytest.mark.parametrize("name", ["script", "style"])
def test_a_script_that_never_ends_hides_nothing(name: str) -> None:
    """Its text is shown rather than the rest of the document lost; a script that ends stays hidden."""
    text = f"<p>Kariba</p><{name}>hidden</{name}><{name} src='a.js'/><p>dam</p>"
    assert [passage for _, _, passage in passages_of(text)] == ["Kariba\n\ndam"]
    assert "dam" in passages_of(f"<{name}>hidden</{name} <p>dam</p>")[0][2]


@pytest.mark.parametrize(
    "unit",
    [
        *("<![CDATA[", "]]>", "<p/>"),
        *("<a", "<!--", "</", "<!", "<", "<a x='", "<a x=", "&#9", "<script>", "<nav>", "<li>", "<td>"),
        *('=" <a "', "=' <a '", '<a ="', "<a = ", "<pre>\t", " ", "\t", "\n", "\u00ad", "* ", "a. "),
    ],
)
@pytest.mark.parametrize("before", ["", "<pre>a", "<a ", "<?xml?>"])
@pytest.mark.usefixtures("_ends")
def test_hostile_html_does_not_keep_the_reader_busy(unit: str, before: str) -> None:
    """Unclosed markup or spaces without end raise nothing, and their reading ends."""
    passages_of(before + unit * (200_000 // len(unit)) + "x>")


@pytest.mark.parametrize(
    "unit", ["\t", " ", "* ", "a. ", "\u00ad", "\n", "#", "# ", "`", "```\n", " \n", "> ", "|", "."]
)
@pytest.mark.usefixtures("_ends")
def test_hostile_text_does_not_keep_the_reader_busy(unit: str) -> None:
    """300 kB of the same sign are read, as Markdown and as text, and its passages have text."""
    for markup in MARKUPS:
        passages = read_text(f"a{unit * (300_000 // len(unit))}x", markup).passages("a")
        assert all(text for _, _, text in passages)


def test_a_tag_inside_one_that_never_ends_is_still_a_tag() -> None:
    """Markup in a quoted attribute is hidden where the tag is closed; an unclosed tag does not turn it into text."""
    assert [text for _, _, text in passages_of('<p title="<b>bold</b>">Kariba</p>')] == ["Kariba"]
    assert [text for _, _, text in passages_of("<a x=<p>Kariba</p><a <i>dam</i>")] == ["<a x=\n\nKariba\n\n<a dam"]


@given(digits=st.integers(1, 6_000), rest=st.text(max_size=5), prefix=st.sampled_from(["&#", "&#x", "&#X0", "&"]))
def test_no_character_reference_ends_the_reading(digits: int, rest: str, prefix: str) -> None:
    """Whatever number it holds, and whether or not it is closed."""
    assert isinstance(unescaped(prefix + "1" * digits + rest), str)


PIECES = st.one_of(
    st.text(st.characters(exclude_characters="\0"), max_size=8),
    st.sampled_from(
        [
            "# A\n",
            "## B\n",
            "\n\n",
            "```\n",
            "- c\n",
            "A\n===\n",
            "--\nB\n--\n",
            "x" * 700,
            PROSE * 20,
            "大。",
            "\r\n",
            "| t |\n",
        ]
    ),
    st.sampled_from(["<p>", "</p>", "<h1>", "<nav>", "<![", "<!--", "-->", "<a b='", ">", "&amp;", "&#x", "<br>"]),
)


@given(content=st.lists(PIECES).map("".join).filter(lambda content: "\0" not in content))
def test_every_passage_can_be_checked_against_its_file(content: str) -> None:
    """Whatever a file holds, its passages fit, and those of Markdown and text stand in it on the line they name."""
    text = content.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n")
    for name in ("a.md", "a.txt", "a.rst", "a.py", "a.html"):
        for row in Reading(Path(name), kind_of(name), "a", content.encode("utf-8", "replace")):
            number = int(row.place.removeprefix(":"))
            assert 0 < len(row.text) <= MAX_PASSAGE_CHARS
            assert 0 < number <= text.count("\n") + 1
            if name != "a.html":
                assert row.text in text
                assert row.text.split("\n")[0] in text.split("\n")[number - 1]


@pytest.fixture(scope="module")
def dams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, LocalSource]]:
    """One opened folder for many queries, with the loop that it is asked on."""
    with asyncio.Runner() as runner:
        source = runner.run(LocalSource.open(folder(tmp_path_factory.mktemp("dams"), DAMS)))
        yield runner, source
        runner.run(source.aclose())


QUERIES = st.one_of(
    st.text(alphabet=st.characters()),
    st.lists(
        st.sampled_from(['"', "*", "NEAR(", "kariba", "AND", "-", "^", ":", "'", ")", "大坝", "\0", "\ud800"])
    ).map(" ".join),
)


@given(query=QUERIES)
def test_no_query_breaks_the_index(query: str, dams: tuple[asyncio.Runner, LocalSource]) -> None:
    """Any text is answered with matches, with none, or refused as without a word; it is never read as syntax."""
    runner, source = dams
    if terms(query):
        assert runner.run(source.page(Ask(query), None)).total is not None
    else:
        with pytest.raises(SourceError, match="the query holds no word"):
            runner.run(source.page(Ask(query), None))


async def test_a_query_of_thousands_of_words_is_answered(tmp_path: Path) -> None:
    """A model that sends a whole page as a query gets a valid answer."""
    words = " ".join(f"word{n}" for n in range(5_000))
    assert (await asked(folder(tmp_path, {"a.txt": "word1"}), words)).total == 0
