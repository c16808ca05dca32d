"""Jupyter notebooks: text cells, code cells and what code has printed (nbformat 3 and 4)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from caveat_tools.documents import Document, Markup, add_text, read_html
from caveat_tools.formats import UnreadableError

_PROSE: Final = ("markdown", "heading")  # no set: in a damaged notebook the type can be a list
_OF_AN_OBJECT: Final = re.compile(r"<[\w.]+ object(?: at \w+)?>")  # what Python prints of what it cannot print


def passages(text: str, untitled: str) -> Iterator[tuple[str, str, str]]:
    """Yield title, `#cell=N` and text of each passage; N is the cell on which it begins. Raises UnreadableError."""
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("it is damaged, or no notebook") from error
    cells = _cells(notebook)
    if cells is None:
        raise UnreadableError("it is no notebook")
    document = Document()
    for number, cell in enumerate(cells, start=1):
        cell_type = _field(cell, "cell_type")
        markup: Markup = "markdown" if cell_type in _PROSE else "plain"
        source = _lines(_field(cell, "source") or _field(cell, "input"))
        for text_markup, part in ((markup, source), *_outputs(cell)):
            if part.strip():
                add_text(document, f"{part.rstrip()}\n", text_markup, number)
    for title, number, passage in document.passages(untitled):
        yield title, f"#cell={number}", passage


def _cells(notebook: Any) -> list[Any] | None:
    """Return the cells, from `cells` or (nbformat 3) from `worksheets`; None if there are neither."""
    if isinstance(cells := _field(notebook, "cells"), list):
        return cells
    sheets = _field(notebook, "worksheets")
    if not isinstance(sheets, list):
        return None
    return [cell for sheet in sheets if isinstance(found := _field(sheet, "cells"), list) for cell in found]


def _outputs(cell: Any) -> Iterator[tuple[Markup, str]]:
    """Yield what a cell has printed, shown or failed with, each in the form that says most and reads best."""
    outputs = _field(cell, "outputs")
    for output in outputs if isinstance(outputs, list) else ():
        yield "plain", _lines(_field(output, "text"))
        data = _field(output, "data")
        printed = _lines(_field(data, "text/plain"))
        if markdown := _lines(_field(data, "text/markdown")):
            yield "markdown", markdown
        elif (not printed or _OF_AN_OBJECT.fullmatch(printed.strip())) and (html := _lines(_field(data, "text/html"))):
            yield "plain", read_html(html).text()
        else:
            yield "plain", printed
        yield "plain", ": ".join(filter(None, (_lines(_field(output, name)) for name in ("ename", "evalue"))))


def _lines(value: Any) -> str:
    """Return a multi-line string of the format: one string, or a list of them."""
    if isinstance(value, list):
        value = "".join(each for each in value if isinstance(each, str))
    return value.replace("\r\n", "\n").replace("\r", "\n") if isinstance(value, str) else ""


def _field(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else None
