"""Differences between two requests as lines: recorded and asked now, and in words what cannot be seen."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Final

from caveat_tools.plain_text import plain

ROOM: Final = 42
"""Lines for all that differs. A line of more than LONG bytes counts as two, and so on."""

LONG: Final = 140
WIDTH: Final = 120
"""Characters of a line that are shown."""

MAX_SIDE: Final = 6
"""Lines in a row that are shown of either side."""

MAX_COMPARED: Final = 400
"""Lines that are compared, after those that are equal at both ends."""

MAX_PLACES: Final = 6
"""Places where two requests differ that are shown; others are named."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where requests differ, and the lines that stand there. Without lines, the title says it all."""

    title: str
    before: Sequence[str] = ()
    now: Sequence[str] = ()
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class _Row:
    """A line that is shown, and how many differing lines it stands for."""

    text: str
    differing: int = 0

    @property
    def cost(self) -> int:
        return 1 + len(self.text.encode()) // LONG


def in_lines(differences: Sequence[Difference]) -> list[str]:
    """Return the differences within ROOM: each has an equal share of what those that need less have left."""
    places = [[_Row(""), _title(each), *_rows(each)] for each in differences[:MAX_PLACES]]
    costs = [sum(row.cost for row in rows) for rows in places]
    shares, room = [0] * len(places), ROOM
    for done, number in enumerate(sorted(range(len(places)), key=costs.__getitem__)):
        shares[number] = min(costs[number], room // (len(places) - done))
        room -= shares[number]
    lines = [row.text for rows, share in zip(places, shares, strict=True) for row in _within(rows, share)]
    if further := differences[MAX_PLACES:]:
        lines += ["", clipped(f"{len(further)} further places: {'; '.join(each.title for each in further)}", WIDTH)]
    return lines or ["", "nothing that can be shown"]


def _title(difference: Difference) -> _Row:
    return _Row(clipped(difference.title, WIDTH) + (":" if difference.before or difference.now else ""))


def _within(rows: Sequence[_Row], room: int) -> Sequence[_Row]:
    """Return the first rows, as far as there is room, and how many lines differ in the others."""
    if sum(row.cost for row in rows) <= room:
        return rows
    kept = 0
    while (room := room - rows[kept].cost) > 0:
        kept += 1
    return [*rows[:kept], _Row(f"  … {sum(row.differing for row in rows[kept:])} more lines differ")]


def _rows(difference: Difference) -> Iterator[_Row]:
    """Yield the lines that differ, each with two lines around it."""
    before, now = difference.before, difference.now
    head = _common(before, now)
    tail = min(_common(before[::-1], now[::-1]), len(before) - head, len(now) - head)
    one, other = (side[head : len(side) - tail] for side in (before, now))
    compared = one[:MAX_COMPARED], other[:MAX_COMPARED]
    width = len(str(head + len(other) + 2)) + 1 if difference.numbered else 0
    yield from _context(now[:head][-2:], max(0, head - 2), width)
    for number, group in enumerate(SequenceMatcher(None, *compared).get_grouped_opcodes(2)):
        if number:
            yield _Row("    ⋮")
        for kind, start, end, now_start, now_end in group:
            lines = compared[1][now_start:now_end]
            if kind == "equal":
                yield from _context(lines, head + now_start, width)
            else:
                yield from _hunk(compared[0][start:end], lines, (head + start, head + now_start), width)
    if (further := max(len(one), len(other)) - MAX_COMPARED) > 0:
        yield _Row(f"  … {further} further lines are not compared", further)
    yield from _context(now[len(now) - tail :][:2], head + len(other), width)


def _context(lines: Sequence[str], first: int, width: int) -> Iterator[_Row]:
    return _numbered(" ", [clipped(line, WIDTH) for line in lines], first, width)


def _numbered(sign: str, lines: Sequence[str], first: int, width: int) -> Iterator[_Row]:
    for number, line in enumerate(lines, first + 1):
        yield _Row(f"  {sign}{number:{width}}  {line}" if width else f"  {sign} {line}", int(sign != " "))


def _hunk(before: Sequence[str], now: Sequence[str], firsts: tuple[int, int], width: int) -> Iterator[_Row]:
    """Yield lines that stand for each other: the recorded ones, those of now, and in words what cannot be seen."""
    pairs = list(zip_longest(before[:MAX_SIDE], now[:MAX_SIDE]))
    windows = [_window(*pair) for pair in pairs]
    for sign, lines, first in (("-", before, firsts[0]), ("+", now, firsts[1])):
        shown = [_changed(line, window) for line, window in zip(lines, windows, strict=False)]
        yield from _numbered(sign, shown, first, width)
        if (further := len(lines) - MAX_SIDE) > 0:
            yield _Row(f"  {sign} … {further} more lines", further)
    if said := next(filter(None, (_unseen(*pair) for pair in pairs if None not in pair)), ""):
        yield _Row(f"  ? {said}")


def _window(before: str | None, now: str | None) -> int:
    """Return from where on two lines are shown: long ones from a little before the first character that differs."""
    longest = max(len(before or ""), len(now or ""))
    return max(0, min(_common(before, now) - WIDTH // 3, longest - WIDTH)) if before and now else 0


def _changed(text: str, start: int) -> str:
    """Return a line from `start` on. One without a visible character stands in quotes, or nobody would see it."""
    if not text.strip():
        return f'"{clipped(text, WIDTH)}"'
    return ("…" if start else "") + clipped(text[start:], WIDTH)


def _unseen(before: str, now: str) -> str:
    """Say how two lines differ whose difference cannot be seen, in white space or alphabet; nothing of any others."""
    where = _common(before, now)
    one, other = before[where : where + 1], now[where : where + 1]
    rest = slice(max(0, where - 1), where + 10_000)
    seen = [" ".join(unicodedata.normalize("NFKC", text[rest]).split()) for text in (before, now)]
    if seen[0] == seen[1] or (one.isalpha() and other.isalpha() and _alphabet(one) != _alphabet(other)):
        return f"character {where + 1}: {_named(one)} recorded, {_named(other)} now"
    return ""


def _alphabet(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


def _named(char: str) -> str:
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip() if char else "the end of the line"


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Count the characters, or lines, before the first that differs."""
    shorter = range(min(len(one), len(other)))
    return bisect_left(shorter, True, key=lambda end: one[: end + 1] != other[: end + 1])  # noqa: FBT003 - what is sought


def clipped(text: str, limit: int) -> str:
    """Return the beginning of a text on one line, with all that acts on a terminal or hides spelt out."""
    shown = visible(text[:limit])
    return shown if len(text) <= limit and len(shown) <= limit else shown[: limit - 1] + "…"


def visible(text: str) -> str:
    r"""Spell out controls, bidi and zero-width characters, such as \x1b or \u202e."""
    text = text.replace("\n", "\\n").replace("\t", "\\t")
    if plain(text) == text:
        return text
    return plain("".join(char if plain(char) == char else char.encode("unicode_escape").decode() for char in text))
