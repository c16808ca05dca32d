"""EPUB: the chapters of a book in its order of reading, each read as HTML."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote
from xml.etree.ElementTree import Element, ParseError
from xml.etree.ElementTree import fromstring as parsed_xml
from zipfile import ZipFile

from caveat_tools.decoding import decode_html
from caveat_tools.documents import read_html
from caveat_tools.formats import UnreadableError
from caveat_tools.formats.archive import checked, member
from caveat_tools.plain_text import clip

_CONTAINER: Final = "META-INF/container.xml"
_LONGEST_TITLE: Final = 120  # it stands above each passage
_HTML: Final = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def passages(path: Path, untitled: str) -> Iterator[tuple[str, str, str]]:
    """Yield title, `#chapter=N` and text of each passage; N counts the documents of the spine from 1.

    Raises UnreadableError at once for what is no book, and at the end for chapters that cannot be read.
    """
    with path.open("rb") as file, checked(file) as archive:
        root = _xml(member(archive, _CONTAINER))
        package = next((each.get("full-path") for each in root.iter() if _name(each) == "rootfile"), None)
        if not package:
            raise UnreadableError("it does not say where its chapters are")
        book = _xml(member(archive, package))
        title = next((" ".join(each.itertext()) for each in book.iter() if _name(each) == "title"), "")
        top = clip(" ".join(title.split()), _LONGEST_TITLE)[0] or untitled
        unread: list[int] = []
        for number, name in enumerate(_spine(book, posixpath.dirname(package)), start=1):
            text = name and _chapter(archive, name)
            if text is None:
                unread.append(number)
                continue
            document = read_html(text, is_xhtml=True)
            document.title = top
            for headings, _, passage in document.passages(top):
                yield headings, f"#chapter={number}", passage
        if unread:
            raise UnreadableError(
                f"{len(unread)} of its chapters cannot be read: they are missing, damaged, locked or no text"
            )


def _chapter(archive: ZipFile, name: str) -> str | None:
    try:
        decoded = decode_html(member(archive, name))
    except UnreadableError:
        return None
    return decoded and decoded[0]


def _spine(book: Element, folder: str) -> Iterator[str | None]:
    """Yield the name of each chapter within the archive; None for one that is not listed or not HTML."""
    items = {
        each.get("id"): posixpath.normpath(posixpath.join(folder, unquote(each.get("href", ""))))
        for each in book.iter()
        if _name(each) == "item" and each.get("media-type") in _HTML
    }
    for each in book.iter():
        if _name(each) == "itemref":
            yield items.get(each.get("idref"))


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _xml(data: bytes) -> Element:
    """Parse XML. Entities that grow without end are refused by expat itself (since 2.4.1, of 2021)."""
    try:
        return parsed_xml(data)  # noqa: S314 - see above; and this runs in a process with bounds
    except (ParseError, ValueError, LookupError) as error:
        raise UnreadableError("its list of chapters is damaged") from error
