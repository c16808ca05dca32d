"""Text from sources and models, made harmless before it is stored or shown.

`plain` is for storage and terminals, `one_line` for titles and tables, `markdown_text` for reports. All are pure, and
take time linear in the length of their input.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

MAX_MARKS: Final = 8
"""Combining marks in a row that are kept; no script stacks more, and longer runs paint over neighbouring lines."""

_LINE_BREAK = re.compile(r"\r\n|[\r\v\f\x85\u2028\u2029]")
_ESCAPE_SEQUENCE = re.compile(
    r"""
    (?: \x1b[\]PX^_] | [\x90\x98\x9d-\x9f] ) [^\x00-\x08\x0b-\x1f\x7f-\x9f]*+ (?: \x07 | \x1b\\ | \x9c )  # OSC, DCS, …
  | \x1b[\]PX^_] [^\x00-\x1f\x7f-\x9f]{0,4096}      # the same without an end: the rest of the line
  | (?: \x1b\[ | \x9b ) [0-?]* [\x20-/]* [@-~]?     # CSI: colours, cursor
  | \x1b [\x20-/]* [0-~]?                           # character sets, resets
    """,
    re.VERBOSE,
)
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidi controls
    r"\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"  # zero width, annotation marks
    r"\U000e0000-\U000e007f]+"  # tag characters
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_JOINERS: Final = "\u200c\u200d"
_JOINER = re.compile(f"[{_JOINERS}]")
_JOINED_SCRIPT = re.compile(
    r"[\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc"  # Arabic to Mongolian
    r"\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]"  # emoji
)
_POSSIBLE_MARKS = re.compile(rf"[^\w\s\x00-\x7f]{{{MAX_MARKS + 1},}}")


def plain(text: str) -> str:
    r"""Return `text` with nothing in it that acts on a terminal, hides, reorders or overprints.

    Escape sequences go whole (payload included), as do controls other than \n and \t, bidi controls, zero-width and
    tag characters; every other line break becomes \n; a lone surrogate becomes U+FFFD; a run of combining marks is
    cut to MAX_MARKS. Zero-width joiners stay where Arabic, Indic scripts and emoji need them. Idempotent.
    """
    text = _LINE_BREAK.sub("\n", text)
    text = _ESCAPE_SEQUENCE.sub("", text)
    text = _UNSEEN.sub("", text)
    text = _SURROGATE.sub("\ufffd", text)
    text = _POSSIBLE_MARKS.sub(_fewer_marks, text)
    return _JOINER.sub(_joiner_where_needed, text)


def clip(text: str, limit: int) -> tuple[str, bool]:
    """Cut `text` to `limit` characters at a word boundary if one is near; say whether anything was cut."""
    if len(text) <= limit:
        return text, False
    cut = text[: limit - 1]
    space = cut.rfind(" ", limit - 60 if limit > 120 else 0)
    return (cut[:space] if space > 0 else cut).rstrip() + "…", True


def one_line(text: str, limit: int) -> str:
    """Return `plain(text)` on one line, whitespace collapsed, at most `limit` (≥ 1) characters; a cut ends in `…`."""
    return clip(" ".join(plain(text).split()), limit)[0]


_MARKDOWN = re.compile(
    r"""
    [\\`*\[\]|~]                        # escapes, code, emphasis, links, images, tables, strike-through
  | (?<![^\W_])_ | _(?![^\W_])          # emphasis; within a word (snake_case) it is none
  | <(?=[^\s\d=]|\Z)                    # tags, comments, autolinks; not p < 0.05
  | &(?=\#?\w+;)                        # entities
  | (?<!\S)\#                           # headings and their closing marks; not C#
  | !\Z                                 # an image, should a link follow
  | :(?=//) | (?<=www)\. | @(?=\w)      # addresses that GitHub links by itself
    """,
    re.VERBOSE,
)
_LINE_START = re.compile(
    r"""^[ \t]*+ (?:
        (?P<number>[0-9]{1,9}) (?=[.)](?:\s|$))          # ordered lists
      | (?P<mark>) (?=[=>] | [-+](?:[-+\s]|$) | :-)     # underlined headings, quotes, lists, rules, tables
    )?""",
    re.MULTILINE | re.VERBOSE,
)


def markdown_text(text: str) -> str:
    """Return Markdown that shows `plain(text)` and nothing else: no link, image, heading, list, tag, entity or code.

    Indentation goes, since it means code. Line breaks stay: use `one_line` first for a heading or a table cell.
    """
    text = _MARKDOWN.sub(r"\\\g<0>", plain(text))
    return _LINE_START.sub(_escaped_line_start, text)


def _fewer_marks(match: re.Match[str]) -> str:
    """Cut each run of combining marks in the match; joiners count as marks, or removing them would make new runs."""
    kept, run = [], 0
    for char in match[0]:
        run = run + 1 if char in _JOINERS or unicodedata.category(char).startswith("M") else 0
        if run <= MAX_MARKS:
            kept.append(char)
    return "".join(kept)


def _joiner_where_needed(match: re.Match[str]) -> str:
    neighbours = match.string[max(0, match.start() - 1) : match.end() + 1]
    return match[0] if len(neighbours) == 3 and all(map(_is_joined, neighbours[::2])) else ""


def _is_joined(char: str) -> bool:
    return _JOINED_SCRIPT.match(char) is not None and not char.isnumeric()


def _escaped_line_start(match: re.Match[str]) -> str:
    if match["number"]:
        return match["number"] + "\\"
    return "" if match["mark"] is None else "\\"
