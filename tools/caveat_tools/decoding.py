"""Bytes to text: byte order marks, UTF-8, UTF-16 without a mark, and the code pages of the world's older files."""

from __future__ import annotations

import codecs
import re
from typing import Final

import chardet

_SAMPLE_BYTES: Final = 64_000
_CONCLUSIVE_BYTES: Final = 16  # Han in UTF-16 is hardly ever also sound UTF-8 for as long as this

_DECLARED: Final = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z][A-Za-z0-9_.:-]{1,40})""")
_WORDS: Final = re.compile(rb"[A-Za-z\xa8\xb8\xc0-\xff]+")
_HIGH_LETTERS: Final = re.compile(rb"[\xa8\xb8\xc0-\xff]+")
_COMMON_LETTERS: Final = frozenset("оеаинт")
_HAN: Final = re.compile("[\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef\n\r]")
_COMMON_HAN: Final = re.compile("[\u3001\u3002\u3040-\u30ff\u4e00-\u7fff]")
_ASCII: Final = bytes(range(128))
_MOST_UNPRINTED: Final = 0.01  # of a text with a few NULs in it, as a crash leaves them in a log
_CYRILLIC_WORD: Final = re.compile("[\u0400-\u045f]{3,}")
_UNPRINTED: Final = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f\ufffd]")

_NAMES: Final = {  # by Python's name of the codec
    "cp1252": "Windows-1252",
    "cp1251": "Windows-1251",
    "koi8-r": "KOI8-R",
    "koi8-u": "KOI8-U",
    "iso8859-5": "ISO 8859-5",
    "cp866": "CP866",
    "gb18030": "GB 18030",
    "big5": "Big5",
    "shift_jis": "Shift JIS",
    "cp932": "Shift JIS",
    "cp949": "EUC-KR",
    "euc_jp": "EUC-JP",
    "euc_kr": "EUC-KR",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
    "utf-32-le": "UTF-32",
    "utf-32-be": "UTF-32",
}
_SUPERSETS: Final = {"shift_jis": "cp932", "euc_kr": "cp949", "big5": "cp950", "koi8-r": "koi8-u"}
_ASKED: Final = [codec.replace("_jp", "-jp").replace("_kr", "-kr") for codec in _NAMES]
_OURS: Final = frozenset({"cp1252", "cp1251", "koi8-r", "koi8-u"})
_WIDE: Final = ("utf-16-le", "utf-16-be")


def decode_html(data: bytes) -> tuple[str, str | None] | None:
    """Return what `decode` does for HTML or XML, which may name its encoding in its first 1 024 bytes.

    As browsers have it, UTF-8 that is sound and byte order marks are stronger, and ISO 8859-1 means Windows-1252.
    """
    named = _DECLARED.search(data[:1024])
    marked = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if named is None or marked or b"\0" in data or _strict(data, "utf-8") is not None:
        return decode(data)
    label = named[1].decode("ascii").lower()
    try:
        text = data.decode("cp1252" if label in {"iso-8859-1", "latin1", "ascii", "us-ascii"} else label)
    except (LookupError, UnicodeDecodeError):
        return decode(data)
    return text.replace("\r\n", "\n").replace("\r", "\n"), None


def decode(data: bytes) -> tuple[str, str | None] | None:
    """Return a document's text with line feeds only, and its encoding if that is a guess; None if it is no text.

    A byte order mark is believed unless what follows contradicts it: UTF-8 behind a mark of UTF-16, or a code page
    behind a mark of UTF-8. Text that is UTF-8 but for a few broken bytes stays UTF-8, with U+FFFD for those.
    """
    decoded = _marked(data) or _unmarked(data.removeprefix(codecs.BOM_UTF8))
    if decoded is None or "\0" in decoded[0]:
        return None
    text, guess = decoded
    return text.replace("\r\n", "\n").replace("\r", "\n"), guess


def _marked(data: bytes) -> tuple[str, str | None] | None:
    """Decode by a byte order mark of UTF-16 or UTF-32; None where there is none, or one that is wrong."""
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return data.decode("utf-32", "replace"), None
    if not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return None
    rest = data[2:]
    if len(rest) >= _CONCLUSIVE_BYTES and b"\0" not in rest and (text := _strict(rest, "utf-8")) is not None:
        return text, "UTF-8 behind a mark of UTF-16"
    return data.decode("utf-16", "replace"), None


def _unmarked(data: bytes) -> tuple[str, str | None] | None:
    if b"\0" in data:
        return _wide(data)
    if (text := _strict(data, "utf-8")) is not None:
        return text, None
    text = data.decode("utf-8", "replace")
    if text.count("\ufffd") * 10 < len(text) - len(text.encode("ascii", "ignore")):
        return text, "UTF-8, damaged"
    if han := _han(data):
        return han, "UTF-16"
    codec = _code_page(data)
    if codec is None:
        return None
    text = data.decode(_SUPERSETS.get(codec, codec), "replace")
    return None if len(_UNPRINTED.findall(text)) > 0.05 * len(text) else (text, _NAMES[codec])


def _wide(data: bytes) -> tuple[str, str] | None:
    """Decode text with bytes of zero: UTF-8 with a few of them, or UTF-16 or UTF-32 without a mark; None if it is none.

    The NULs in UTF-8 become U+FFFD.
    """
    text = data.decode("utf-8", "replace")
    if len(_UNPRINTED.findall(text)) <= _MOST_UNPRINTED * len(text):
        return text.replace("\0", "\ufffd"), "UTF-8, damaged"
    if not data.isascii() and _strict(data, "utf-8") is not None:
        return None  # UTF-8 with a NUL in it
    if han := _han(data):
        return han, "UTF-16"
    codec = _detected(data[:_SAMPLE_BYTES])
    wide = _strict(data, codec) if codec and codec.startswith("utf-") else None
    if codec is None or wide is None or len(_UNPRINTED.findall(wide)) > 0.05 * len(wide):
        return None
    return wide, _NAMES[codec]


def _han(data: bytes) -> str | None:
    """Return what is nearly all Han or kana when read as UTF-16. (In bytes it looks like nothing in particular.)

    The common half of Han must be there: Shift JIS read as UTF-16 is Han, too, but of the rare half. And so is ASCII,
    but that has no byte above 127.
    """
    if 10 * len(data.translate(None, _ASCII)) < len(data):
        return None
    for text in filter(None, (_strict(data, codec) for codec in _WIDE)):
        if len(_HAN.findall(text)) >= 0.95 * len(text) and len(_COMMON_HAN.findall(text)) >= 0.4 * len(text):
            return text
    return None


def _code_page(data: bytes) -> str | None:
    """Return the codec of a code page, as chardet guesses it from the lines that are not plain ASCII; None if binary.

    Among the code pages that `_ours` knows, `_ours` is right more often with a few words.
    """
    lines = b"\n".join(line for line in data.splitlines() if not line.isascii())[:_SAMPLE_BYTES]
    codec = _detected(lines)
    if codec is None:
        return None
    if codec in _OURS or codec not in _NAMES:
        ours = _ours(lines)
        return codec if (ours, codec) == ("koi8-r", "koi8-u") else ours
    return codec if _is_cyrillic(lines, codec) else "cp1252"


def _is_cyrillic(data: bytes, codec: str) -> bool:
    """Say whether text that is taken for one of the rarer Cyrillic code pages holds words of it; True for others."""
    if codec not in {"cp866", "iso8859-5"}:
        return True
    text = data.decode(codec, "replace")
    return 2 * sum(map(len, _CYRILLIC_WORD.findall(text))) >= len(text) - len(text.encode("ascii", "ignore"))


def _detected(data: bytes) -> str | None:
    encoding = chardet.detect(data, include_encodings=_ASKED)["encoding"]
    return codecs.lookup(encoding).name if encoding else None


def _ours(data: bytes) -> str:
    """Return cp1251, koi8-r or cp1252.

    A Cyrillic code page is taken where at least half of the words with letters beyond ASCII have no letter of ASCII,
    as in Russian and not in French or German; of the two, the one that gives more of the letters that are common in
    Russian.
    """
    words = [word for word in _WORDS.findall(data) if not word.isascii()]
    cyrillic = [word for word in words if len(word) > 1 and _HIGH_LETTERS.fullmatch(word)]
    if 2 * len(cyrillic) < len(words) or not words:
        return "cp1252"
    readings = {codec: data.decode(codec, "replace").casefold() for codec in ("cp1251", "koi8-r")}
    return max(readings, key=lambda codec: sum(char in _COMMON_LETTERS for char in readings[codec]))


def _strict(data: bytes, codec: str) -> str | None:
    try:
        return data.decode(codec)
    except UnicodeDecodeError:
        return None
