"""Claims, and whether their quotes stand in the text that was stored.

A quote counts when its letters, digits and signs stand in the stored text in the same order and case, and it neither
begins nor ends inside a word or a number. Whitespace, kinds of dashes and quotation marks, hyphens at line ends and
Markdown that a reader does not see may differ. Whether a quote supports its claim is not decided here.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from caveat_tools.outcome import MAX_PASSAGE_CHARS
from caveat_tools.plain_text import one_line, plain

MIN_WEIGHT: Final = 12
"""Characters that a quote must weigh (wide ones count twice, runs of punctuation once) to prove anything."""


@dataclass(frozen=True, slots=True)
class CheckedQuote:
    """The id of a result, words that should stand in it, and why they prove nothing: None where they stand."""

    id: str
    quote: str
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement and its evidence. `verified` means that the text says something and that every quote stands.

    `why` says what is wrong with the claim as a whole; it is None where nothing is. Raises ValueError where `verified`
    does not fit the evidence.
    """

    text: str
    topic: str
    verified: bool
    evidence: tuple[CheckedQuote, ...]
    why: str | None = None

    def __post_init__(self) -> None:
        if self.verified != (bool(self.evidence) and not self.problems):
            raise ValueError("verified is true exactly where there is evidence and no problem")

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that keeps the claim from being verified, in words for the model and the reader."""
        reasons = (self.why, *(quote.why for quote in self.evidence))
        return tuple(reason for reason in reasons if reason is not None)


def check(text: str, topic: str, evidence: Sequence[tuple[str, str]], stored: Mapping[str, str]) -> Claim:
    """Check each (id, quote) of `evidence` against `stored` (id → text) and return the claim with what was found.

    What comes from the model is neutralised with `plain` on the way.
    """
    text, neutral = plain(text), [(plain(key), plain(quote)) for key, quote in evidence]
    checked = tuple(CheckedQuote(id=key, quote=quote, why=_why(key, quote, stored)) for key, quote in neutral)
    why = "the claim is empty or a placeholder" if _says_nothing(text) else None if checked else "no evidence"
    verified = why is None and all(quote.why is None for quote in checked)
    return Claim(text=text, topic=plain(topic), verified=verified, evidence=checked, why=why)


def find_quote(quote: str, text: str) -> tuple[int, int] | None:
    """Return where `quote` stands in `text` (start, end; indices into `text`), or None where it does not stand.

    Quotation marks around the quote do not count, nor does one final [.,;:] that the text does not have.
    """
    for wanted in _wanted(quote):
        for reading in _readings(text):
            if wanted.skeleton in reading.skeleton and (span := _span(wanted.chars, reading)):
                return span
    return None


def weight(quote: str) -> int:
    """Return how many characters `quote` weighs: wide ones 2, runs of anything but letters and digits 1."""
    said = unicodedata.normalize("NFC", "".join(map(_spelled, quote)))
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in re.sub(r"[\W_]+", " ", said))


def _why(key: str, quote: str, stored: Mapping[str, str]) -> str | None:
    if key not in stored:
        return f"no result has the id {one_line(key, 40)}"
    if len(quote) > 2 * MAX_PASSAGE_CHARS:
        return "longer than any passage"
    if weight(quote) < MIN_WEIGHT:
        return "too short to prove anything"
    if find_quote(quote, stored[key]):
        return None
    elsewhere = next((other for other, text in stored.items() if find_quote(quote, text)), None)
    return f"the quote is not in {key}" + (f"; it stands in {elsewhere}" if elsewhere else "")


_PLACEHOLDERS = frozenset({
    "", "claim", "example", "lorem ipsum", "n a", "na", "none", "null", "placeholder", "string", "tba", "tbd", "test",
    "text", "todo", "xxx",
})  # fmt: skip


def _says_nothing(text: str) -> bool:
    said = re.sub(r"[\W_]+", " ", text).strip().casefold()
    return said in _PLACEHOLDERS or said.startswith("lorem ipsum dolor")


# How a text is read: each character spelled in one way, what a reader does not see left out, with a way back.


@dataclass(frozen=True, slots=True)
class _Reading:
    """A text in its common spelling, with minus and em dash still apart.

    `origins` gives for each character its index in the text; `skeleton` is `chars` without hyphens and spaces.
    `broken` lists each place where a hyphen and a newline may break a word, with the letters before and after.
    """

    chars: str
    origins: array[int]
    skeleton: str
    broken: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A form of a quote that may be looked for. A text without its `skeleton` is ruled out at once."""

    chars: str
    skeleton: str


_SPELLINGS: Final = str.maketrans(
    dict.fromkeys("“”„‟«»", '"')
    | dict.fromkeys("‘’‚‛‹›ʼ", "'")
    | dict.fromkeys("‐‑‒–﹘﹣－", "-")
    | {"―": "—", "…": "...", "\u00ad": "", "ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl"}
)
_ALL_DASHES: Final = str.maketrans("−—", "--")
_NO_SKELETON: Final = dict.fromkeys(map(ord, " \n-−—"))


