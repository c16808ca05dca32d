"""The encodings of old files: which are told apart, and what is no text."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat_tools.decoding import decode, decode_html

TEXTS = {
    "ru": "Строительство плотины началось в середине пятидесятых годов и заняло четыре года; отчёт хранится в архиве. ",
    "uk": "Будівництво греблі почалося в середині шістдесятих років; її звіт зберігається в архіві, а ґрунт вивчено. ",
    "zh": "大坝位于赞比西河上，工程于二十世纪五十年代中期开工，历时四年完成。工程师测量了坝高和造价。",
    "zh-tw": "大壩位於贊比西河上，工程於二十世紀五十年代中期開工，歷時四年完成。工程師測量了壩高和造價。",
    "ja": "ダムはザンベジ川にあり、工事は五十年代の半ばに始まり、四年で完成した。技術者は壁の高さを測った。",
    "ko": "댐은 잠베지강에 있으며 공사는 오십년대 중반에 시작되어 사년 만에 끝났다. 보고서는 기록관에 있다. ",
    "fr": "La construction du barrage a commencé au milieu des années cinquante et a duré quatre ans à cet endroit. ",
    "de": "Der Bau der Staumauer dauerte vier Jahre; die Ingenieure maßen Höhe und Länge, später auch die Schäden. ",
    "en": "The “dam” wasn’t begun until the middle of the fifties – and the engineers’ report says: “high enough”. ",
}


@pytest.mark.parametrize("size", [60, 300, 3_000])
@pytest.mark.parametrize(
    ("language", "encoding"),
    [
        *(("ru", encoding) for encoding in ("cp1251", "koi8-r", "cp866", "iso8859-5")),
        *(("ru", encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be")),
        *(("uk", encoding) for encoding in ("cp1251", "koi8-u", "utf-16-le")),
        *(("zh", encoding) for encoding in ("gbk", "gb18030", "utf-16-le", "utf-16-be", "utf-32-le")),
        *(("ja", encoding) for encoding in ("shift_jis", "euc_jp", "utf-16-le")),
        *(("fr", encoding) for encoding in ("cp1252", "utf-16-le")),
        *(("de", encoding) for encoding in ("cp1252", "utf-16-le")),
        *(("en", encoding) for encoding in ("cp1252", "utf-16-le")),
        *(("zh-tw", "big5"), ("ko", "euc_kr")),
    ],
)
def test_old_files_are_read_with_the_right_letters(language: str, encoding: str, size: int) -> None:
    """A few words are enough, in the encodings that stood on the disks of their languages."""
    text = (TEXTS[language] * 60)[:size]
    while len(text.encode(encoding)) > size:
        text = text[:-1]
    decoded = decode(text.encode(encoding))
    assert decoded is not None
    assert decoded[0] == text
    assert (decoded[1] is None) == (encoding == "utf-8")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (codecs.BOM_UTF8 + "Плотина".encode(), ("Плотина", None)),
        ("Плотина".encode("utf-16"), ("Плотина", None)),
        ("大坝".encode("utf-16"), ("大坝", None)),
        ("Плотина".encode("utf-32"), ("Плотина", None)),
        (codecs.BOM_UTF8 + "Плотина достроена".encode("cp1251"), ("Плотина достроена", "Windows-1251")),
        (codecs.BOM_UTF16_LE + "Плотина достроена".encode(), ("Плотина достроена", "UTF-8 behind a mark of UTF-16")),
        (codecs.BOM_UTF16_BE + b"the dam was finished", ("the dam was finished", "UTF-8 behind a mark of UTF-16")),
        (b"caf\xc3\xa9 " * 40 + b"\xff", ("café " * 40 + "\ufffd", "UTF-8, damaged")),
        ("ПЛОТИНА КАРИБА".encode("cp1251"), ("ПЛОТИНА КАРИБА", "Windows-1251")),
        (
            "Плотина Кариба. ".encode() * 20 + b"\0\0 end",
            ("Плотина Кариба. " * 20 + "\ufffd\ufffd end", "UTF-8, damaged"),
        ),
        (b"the dam\n" * 40 + b"\0", ("the dam\n" * 40 + "\ufffd", "UTF-8, damaged")),
        (b"a\r\nb\rc", ("a\nb\nc", None)),
        (b"", ("", None)),
    ],
)
def test_a_byte_order_mark_is_believed_unless_it_is_wrong(data: bytes, expected: tuple[str, str | None]) -> None:
    """Editors leave wrong marks; what follows decides. What was guessed is told."""
    assert decode(data) == expected


@pytest.mark.parametrize(
    ("label", "content", "expected"),
    [
        ("windows-1251", "є".encode("cp1251"), ("є", None)),
        ("ISO-8859-1", "“é”".encode("cp1252"), ("“é”", None)),
        ("windows-1251", "é".encode(), ("é", None)),
        ("no-such", "Größe".encode("cp1252"), ("Größe", "Windows-1252")),
        ("hex", "Größe".encode("cp1252"), ("Größe", "Windows-1252")),
        ("utf-8", "Größe".encode("cp1252"), ("Größe", "Windows-1252")),
    ],
)
def test_a_page_that_names_its_encoding_is_believed(
    label: str, content: bytes, expected: tuple[str, str | None]
) -> None:
    """Unless it is plainly wrong: then it is found out as for any other file, and told as a guess."""
    head = f'<meta charset="{label}">'
    decoded = decode_html(head.encode() + content)
    assert decoded is not None
    assert (decoded[0].removeprefix(head), decoded[1]) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x01\x00\x00\x00\x01\x00\x08\x06\x00\x00\x00",
        b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00>\x00\x01\x00\x00\x00",
        b"PK\x03\x04\x14\x00\x00\x00\x08\x00",
        bytes(range(256)),
        b"a\0b",
        "00000\0\U00010000".encode(),
        b"words\0of\0a\0program\0" * 9,
    ],
)
def test_what_is_no_text_is_none(data: bytes) -> None:
    """Programs and pictures give no passages of nonsense."""
    assert decode(data) is None


@given(st.one_of(st.binary(max_size=200), st.text().map(lambda text: text.encode("utf-16", "replace"))))
def test_any_bytes_are_text_or_none(data: bytes) -> None:
    """No bytes raise anything, and no text holds a NUL or a carriage return."""
    for decoded in (decode(data), decode_html(b"<?xml encoding='cp037'?>" + data)):
        assert decoded is None or "\r" not in decoded[0]
    assert (text := decode(data)) is None or "\0" not in text[0]
