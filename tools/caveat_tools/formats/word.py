"""Word (.docx), read with mammoth: headings, paragraphs, lists, tables and footnotes."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.parsers.expat import ExpatError

import mammoth

from caveat_tools.documents import read_html
from caveat_tools.formats import UnreadableError
from caveat_tools.formats.archive import checked, member

_COMPOUND_FILE: Final = b"\xd0\xcf\x11\xe0"  # what holds an encrypted .docx, and every .doc
# mammoth trusts the form of what it reads, and has no error of its own.
_FROM_DAMAGE: Final = (
    *(ExpatError, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, RecursionError),
    *(AttributeError, IndexError, KeyError, TypeError, ValueError),
)
_DOCUMENT: Final = re.compile(r"word/document\w*\.xml")
_OTHER_FORMAT: Final = b":altChunk "
_PICTURE: Final = re.compile(rb"<\w+:(?:drawing|pict|object)\b")
_BLOCK_END: Final = re.compile(r"</(?:p|li|h[1-6]|tr)>")
_PARAGRAPH_IN_CELL: Final = re.compile(r"(?<=<td>)<p>|(?<=<th>)<p>|</p>(?=</t[dh]>)")


def passages(path: Path, untitled: str) -> Iterator[tuple[str, str, str]]:
    """Yield title, `#paragraph=N` and text of each passage.

    Raises UnreadableError, at the end where all or a part of it is no text.
    """
    with path.open("rb") as file:
        if file.read(4) == _COMPOUND_FILE:
            raise UnreadableError("it is locked with a password, or in Word's old format")
        file.seek(0)
        with checked(file) as archive:
            parts = [member(archive, name) for name in archive.namelist() if _DOCUMENT.fullmatch(name)]
        file.seek(0)
        try:
            html = mammoth.convert_to_html(file, convert_image=mammoth.images.img_element(lambda _: {})).value
        except _FROM_DAMAGE as error:
            raise UnreadableError("it is damaged, or no Word document") from error
    by_paragraph = _BLOCK_END.sub("\\g<0>\n", _PARAGRAPH_IN_CELL.sub("", html.replace("\n", " ")))
    has_text = False
    for title, number, text in read_html(by_paragraph).passages(untitled):
        has_text = True
        yield title, f"#paragraph={number}", text
    if any(_OTHER_FORMAT in part for part in parts):
        raise UnreadableError("a part of it is a document of another format")
    if not has_text and any(map(_PICTURE.search, parts)):
        raise UnreadableError("it holds pictures without text")