@lru_cache(maxsize=1024)  # of a pure function: the same stored texts are read again for every quote
def _readings(text: str) -> tuple[_Reading, ...]:
    """Return the text as it stands, and as a Markdown reader sees it if that differs."""
    as_shown = [*_links(text), *_emphasis(text)]
    return (_reading(text, ()), _reading(text, as_shown)) if as_shown else (_reading(text, ()),)


@lru_cache(maxsize=1024)
def _wanted(quote: str) -> tuple[_Wanted, ...]:
    """Return the forms of a quote that may be looked for. A link in a quote stays: its address is part of the claim."""
    forms = []
    for unseen in ((), _emphasis(quote)):
        chars = _reading(quote, unseen).chars.replace("\n", " ").translate(_ALL_DASHES)
        whole = _unquoted(chars)
        forms += [whole, _unquoted(whole[:-1]) if whole[-1:] in {".", ",", ";", ":"} else whole]
    return tuple(_Wanted(form, form.translate(_NO_SKELETON)) for form in dict.fromkeys(forms) if form)


def _unquoted(chars: str) -> str:
    chars = chars.strip()
    while len(chars) > 1 and chars[0] == chars[-1] and chars[0] in "\"'":
        chars = chars[1:-1].strip()
    return chars


def _reading(text: str, unseen: Iterable[tuple[int, int]]) -> _Reading:
    pieces = [_spelled(char) for char in text]
    for start, end in unseen:
        pieces[start:end] = [""] * (end - start)
    origins = array("L", [index for index, piece in enumerate(pieces) for _ in piece])
    chars = unicodedata.normalize("NFD", "".join(pieces))  # puts marks in order; all is decomposed, the length stays
    chars, origins = _replaced(chars, origins, _gaps(chars))
    return _Reading(chars, origins, chars.translate(_NO_SKELETON), tuple(_broken(chars)))


@cache
def _spelled(char: str) -> str:
    spelled = unicodedata.normalize("NFD", plain(char)).translate(_SPELLINGS)
    return spelled if spelled == "\n" or not spelled.isspace() else " "


def _gaps(chars: str) -> Iterator[tuple[int, int, str]]:
    """Yield what becomes of each run of whitespace: one space; none within Chinese; a newline in a broken word."""
    kinds = _kinds(chars)
    for gap in re.finditer("[ \n]+", kinds):
        before, after = kinds[max(0, gap.start() - 2) : gap.start()], kinds[gap.end() : gap.end() + 1]
        if before[-1:] == "-" and before[0] in "a0m" and after and after in "a0":
            yield gap.start(), gap.end(), "\n"
        elif before and after and before[-1] in "cknmpx" and after in "cknpx" and gap[0].count("\n") < 2:
            yield gap.start(), gap.end(), ""
        elif gap[0] != " ":
            yield gap.start(), gap.end(), " "


def _replaced(chars: str, origins: array[int], changes: Iterable[tuple[int, int, str]]) -> tuple[str, array[int]]:
    """Put each (start, end, filler) into `chars`, and keep `origins` in step. A filler is no longer than its place."""
    pieces: list[str] = []
    kept, last = array("L"), 0
    for start, end, filler in changes:
        pieces += chars[last:start], filler
        kept += origins[last : start + len(filler)]
        last = end
    return "".join([*pieces, chars[last:]]), kept + origins[last:]


def _broken(chars: str) -> Iterator[tuple[int, str, str]]:
    for hyphen in re.finditer("-\n", chars):
        left = re.split(r"[\W_]", chars[max(0, hyphen.start() - 24) : hyphen.start()])[-1]
        right = re.split(r"[\W_]", chars[hyphen.end() : hyphen.end() + 24], maxsplit=1)[0]
        yield hyphen.start(), left, right


_LINK = re.compile(r"(?<![!\\\]])\[(?P<shown>[^\[\]]++)\](?P<target>\((?:[^()\n]|\([^()\n]*+\))*+\))")
_DELIMITER = re.compile(
    r"(?<!`)(?P<ticks>`{1,3}+)(?P<code>[^`]++)(?P=ticks)(?!`)|\*+|_+|\u00ad\s*\n\s*|\\(?=\n)|\n[ \t]*\n"
)


def _links(text: str) -> Iterator[tuple[int, int]]:
    """Yield what a reader does not see of `[text](address)`: brackets and address. `f[0](x)` is no link."""
    for link in _LINK.finditer(text):
        if not any(map(_in_word, _around(text, link))):
            yield link.start(), link.start() + 1
            yield link.end("shown"), link.end()


