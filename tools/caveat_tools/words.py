"""Words and sentences of any language: what the local index, its queries and the choice of quotes are made of."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Final

import snowballstemmer

_LONGEST_TERM: Final = 64
_LONGEST_STEMMED: Final = 32
_RUSSIAN_ENDINGS: Final = 3

# Scripts written without spaces between words (Thai to Khmer, kana, Han), and Hangul, whose particles cling to words.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003134f]+"
)
# Vowel signs of Indic scripts are marks, which \w leaves out: without them every such word would fall to pieces.
_MARKS: Final = "".join(
    chr(code)
    for code in chain(range(0x0300, 0x1E00), range(0xA66F, 0xAC00))
    if unicodedata.category(chr(code)) in {"Mn", "Mc"}
)
_WORD: Final = re.compile(rf"\w[\w{_MARKS}]*")
_CLITIC: Final = re.compile(r"(?<=\w)['’](?:s|t|d|m|ll|re|ve)\b")
# Accents on Latin and Greek letters, dots of ё, stress marks on Cyrillic, vowel points of Hebrew and Arabic, tatweel.
_OPTIONAL_MARK: Final = re.compile(
    "(?<=[a-zα-ω])[\u0300-\u036f]+|(?<=е)\u0308|(?<=[а-я])[\u0300\u0301]"
    "|[\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]"
)
_UNDIVIDED: Final = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"}
)
_CYRILLIC: Final = re.compile("[\u0400-\u04ff]+")

_ENGLISH: Final = snowballstemmer.stemmer("english")
_RUSSIAN: Final = snowballstemmer.stemmer("russian")
_STEMMING: Final = threading.Lock()  # a stemmer keeps the word it works on in itself


def terms(text: str) -> list[str]:
    """Return the terms of `text`, in order and with repeats: the same for an index and for a query.

    A term is a word without case, accents and (English for Latin script, Russian for Cyrillic) ending; a number; or,
    where a script puts no spaces between words, each pair of neighbouring characters (one character when it is alone).
    It holds letters, digits and vowel signs only, and at most 64 characters.
    """
    if text.isascii():
        folded = text.lower()
    else:
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).replace("\u00ad", "")
    folded = _CLITIC.sub("", folded.replace("_", " "))
    if not _UNSPACED.search(folded):
        return list(map(_term, _WORD.findall(folded)))
    found: list[str] = []
    for word in _WORD.findall(_UNSPACED.sub(r" \g<0> ", folded)):
        if _UNSPACED.match(word):
            found.extend(word[at : at + 2] for at in range(max(1, len(word) - 1)))
        else:
            found.append(_term(word))
    return found


@lru_cache(maxsize=1 << 17)
def _term(word: str) -> str:
    """Return the term of one case-folded word. Cached, because a stemmer written in Python is slow."""
    if not word.isascii():
        bare = _OPTIONAL_MARK.sub("", unicodedata.normalize("NFKD", word).translate(_UNDIVIDED))
        word = unicodedata.normalize("NFC", bare) or word
    if len(word) > _LONGEST_STEMMED or not word.isalpha():
        return word[:_LONGEST_TERM]
    if word.isascii():
        return _stem(_ENGLISH, word)
    return _bare_russian(word) if _CYRILLIC.fullmatch(word) else word


def _bare_russian(word: str) -> str:
    """Return a word without endings. Once is not enough: of паром and парома it would leave пар and паром."""
    for _ in range(_RUSSIAN_ENDINGS):
        longer, word = word, _stem(_RUSSIAN, word)
        if word == longer:
            break
    return word


def _stem(stemmer: snowballstemmer.stemmer, word: str) -> str:
    with _STEMMING:
        return str(stemmer.stemWord(word)) or word


_STOP_TERMS: Final = frozenset(
    terms(
        """a an the this that these those there here and or but not no nor if then than so as of in on at by for from
        to into onto with without about between over under during after before since until per via
        who whom whose what when where why how which is are was were be been being am do does did done has have had
        having can could will would shall should must might i you he she it we they me him her us them my your his its
        our their many much any some such also just don isn aren wasn weren doesn didn hasn haven hadn wouldn couldn
        shouldn difference differ differs happen happens
        кто что кого чего кому чему кем чем ком чём когда где куда откуда почему зачем как какой какая какое какие
        каким какого каких сколько который которая которое которые чей чья чьё чьи ли же бы не ни да нет и или а но то
        это этот эта эти этого этой тот та те того был была было были быть есть будет будут является являются в во на
        с со к ко о об обо от до из за по под над при для без между через у я ты он она оно мы вы они его её их мой
        твой наш ваш так такой там тут здесь ещё уже только также если чтобы потому может могут можно должен должна
        должно должны делает делают делать отличается отличаются отличие разница
        什么 什么时候 是什么 为什么 多少 哪里 哪个 怎么 如何 是谁 何时 무엇 언제 어디 누가 얼마"""
    )
)
_HIRAGANA: Final = re.compile("[\u3040-\u309f]+")  # mostly endings and particles: never what a question is about


# Of German, only where two words, or one and an umlaut, say that it is German: "war" and "die" are English words, too.
_GERMAN_SIGNS: Final = frozenset(
    terms(
        """der das wer wem wen wessen wann warum wieso weshalb wie welche welcher welches welchen ist sind wird wurde
        wurden und oder für ein eine einen einem einer eines nicht auch"""
    )
)
_GERMAN_STOP_TERMS: Final = _GERMAN_SIGNS | frozenset(
    terms(
        """die was wo hat haben hatte hatten war waren in an am im auf von mit zu zum zur bei nach aus über den dem des
        sich es er sie kann viel viele"""
    )
)


def content_terms(text: str) -> list[str]:
    """Return the distinct terms of `text` in order, without stop words; all distinct terms if only those are there."""
    distinct = list(dict.fromkeys(terms(text)))
    signs = len(_GERMAN_SIGNS.intersection(distinct)) + bool(re.search("[äöüß]", text.casefold()))
    stop = _STOP_TERMS | _GERMAN_STOP_TERMS if signs > 1 else _STOP_TERMS
    return [term for term in distinct if term not in stop and not _HIRAGANA.fullmatch(term)] or distinct


_LETTER_OR_DIGIT: Final = re.compile(r"[^\W_]")
_MARKER: Final = re.compile(r"\s*(?:>\s*)*(?P<kind>#{1,6}(?=\s)|[-*+•](?=\s)|\d{1,3}[.)](?=\s))?\s*")
_END: Final = re.compile(
    r"""(?<![.!?…؟۔।॥])[.!?…؟۔।॥]+(?:["'»”’)\]*_]|\[\d{1,3}\])*(?=\s)   # looks behind, or a row of dots costs n²
        |[。！？｡]+[」』”’）"']*""",
    re.VERBOSE,
)
_ABBREVIATION: Final = re.compile(
    r"""dr|mr|mrs|ms|prof|st|mt|vs|cf|figs?|vol|eds?|pp?|ch|sec|approx|ca|jr|sr|inc|ltd|co|corp|dept|gen|gov|rev
    |гг?|вв?|н|ст|св|им|ул|пр|пл|стр|с|рис|табл|гл|см|ср|напр|др|проф|акад|доц|тыс|млн|млрд|трлн|руб|коп|кв|обл|дж|чел
    |(?!т\.[дп]$)(?:\w\.)+\w   # e.g, U.S, т.е; but т.д and т.п close a sentence""",
    re.VERBOSE,
)
# These may close a sentence as well, and do before a word that names nothing, such as "The" or "Это".
_CLOSING_ABBREVIATION: Final = re.compile(r"inc|ltd|co|corp|jr|sr|гг?|вв?|др|тыс|млн|млрд|трлн|руб|коп")
_NEXT_WORD: Final = re.compile(r"\s*([^\W\d_]+)\s")
_LABEL: Final = re.compile(r"\s*[^\W\d_]+\s\d+(?:\.\d+)*")  # Chapter 2
_LONGEST_LABEL: Final = 40


def sentences(text: str) -> list[str]:
    """Return the sentences of `text`, each a verbatim piece of it (line breaks inside included), in order.

    Headings, list items and table rows are sentences of their own, without their Markdown markers; fences and lines
    without a letter or digit are none. A sentence can have any length: text without a full stop is one.
    """
    return [text[start:end] for start, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return where each sentence of `text` starts and ends: `sentences`, as offsets that never overlap."""
    return [
        _trimmed(text, start, end)
        for first, last in _blocks(text)
        for start, end in _split(text, first, last)
        if _LETTER_OR_DIGIT.search(text, start, end)
    ]


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans that no sentence crosses: paragraphs, headings, list items, table rows."""
    begin: int | None = None
    position = 0
    for line in text.splitlines(keepends=True):
        start, position = position, position + len(line)
        bare = line.strip()
        divider = bare.startswith(("```", "~~~")) or not _LETTER_OR_DIGIT.search(line)
        marker = _MARKER.match(line)
        kind = marker["kind"] if marker else None
        alone = (kind is not None and kind[0] == "#") or bare.startswith("|") or "\t" in bare
        if begin is not None and (divider or alone or kind):
            yield begin, start
            begin = None
        if divider:
            continue
        if begin is None:
            begin = start + (marker.end() if marker else 0)
        if alone:
            yield begin, position
            begin = None
    if begin is not None:
        yield begin, len(text)


def _split(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the spans between the sentence ends of one block."""
    begin = first
    for end in _END.finditer(text, first, last):
        if _ends_sentence(text, begin, end, last):
            yield begin, end.end()
            begin = end.end()
    yield begin, last


_NOT_SPACE: Final = re.compile(r"\S")
_BEFORE_A_WORD: Final = re.compile(r"[\s(\[«\"“„]")


def _ends_sentence(text: str, begin: int, end: re.Match[str], last: int) -> bool:
    """Say whether a stop ends a sentence: not before a small letter, nor after an abbreviation, an initial or a label.

    A label is one word and a number, such as "Chapter 2", at the beginning of a sentence or of a table's cell.
    """
    if end[0][0] in "。！？｡":
        return True
    following = _NOT_SPACE.search(text, end.end(), last)
    if following and following[0].islower():
        return False
    if end[0] != ".":
        return True
    word = _BEFORE_A_WORD.split(text[max(begin, end.start() - 16) : end.start()])[-1]
    if len(word) == 1 and word.isupper():
        return False
    cell = text.rfind("\t", max(begin, end.start() - _LONGEST_LABEL), end.start()) + 1 or begin
    if end.start() - cell <= _LONGEST_LABEL and _LABEL.fullmatch(text, cell, end.start()):
        return False
    word = word.casefold()
    if word == "no":
        return not (following and following[0].isdigit())
    if _CLOSING_ABBREVIATION.fullmatch(word):
        after = _NEXT_WORD.match(text, end.end(), last)
        return after is not None and not _STOP_TERMS.isdisjoint(terms(after[1]))
    return not _ABBREVIATION.fullmatch(word)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return end - len(piece.lstrip()), start + len(piece.rstrip())
