"""Documents: Markdown, reStructuredText, plain text and HTML are read, and what was read is cut into passages.

Passages are 600 to 1 100 characters long where the paragraphs allow; each knows the headings above it and its place: a
line, or what else a format counts. Nothing here opens a file. `caveat_tools.formats` builds on it.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from caveat_tools.outcome import MAX_PASSAGE_CHARS
from caveat_tools.plain_text import clip
from caveat_tools.words import sentence_spans

Markup = Literal["plain", "markdown", "rst"]

_ENOUGH_CHARS: Final = 600
_ROOM_CHARS: Final = 1_100
_LONGEST_HEADING: Final = 120
_LONGEST_PARAGRAPH: Final = 100_000  # a log has no blank lines, and is not taken apart into sentences in one piece


# ---- text to passages


@dataclass(slots=True)
class _Section:
    """A heading with its path, and the paragraphs below it up to the next heading, each with its place.

    Joined, the paragraphs of a section are its text, blank lines included.
    """

    headings: tuple[str, ...] = ()
    own: tuple[int, str] | None = None
    paragraphs: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Document:
    """A document that was read: its title, if it names itself, and its sections.

    Filled by `add_text` or made by `read_html`.
    """

    title: str | None = None
    sections: list[_Section] = field(default_factory=lambda: [_Section()])
    _above: list[tuple[int, str]] = field(default_factory=list)

    def open_section(self, level: int, heading: str, place: int, verbatim: str) -> None:
        """Begin a section; the first heading of level 1 names a document that has no title yet."""
        while self._above and self._above[-1][0] >= level:
            self._above.pop()
        self._above.append((level, heading))
        self.sections.append(_Section(tuple(each for _, each in self._above), (place, verbatim)))
        if level == 1 and self.title is None:
            self.title = heading

    def text(self) -> str:
        """Return all of its text, headings included, parted by blank lines."""
        return "\n\n".join(
            part.strip()
            for each in self.sections
            for part in (each.own[1] if each.own else "", "".join(text for _, text in each.paragraphs))
            if part.strip()
        )

    def passages(self, untitled: str) -> Iterator[tuple[str, int, str]]:
        """Yield title, place (a 1-based line, if nothing else was said) and text of each passage, in order.

        The title is that of the document, or `untitled`, and the headings above the passage, parted by " › ".
        """
        top = self.title or untitled
        below = [*self.sections[1:], _Section()]
        for section, following in zip(self.sections, below, strict=True):
            paragraphs = section.paragraphs
            if not paragraphs and section.own and following.headings[:-1] != section.headings:
                paragraphs = [section.own]  # a heading with nothing below it is evidence of its own
            title = " › ".join(section.headings if section.headings[:1] == (top,) else (top, *section.headings))
            for place, text in _grouped(paragraphs):
                if text:
                    yield title, place, text


def _grouped(paragraphs: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join neighbouring paragraphs to passages of about 600 to 1 100 characters, with the line of the first."""
    first, text = 0, ""
    for line, paragraph in paragraphs:
        if text and len(text) + len(paragraph.rstrip()) > _ROOM_CHARS:
            yield first, text.strip()
            text = ""
        if not text:
            first = line
        text += paragraph
        if len(text.rstrip()) >= _ENOUGH_CHARS:
            yield first, text.strip()
            text = ""
    yield first, text.strip()


def pieces(paragraph: str) -> Iterator[str]:
    """Cut a paragraph that is too long for a passage: after a sentence, else at a space, else anywhere."""
    begin, end = 0, len(paragraph.rstrip())
    stops = [stop for _, stop in sentence_spans(paragraph)] if end > MAX_PASSAGE_CHARS else []
    while end - begin > MAX_PASSAGE_CHARS:
        window = begin + _ROOM_CHARS
        before = bisect_right(stops, window)
        cut = stops[before - 1] if before else begin
        if cut <= begin:
            cut = 1 + max(paragraph.rfind(space, begin, window) for space in " \n")
        if cut <= begin:
            cut = window
        yield paragraph[begin:cut]
        begin = cut
    yield paragraph[begin:]


