"""Tables as text (CSV, TSV): a few rows a passage, below the line that names the columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from caveat_tools.documents import pieces
from caveat_tools.outcome import MAX_PASSAGE_CHARS

_ROWS_CHARS: Final = 400
_NAMES_CHARS: Final = 500
_MAX_ROW_LINES: Final = 100
_DELIMITERS: Final = ",;\t|"
_QUOTES: Final = re.compile(rf'(^ *+|[{_DELIMITERS}] *+)?+("+)')
_NUMBER: Final = re.compile(r"[-+]?[\d.,]*\d[\d.,%]*")


def passages(text: str, untitled: str) -> Iterator[tuple[str, str, str]]:
    """Yield title, `:LINE` of the first row, and text of each passage: the names of the columns, then rows, verbatim.

    Names that take more than half a passage are cut at one of them.
    """
    rows = [(line, row) for line, row in _rows(text) if row.strip()]
    names = _names(rows[0][1]) if len(rows) > 1 else ""
    head = f"{names}\n" if names else ""
    room = MAX_PASSAGE_CHARS - len(head)
    first, gathered = 0, ""
    for line, row in rows[1:] if names else rows:
        if gathered and len(gathered) + len(row) > _ROWS_CHARS:
            yield untitled, f":{first}", head + gathered.rstrip("\n")
            gathered = ""
        if len(row) > min(room, _ROWS_CHARS):
            for piece in pieces(row):
                for start in range(0, len(piece), room):
                    if part := piece[start : start + room].strip("\n"):
                        yield untitled, f":{line}", head + part
            continue
        first, gathered = (first if gathered else line), f"{gathered}{row}\n"
    if gathered:
        yield untitled, f":{first}", head + gathered.rstrip("\n")


def _rows(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each row. A row goes on where a quoted field does, for 100 lines at most."""
    first, row, is_quoted = 1, "", False
    for number, line in enumerate(text.split("\n"), start=1):
        if not row:
            first = number
        row = f"{row}\n{line}" if row else line
        is_quoted = _is_quoted(line, is_quoted)
        if not is_quoted or number - first >= _MAX_ROW_LINES:
            yield first, row
            row, is_quoted = "", False
    if row:
        yield first, row


def _is_quoted(line: str, is_quoted: bool) -> bool:  # noqa: FBT001 - the state before the line
    """Say whether a quoted field is open at the end of a line. A quote opens one only where a field begins.

    (RFC 4180, section 2; a quote elsewhere is a sign like any other, as in `5" pipe`.)
    """
    for mark in _QUOTES.finditer(line):
        quotes = len(mark[2])
        if is_quoted:
            is_quoted = quotes % 2 == 0
        elif mark[1] is not None:
            is_quoted = quotes % 2 == 1
    return is_quoted


def _names(row: str) -> str:
    """Return the first row if it names columns, cut after a name if it is long; else nothing.

    It names columns if it has several fields and none of them is empty or a number.
    """
    delimiter = max(_DELIMITERS, key=row.count)
    fields = [field.strip().strip('"') for field in row.split(delimiter)]
    if len(fields) < 2 or not all(fields) or any(map(_NUMBER.fullmatch, fields)):
        return ""
    if len(row) <= _NAMES_CHARS:
        return row
    return row[: row.rfind(delimiter, 0, _NAMES_CHARS) + 1] or row[:_NAMES_CHARS]
