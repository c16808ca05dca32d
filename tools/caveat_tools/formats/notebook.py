"""Jupyter notebooks: text cells, code cells and what code has printed (nbformat 3 and 4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from caveat_tools.documents import Document, add_text
from caveat_tools.formats import UnreadableError


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
        is_prose = _field(cell, "cell_type") in {"markdown", "heading"}
        for part in (_lines(_field(cell, "source") or _field(cell, "input")), *_outputs(cell)):
            if part.strip():
                add_text(document, f"{part.rstrip()}\n", "markdown" if is_prose else "plain", number)
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


def _outputs(cell: Any) -> Iterator[str]:
    """Yield what a cell has printed or shown, as far as it is plain text."""
    outputs = _field(cell, "outputs")
    for output in outputs if isinstance(outputs, list) else ():
        yield _lines(_field(output, "text") or _field(_field(output, "data"), "text/plain"))


def _lines(value: Any) -> str:
    """Return a multi-line string of the format: one string, or a list of them."""
    if isinstance(value, list):
        value = "".join(each for each in value if isinstance(each, str))
    return value.replace("\r\n", "\n").replace("\r", "\n") if isinstance(value, str) else ""


def _field(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else None