_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*?)[ \t#]*$")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_UNDERLINE: Final = re.compile(r"([!-/:-@\[-`{-~])\1+\s*$")  # the punctuation that docutils takes for it


def read_text(text: str, markup: Markup) -> Document:
    """Read a text whose places are its lines."""
    document = Document()
    add_text(document, text, markup)
    return document


def add_text(document: Document, text: str, markup: Markup, place: int | None = None) -> None:
    """Add a text to a document; all of it stands at `place`, or each paragraph on its line if that is None.

    Sections open at what starts with # outside a fence in Markdown, and at underlined titles in reStructuredText.
    """
    lines = text.split("\n")
    headings = _rst_headings(lines) if markup == "rst" else {}
    fence = ""
    paragraph: list[str] = []
    began, after_blank, titled, length = 1, False, 0, 0

    def close() -> None:
        line = began
        for piece in pieces("".join(paragraph)):
            blank = len(piece) - len(piece.lstrip())
            if piece.strip():
                document.sections[-1].paragraphs.append((place or line + piece.count("\n", 0, blank), piece))
            line += piece.count("\n")

    for number, line in enumerate(lines, start=1):
        if number <= titled:
            continue
        if markup == "markdown" and not fence and len(line) <= _LONGEST_HEADING and (mark := _HEADING.match(line)):
            headings[number] = len(mark[1]), mark[2], 1
        blank = not line.strip()
        if number in headings or (after_blank and not blank) or length > _LONGEST_PARAGRAPH:
            close()
            paragraph, began, length = [], number, 0
        after_blank = blank
        if number in headings:
            level, heading, height = headings[number]
            verbatim = "\n".join(lines[number - 1 : number - 1 + height])
            document.open_section(level, heading, place or number, verbatim)
            titled = number - 1 + height
            began = titled + 1
            continue
        paragraph.append(line + "\n")
        length += len(line)
        if markup == "markdown" and (mark := _FENCE.match(line)) and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
    close()


def _rst_headings(lines: list[str]) -> dict[int, tuple[int, str, int]]:
    """Return level, title and height in lines of each title, by its first line.

    A title is a line between two rows of the same sign, or before one, that are as long as it is. Levels come from the
    order in which these styles appear, as reStructuredText has it.
    """
    styles: list[tuple[str, bool]] = []
    found: dict[int, tuple[int, str, int]] = {}
    for number, (above, title, below) in enumerate(zip(["", *lines], lines, lines[1:], strict=False), start=1):
        under = _UNDERLINE.match(below)
        if not under or not title.strip() or _UNDERLINE.match(title) or len(title.strip()) > _LONGEST_HEADING:
            continue
        over = _UNDERLINE.match(above)
        framed = over is not None and above.strip() == below.strip()
        if len(below.strip()) < len(title.strip()) or not (framed or (title[0] != " " and not above.strip())):
            continue
        style = (under[1], framed)
        if style not in styles:
            styles.append(style)
        first = number - 1 if framed else number
        found[first] = (styles.index(style) + 1, title.strip(), 3 if framed else 2)
    return found


# ---- HTML

# Not html.parser: on unclosed tags and comments it takes time that grows with the square of the file, 40 s for 400 kB.
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG: Final = re.compile(
    r"""<(?P<close>/?)(?P<name>[a-zA-Z][^\s/<>]*+) (?: =\s*"[^"]*" | =\s*'[^']*' | = | [^<>=]+ )*+ (?P<end>>?)
        |<[!?/][^<>]*(?P<other>>)""",
    re.VERBOSE,
)
_CDATA: Final = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_XHTML: Final = re.compile(r"""\A\s*<\?xml|<html[^<>]*\sxmlns\s*=\s*["']http://www\.w3\.org/1999/xhtml""")
_HEAD_CHARS: Final = 1_024
_RAW_END: Final = re.compile("</(script|style)", re.IGNORECASE)
_TAG_INSIDE: Final = re.compile(r"<(?P<close>/?)(?P<name>[a-zA-Z][^\s/<>]*+)[^<>]*>|<[!?/][^<>]*>")
_ENDLESS_REFERENCE: Final = re.compile(r"&#[0-9]{10,};?")
_NUMBER: Final = re.compile(r"[-−+]?\d")
_LINK_TO_HEADING: Final = "¶ \n"  # as Sphinx and others show it behind each heading
_SPACES: Final = re.compile(r"\s+")
_SPACES_BEFORE_BREAK: Final = re.compile(r"(?<![ \t])[ \t]+\n")  # looks behind, or a row of spaces costs n²

_UNSEEN: Final = frozenset({"script", "style", "template", "svg", "nav", "title"})
_RAW: Final = frozenset({"script", "style"})
_NOTHING: Final[frozenset[str]] = frozenset()
_DEEPEST: Final = 32
_BREAKS: Final = {"br": "\n", "li": "\n- ", "tr": "\n", "dt": "\n", "dd": "\n", "option": "\n"}
_HEADINGS: Final = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
_BLOCK: Final = re.compile(
    """address|article|aside|blockquote|body|details|div|dl|fieldset|figcaption|figure|footer|form|head|header|hr|html
    |h[1-6]|main|nav|ol|p|pre|section|summary|table|ul""",
    re.VERBOSE,
)


def read_html(text: str, *, is_xhtml: bool = False) -> Document:
    """Read the visible text of HTML, however malformed: no scripts, styles or navigation.

    Blocks are parted by blank lines, list items start with "- ", cells of a table row are parted by tabs. The line of a
    passage is that on which its first block begins. In XHTML, which the text can also say that it is, `/>` closes an
    element and CDATA is text.
    """
    is_xhtml = is_xhtml or _XHTML.search(text[:_HEAD_CHARS]) is not None
    if is_xhtml:
        end = text.rfind("]]>") + 3  # where no section ends any more, none is looked for
        text = _CDATA.sub(lambda section: html.escape(section[1], quote=False), text[:end]) + text[end:]
    end = text.rfind("-->") + 3  # likewise
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text[:end]) + text[end:]
    reader = _HtmlReader(_UNSEEN, is_xhtml=is_xhtml)
    reader.read(text)
    for unseen in (_RAW, _NOTHING):
        if reader.unclosed:  # rather show navigation or a script than lose all that follows it
            reader = _HtmlReader(unseen, is_xhtml=is_xhtml)
            reader.read(text)
    return reader.document