def _emphasis(text: str) -> tuple[tuple[int, int], ...]:
    """Return where code and emphasis are marked, in pairs, and where a soft hyphen or a backslash ends a line."""
    unseen: list[tuple[int, int]] = []
    opened: dict[str, tuple[int, int]] = {}
    for mark in _DELIMITER.finditer(text):
        before, after = _around(text, mark)
        kind = mark[0][0]
        if kind == "`":
            if not re.match(r"\d`+\d", before + mark[0]) and not re.search(r"\d`+\d\Z", mark[0] + after):
                unseen += mark.span("ticks"), (mark.end("code"), mark.end())
        elif kind in "\u00ad\\":
            if kind == "\\" or (before.isalpha() and after.isalpha()):
                unseen.append(mark.span())
        elif kind == "\n":
            opened.clear()  # emphasis ends with its paragraph
        elif mark[0] in opened and before.strip() and not _in_word(after):
            unseen += opened.pop(mark[0]), mark.span()
        elif re.match(r"\*\d", mark[0] + after):
            continue  # 2 *3 is a product
        elif len(mark[0]) <= 3 and after.strip() and not _in_word(before):
            opened[mark[0]] = mark.span()
    return tuple(unseen)


def _around(text: str, match: re.Match[str]) -> tuple[str, str]:
    return text[max(0, match.start() - 1) : match.start()], text[match.end() : match.end() + 1]


def _in_word(char: str) -> bool:
    return char != "" and _kind(char) in "a0mn"


# Where a text may be cut. Letters of one kind are written as one letter, so that the rules can be read.

_UNSPACED = re.compile(  # scripts without spaces between words, and their punctuation
    r"[\u0e00-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\u31ff\u3400-\u9fff\uf900-\ufaff\ufe30-\ufe4f"
    r"\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
_KATAKANA = re.compile(r"[\u30a1-\u30fa\u30fc\u31f0-\u31ff\uff66-\uff9f]")


@cache
def _kind(char: str) -> str:
    """Return what the rules below call a character.

    a letter, c letter of an unspaced script, k katakana, x Chinese not- or un-, 0 digit, n digit of an unspaced script,
    m combining mark, p punctuation of an unspaced script, $ currency, ± mathematical sign beyond ASCII. All others are
    their own kind.
    """
    unspaced = _UNSPACED.match(char) is not None
    category = unicodedata.category(char)
    if category.startswith("M"):
        return "m"
    if char.isnumeric() or char in "点點分之":  # as in 零点五 (0.5) and 百分之五 (5 %)
        return "n" if unspaced else "0"
    if char.isalpha():
        return "a" if not unspaced else "k" if _KATAKANA.match(char) else "x" if char in "不非未无無没沒负負" else "c"
    if category == "Sc" or (category == "Sm" and not char.isascii()):
        return "$" if category == "Sc" else "±"
    return "p" if unspaced else char


def _kinds(chars: str) -> str:
    return "".join(map(_kind, chars))


_ATOM = re.compile(
    r"""
    (?: (?: (?: [<>]=? | [<>=]m | [±~$] )\ ? | [-—+.,;·^/] | x ){0,3} (?=[0n]) )?  # a number's sign: -5, > 5, .5, $5
    (?: [a0][a0m]* | n[nm]* )                                                      # a word or number
    (?:
      (?: ['"_*`^/\\&+@\#$()<>·±-]{1,3} (?=[a0])          # can't, non-toxic, km/h, (un)safe
        | (?<=[0n]) (?: [.,:·٫٬] | \^- | ) (?=[0n])       # 1.5, 10:30, 10^-6, 15万
        | (?<=[0n]) \ ? [-—±*/+<>] \ ? (?=[0n])           # 3 - 5, 3 ± 2
        | (?<=0) \  (?=000(?!0) | 0[/±]0)                 # 1 500 000, 1 1/2
      )
      (?: [a0][a0m]* | n[nm]* )
    )*
    (?: (?<=[0n]) (?: \ ?[%‰°][a0m]* | \.\.\.\Z ) | [+\#$±]{1,2} )? m*  # 3 %, 5 °C, C++, Na⁺; 15… where a text was cut
  | k[km]* | x+c?m* | .m+
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=1024)
def _inside(chars: str) -> bytes:
    """Return 1 for each place where a cut would go through a word or a number, else 0; one more than characters."""
    inside = bytearray(len(chars) + 1)
    for atom in _ATOM.finditer(_kinds(chars)):
        inside[atom.start() + 1 : atom.end()] = b"\1" * (atom.end() - atom.start() - 1)
    return bytes(inside)


def _span(wanted: str, reading: _Reading) -> tuple[int, int] | None:
    chars, origins = _replaced(reading.chars, reading.origins, _mended(reading, wanted))
    inside, chars = _inside(chars), chars.translate(_ALL_DASHES)
    start = chars.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        if not inside[start] and not inside[end]:
            return origins[start], max(origins[start:end]) + 1
        start = chars.find(wanted, inside.find(0, start + 1))
    return None


def _mended(reading: _Reading, wanted: str) -> Iterator[tuple[int, int, str]]:
    """Yield how to read each broken word: as the quote does, else with its hyphen ("well-known").

    "exam-" + "ple" can be "example", "exam-ple" or "exam- ple"; the text does not say which. Digits are never joined:
    "1990-" + "1995" is no 19901995.
    """
    for place, left, right in reading.broken:
        joined = ("",) if left[-1:].isalpha() and right[:1].isalpha() else ()
        fillers = (filler for filler in ("-", "- ", *joined) if left + filler + right in wanted)
        yield place, place + 2, next(fillers, "-")
