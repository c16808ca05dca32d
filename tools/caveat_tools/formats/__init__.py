"""The formats of documents, one file each: what kind a file is, how large it may be, and how its passages are read.

A reader yields title, place and text of each passage, in order. The place is the end of the passage's address:

| format | place | |
| --- | --- | --- |
| text, Markdown, reStructuredText, HTML | `notes/a.md:12` | the line on which it begins |
| tables (.csv, .tsv) | `table.csv:17` | the line of its first row; the names of the columns stand above it |
| PDF | `papers/b.pdf#page=3` | the page, counted from 1 |
| Word | `letter.docx#paragraph=9` | the paragraph, heading, list item or row of a table, counted from 1 |
| EPUB | `book.epub#chapter=4` | the document in the book's order of reading, counted from 1 |
| notebooks | `x.ipynb#cell=4` | the cell, counted from 1 |

The text of a passage stands in the document as it is, since quotes are checked against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from caveat_tools.decoding import decode, decode_html
from caveat_tools.documents import Markup, read_html, read_text
from caveat_tools.own_report import LEFT_OUT, is_report
from caveat_tools.words import terms

Kind = Literal["plain", "markdown", "rst", "html", "table", "notebook", "pdf", "word", "epub", "unknown"]

_SUFFIXES: Final[dict[Kind, str]] = {
    "markdown": ".md .markdown .mdown .mkd .qmd .rmd",
    "plain": ".txt .text",
    "rst": ".rst .rest",
    "html": ".html .htm .xhtml",
    "table": ".csv .tsv",
    "notebook": ".ipynb",
    "pdf": ".pdf",
    "word": ".docx .docm .dotx",
    "epub": ".epub",
}
KINDS: Final[dict[str, Kind]] = {suffix: kind for kind, group in _SUFFIXES.items() for suffix in group.split()}
"""The kinds that are read, by lower-case suffix. Every other file is `unknown`: read as plain text if it is text."""


def _suffixes(named: str) -> frozenset[str]:
    return frozenset(named.split())


UNREADABLE: Final = _suffixes(
    """.doc .rtf .wpd .wps .pages .odt .ott .fodt .xls .xlsx .xlsm .xlsb .ods .numbers .ppt .pptx .pps .odp
    .mobi .azw .azw3 .djvu .djv .ps .eps .chm .hlp .one .msg .pst .mht .webarchive .xps .oxps"""
)
"""Documents of kinds that are not read: each could hold evidence."""

WITHOUT_TEXT: Final = _suffixes(
    """.png .jpg .jpeg .gif .bmp .tif .tiff .webp .heic .heif .avif .ico .icns .svg .psd .ai .xcf .raw .cr2 .nef .dng
    .mp3 .wav .flac .ogg .oga .opus .m4a .aac .wma .mid .mp4 .m4v .mkv .avi .mov .wmv .webm .mpg .mpeg .flv .3gp
    .zip .gz .tgz .bz2 .xz .zst .7z .rar .tar .lz4 .jar .war .whl .egg .deb .rpm .apk .dmg .iso .img .cab .msi
    .exe .dll .so .dylib .o .a .lib .obj .class .pyc .pyo .pyd .wasm .bin .elf
    .sqlite .sqlite3 .db .mdb .accdb .dbf .parquet .feather .arrow .h5 .hdf5 .npy .npz .pkl .pickle .pt .pth .onnx
    .safetensors .gguf .ttf .otf .woff .woff2 .eot .blend .stl .glb .fbx .dwg .swf .torrent"""
)
"""Pictures, sound, films, archives, programs, databases: counted and never opened."""

APART: Final[frozenset[Kind]] = frozenset({"pdf", "word", "epub"})
"""Kinds that are read in a process of their own, whatever their size."""

MAX_BYTES: Final[dict[Kind, int]] = {"pdf": 200_000_000, "word": 100_000_000, "epub": 100_000_000}
"""The largest file of a kind; of the others it is MAX_TEXT_BYTES."""
MAX_TEXT_BYTES: Final = 20_000_000


class UnreadableError(Exception):
    """A document, or the rest of it, cannot be read; what was yielded before stands. The message is one clause."""


class NoTextError(Exception):
    """The file is not text."""


@dataclass(frozen=True, slots=True)
class Row:
    """A passage as the index keeps it; `heading` and `body` are the terms of title and text, parted by spaces."""

    heading: str
    body: str
    place: str
    title: str
    text: str


def kind_of(path: str) -> Kind:
    """Return the kind of a file by its suffix."""
    return KINDS.get(Path(path).suffix.lower(), "unknown")


def max_bytes(kind: Kind) -> int:
    """Return how large a file of a kind may be to be read."""
    return MAX_BYTES.get(kind, MAX_TEXT_BYTES)


class Reading:
    """The reading of one document: iterate for its rows. `guess` is its encoding if that had to be guessed."""

    def __init__(self, path: Path, kind: Kind, untitled: str, data: bytes | None = None) -> None:
        """Give the file's content as `data` if it is there already; the kinds of APART are read from `path` always."""
        self.guess: str | None = None
        self._path = path
        self._kind = kind
        self._untitled = untitled
        self._data = data

    def __iter__(self) -> Iterator[Row]:
        """Yield the passages that hold a word.

        Raises UnreadableError, NoTextError or OSError, also after some passages.
        """
        for title, place, text in self._passages():
            sound = _UNSTORED.sub("\ufffd", text)
            if body := _body(sound):
                titled = _UNSTORED.sub("\ufffd", title)
                yield Row(" ".join(terms(titled)), body, place, titled, sound)

    def _passages(self) -> Iterator[tuple[str, str, str]]:
        # The libraries behind these are imported where they are needed: in the process that reads such documents.
        if self._kind == "pdf":
            from caveat_tools.formats.pdf import passages  # noqa: PLC0415 - see above
        elif self._kind == "word":
            from caveat_tools.formats.word import passages  # noqa: PLC0415 - see above
        elif self._kind == "epub":
            from caveat_tools.formats.epub import passages  # noqa: PLC0415 - see above
        else:
            return self._text_passages()
        return passages(self._path, self._untitled)

    def _text_passages(self) -> Iterator[tuple[str, str, str]]:
        if self._data is None:
            with self._path.open("rb") as file:
                self._data = file.read(MAX_TEXT_BYTES + 1)
        data, self._data = self._data, None
        if len(data) > MAX_TEXT_BYTES:
            raise UnreadableError("it grew while it was read")
        decoded = decode_html(data) if self._kind == "html" else decode(data)
        if decoded is None:
            raise NoTextError
        text, self.guess = decoded
        if self._kind == "table":
            from caveat_tools.formats.table import passages as of_table  # noqa: PLC0415 - as the others

            yield from of_table(text, self._untitled)
        elif self._kind == "notebook":
            from caveat_tools.formats.notebook import passages as of_notebook  # noqa: PLC0415 - as the others

            yield from of_notebook(text, self._untitled)
        elif self._kind != "html" and is_report(text):
            raise UnreadableError(LEFT_OUT)
        else:
            markup: Markup = self._kind if self._kind in {"markdown", "rst"} else "plain"
            is_xhtml = self._path.suffix.lower() == ".xhtml"
            document = read_html(text, is_xhtml=is_xhtml) if self._kind == "html" else read_text(text, markup)
            for title, line, passage in document.passages(self._untitled):
                yield title, f":{line}", passage


_UNSTORED: Final = re.compile("[\ud800-\udfff\0]")  # SQLite takes no lone surrogate, and ends a text at NUL
_BROKEN: Final = re.compile("[-\u00ad\u2010]\n")
_HYPHENATED: Final = re.compile(r"(?<![^\W\d_])([^\W\d_]++)[-\u00ad\u2010]\n([^\W\d_]++)")


def _body(text: str) -> str:
    """Return the terms of a text; a word that is broken at a line's end is in it as two and as one."""
    if _BROKEN.search(text):
        text = " ".join([text, *(f"{word[1]}{word[2]}" for word in _HYPHENATED.finditer(text))])
    return " ".join(terms(text))
