"""PDF, read with PDFium: the text of each page, under the bookmarks that lead to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import pypdfium2
import pypdfium2.raw as pdfium

from caveat_tools.documents import pieces
from caveat_tools.formats import UnreadableError
from caveat_tools.plain_text import clip

_MAX_BOOKMARKS: Final = 5_000
_MAX_PAGES: Final = 20_000
_MAX_PAGE_CHARS: Final = 1_000_000
_LONGEST_HEADING: Final = 120
_PICTURES_LOOKED_FOR: Final = 200
# Text can be drawn as curves, and then there are no letters.
_PICTURES: Final = frozenset({pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_PATH, pdfium.FPDF_PAGEOBJ_SHADING})
_PAGES_NAMED: Final = 5
_REASONS: Final = {
    pdfium.FPDF_ERR_PASSWORD: "it is locked with a password",
    pdfium.FPDF_ERR_SECURITY: "it is protected in a way that cannot be read",
    pdfium.FPDF_ERR_FORMAT: "it is damaged, or no PDF",
    pdfium.FPDF_ERR_FILE: "it cannot be opened",
}
# What programs write into the field for the title when nobody did: the name of a file, or their own.
_NO_TITLE: Final = re.compile(
    r"untitled.*|\(anonymous\)|.*\.(?:docx?|dvi|tex|indd|qxd|pptx?|xlsx?|rtf|odt|pdf|ps)|.*\s-\s.*\.\w+", re.IGNORECASE
)
_HYPHEN: Final = re.compile("[\x02\ufffe]\n?")  # so PDFium gives the hyphen of a word that goes on in the next line


def passages(path: Path, untitled: str) -> Iterator[tuple[str, str, str]]:
    """Yield title, `#page=N` and text of each passage. No passage crosses a page.

    Raises UnreadableError at once for what PDFium cannot open, and at the end for pages that are pictures.
    """
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        raise UnreadableError(_REASONS.get(error.err_code, "it is damaged, or no PDF")) from error
    with document:
        top = _title(document) or untitled
        bookmarks = _bookmarks(document)
        above: list[tuple[int, str]] = []
        pictures: list[int] = []
        damaged: list[int] = []
        pages = min(len(document), _MAX_PAGES)
        for number in range(1, pages + 1):
            try:
                text, is_picture = _page(document, number - 1)
            except pypdfium2.PdfiumError:
                damaged.append(number)
                continue
            if is_picture:
                pictures.append(number)
            for part in _under(text, bookmarks.get(number, []), above):
                title = " › ".join([top, *(heading for _, heading in above)])
                for piece in pieces(part):
                    if piece.strip():
                        yield title, f"#page={number}", piece.strip()
        if len(document) > _MAX_PAGES:
            raise UnreadableError(f"only its first {_MAX_PAGES} pages are read")
    if len(pictures) == pages > 0:
        raise UnreadableError("its pages are pictures without text, as of a scan")
    reasons = [
        *_pages(pictures, "is a picture without text", "are pictures without text"),
        *_pages(damaged, "is damaged", "are damaged"),
    ]
    if reasons:
        raise UnreadableError(", and ".join(reasons))


def _page(document: pypdfium2.PdfDocument, index: int) -> tuple[str, bool]:
    """Return the text of a page, and whether it is a picture without any."""
    page = document[index]
    try:
        textpage = page.get_textpage()
        try:
            text = textpage.get_text_range(0, min(textpage.count_chars(), _MAX_PAGE_CHARS))
        finally:
            textpage.close()
        if text.strip():
            return _HYPHEN.sub("-\n", text.replace("\r\n", "\n").replace("\r", "\n")), False
        objects = islice(page.get_objects(max_depth=3), _PICTURES_LOOKED_FOR)
        return "", any(each.type in _PICTURES for each in objects)
    finally:
        page.close()


def _title(document: pypdfium2.PdfDocument) -> str | None:
    title = " ".join(document.get_metadata_value("Title").split())
    return None if not title or _NO_TITLE.fullmatch(title) else clip(title, _LONGEST_HEADING)[0]


def _bookmarks(document: pypdfium2.PdfDocument) -> dict[int, list[tuple[int, str]]]:
    """Return level and heading of the bookmarks by page."""
    found: dict[int, list[tuple[int, str]]] = {}
    try:
        for bookmark in islice(document.get_toc(max_depth=8), _MAX_BOOKMARKS):
            target = bookmark.get_dest()
            index = target.get_index() if target else None
            heading = clip(" ".join(bookmark.get_title().split()), _LONGEST_HEADING)[0]
            if index is not None and heading:
                found.setdefault(index + 1, []).append((bookmark.level, heading))
    except pypdfium2.PdfiumError:  # a damaged outline hides no page
        return found
    return found


def _under(text: str, bookmarks: list[tuple[int, str]], above: list[tuple[int, str]]) -> Iterator[str]:
    """Yield the parts of a page, keeping in `above` the headings over each.

    A bookmark opens its part at the line that ends with its heading, after the one before; where there is no such line,
    it holds from where the last part began.
    """
    begin = position = 0
    for level, heading in bookmarks:
        words = r"\s+".join(map(re.escape, heading.split()))
        line = re.compile(rf"^.{{0,20}}{words}\s*$", re.MULTILINE).search(text, position)
        if line:
            yield text[begin : line.start()]
            begin, position = line.start(), line.end()
        while above and above[-1][0] >= level:
            above.pop()
        above.append((level, heading))
    yield text[begin:]


def _pages(numbers: list[int], one: str, several: str) -> Iterator[str]:
    """Yield the clause that says of some pages what is the matter with them, if there are any."""
    named = ", ".join(map(str, numbers[:_PAGES_NAMED])) + (", …" if len(numbers) > _PAGES_NAMED else "")
    if numbers:
        yield f"page {named} {one}" if len(numbers) == 1 else f"pages {named} {several}"
