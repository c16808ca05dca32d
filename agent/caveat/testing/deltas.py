"""Texts that a Messages API streams in pieces: a block's text, thinking or arguments, in one delta after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final


def with_pieces(events: Sequence[Any], change: Callable[[list[str]], Sequence[str | None]]) -> list[Any]:
    """Return a stream's events with the pieces of each block changed; an event whose piece becomes None is left out.

    `change` gets the pieces of one block in order, and returns as many.
    """
    blocks: dict[tuple[Any, str], list[int]] = {}
    for number, event in enumerate(events):
        name = _name_of_text(event)
        if name is not None:
            blocks.setdefault((event["data"].get("index"), name), []).append(number)
    changed = list(events)
    for (_, name), numbers in blocks.items():
        pieces = change([events[number]["data"]["delta"][name] for number in numbers])
        for number, piece in zip(numbers, pieces, strict=True):
            changed[number] = None if piece is None else _with_text(events[number], name, piece)
    return [event for event in changed if event is not None]


_TEXTS: Final = {"text_delta": "text", "input_json_delta": "partial_json", "thinking_delta": "thinking"}


def _name_of_text(event: Any) -> str | None:
    """Return the name of the field that holds an event's piece, if it has one."""
    match event:
        case {"data": {"delta": {"type": str(kind), **delta}, **data}} if isinstance(data.get("index"), int | None):
            name = _TEXTS.get(kind)
            return name if name and isinstance(delta.get(name), str) else None
    return None


def _with_text(event: Mapping[str, Any], name: str, text: str) -> dict[str, Any]:
    data = event["data"]
    return {**event, "data": {**data, "delta": {**data["delta"], name: text}}}