def _tags(text: str) -> Iterator[re.Match[str]]:
    """Yield the tags, comments and the like, in order.

    What begins like a tag and never ends is looked through once more, for tags without a quoted `<`; looking for whole
    tags from each `<` inside it would take time that grows with the square of its length.
    """
    for tag in _TAG.finditer(text):
        if tag["end"] or tag["other"]:
            yield tag
        else:
            yield from _TAG_INSIDE.finditer(text, tag.start(), tag.end())


class _HtmlReader:
    """Collects the blocks of one HTML text into a document."""

    def __init__(self, unseen: frozenset[str], *, is_xhtml: bool) -> None:
        self.document = Document()
        self.unclosed: set[str] = set()
        self._unseen = unseen
        self._is_xhtml = is_xhtml
        self._inside: list[str] = []  # the unseen elements that are open
        self._title: list[str] = []
        self._preformatted = False
        self._level = 0  # of the heading that is open
        self._raised = False  # inside <sup>, before its text
        self._block: list[str] = []
        self._line = 0  # on which the block's first character stands

    def read(self, text: str) -> None:
        line, position = 1, 0
        last_ends = {end[1].lower(): end.start() for end in _RAW_END.finditer(text)}
        for tag in _tags(text):
            self._data(text[position : tag.start()], line)
            line += text.count("\n", position, tag.end())
            position = tag.end()
            name = (tag["name"] or "").lower()
            is_closed = self._is_xhtml and tag[0].endswith("/>")
            if tag["close"]:
                self._end(name)
            elif name and (is_closed or name not in _RAW or tag.start() < last_ends.get(name, 0)):
                self._start(name, is_closed=is_closed)
        self._data(text[position:], line)
        self._end_block()
        self.unclosed = set(self._inside)
        if self._title:
            self.document.title = clip(" ".join("".join(self._title).split()), _LONGEST_HEADING)[0] or None

    def _start(self, name: str, *, is_closed: bool) -> None:
        if self._inside and self._inside[-1] in _RAW:
            return
        self._raised = self._raised or name == "sup"
        if not self._inside and _BLOCK.fullmatch(name):
            self._end_block()
            self._level = _HEADINGS.get(name, self._level)
            self._preformatted = name == "pre"
        if name in self._unseen and len(self._inside) < _DEEPEST:
            self._inside.append(name)
        elif not self._inside and name in _BREAKS:
            self._block.append(_BREAKS[name])
        elif not self._inside and name in {"td", "th"} and self._block and not self._block[-1].endswith("\n"):
            self._block.append("\t")
        if is_closed:
            self._end(name)

    def _end(self, name: str) -> None:
        if name == "sup":
            self._raised = False
        if name in self._inside:
            del self._inside[self._inside.index(name) :]
        elif _BLOCK.fullmatch(name) and not self._inside:
            self._end_block()
            self._preformatted = False
            if name in _HEADINGS:
                self._level = 0

    def _data(self, data: str, line: int) -> None:
        if self._inside:
            if self._inside == ["title"]:
                self._title.append(unescaped(data))
            return
        if not self._line and (visible := data.lstrip()):
            self._line = line + data.count("\n", 0, len(data) - len(visible))
        data = unescaped(data)
        if not self._preformatted:
            data = _SPACES.sub(" ", data)
            if not self._block or self._block[-1][-1:].isspace():
                data = data.lstrip()
        if self._raised and self._block and self._block[-1][-1:].isdigit() and _NUMBER.match(data):
            data = f"^{data}"  # or 2<sup>64</sup> would read 264
        if data:
            self._block.append(data)
            self._raised = False

    def _end_block(self) -> None:
        text = _SPACES_BEFORE_BREAK.sub("\n", "".join(self._block)).strip() if self._line else ""
        if self._level:
            text = text.rstrip(_LINK_TO_HEADING)
        if text and self._level:
            heading = clip(" ".join(text.split()), _LONGEST_HEADING)[0]
            self.document.open_section(self._level, heading, self._line, text)
        if text and (not self._level or len(text) > _LONGEST_HEADING):
            paragraphs = self.document.sections[-1].paragraphs
            paragraphs.extend((self._line, piece) for piece in pieces(text + "\n\n") if piece.strip())
        if text:
            self._level = 0
        self._block = []
        self._line = 0


def unescaped(data: str) -> str:
    """Decode the character references of HTML; one with ten digits or more stands for no character and is U+FFFD.

    (html.unescape alone raises ValueError for a number of thousands of digits.)
    """
    return html.unescape(_ENDLESS_REFERENCE.sub("\ufffd", data)) if "&" in data else data
