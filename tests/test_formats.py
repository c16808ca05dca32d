"""Documents of every format: which passages they give, where these stand, and what damaged files give instead."""

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from caveat_tools.documents import read_text
from caveat_tools.formats import KINDS, Kind, NoTextError, Reading, Row, UnreadableError, kind_of
from caveat_tools.outcome import MAX_PASSAGE_CHARS
from made_files import docx, epub, notebook, paragraph, pdf, table, zipped

SENTENCE = "Water fell over the rim of the wall and ran on. "
RUSSIAN = "Плотина Кариба построена на реке Замбези."


def rows(name: str, content: str | bytes, path: Path) -> Iterator[Row]:
    """Yield the passages of a file."""
    file = path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    yield from Reading(file, kind_of(name), "untitled")


def read(name: str, content: str | bytes, path: Path) -> list[tuple[str, str, str]]:
    """Return place, title and text of each passage of a file."""
    return [(row.place, row.title, row.text) for row in rows(name, content, path)]


def reason(name: str, content: str | bytes, path: Path) -> str:
    """Return why a file cannot be read."""
    with pytest.raises(UnreadableError) as caught:
        read(name, content, path)
    return str(caught.value)


def test_a_passage_of_a_pdf_names_its_page_and_the_bookmark_above_it(tmp_path: Path) -> None:
    """Russian and English come out as they stand; a bookmark holds from its line on, also on the pages that follow."""
    made = pdf(
        [["Contents"], ["Before.", "1 History", RUSSIAN], ["It was finished in 1959."]], [("History", 2)], title="Dams"
    )
    assert read("a.pdf", made, tmp_path) == [
        ("#page=1", "Dams", "Contents"),
        ("#page=2", "Dams", "Before."),
        ("#page=2", "Dams › History", f"1 History\n{RUSSIAN}"),
        ("#page=3", "Dams › History", "It was finished in 1959."),
    ]


def test_no_passage_crosses_a_page(tmp_path: Path) -> None:
    """Short pages are passages of their own and long ones several, each with the right number."""
    made = pdf([[f"{n}. {SENTENCE}".strip() for n in range(45)], ["Short."]])
    passages = read("a.pdf", made, tmp_path)
    assert [place for place, _, _ in passages] == ["#page=1"] * (len(passages) - 1) + ["#page=2"]
    assert len(passages) > 2
    assert all(len(text) <= MAX_PASSAGE_CHARS for _, _, text in passages)


def test_a_word_broken_at_the_end_of_a_line_is_found_whole(tmp_path: Path) -> None:
    """The text keeps its hyphen, since quotes are checked against it; the words to search have both forms."""
    [row] = rows("a.txt", "The foot-\nbridge stands.", tmp_path)
    assert row.text == "The foot-\nbridge stands."
    assert {"foot", "bridg", "footbridg"} <= set(row.body.split())


@pytest.mark.parametrize("title", ["Microsoft Word - draft 3.docx", "untitled", "paper.dvi", ""])
def test_a_title_that_nobody_gave_is_not_shown(tmp_path: Path, title: str) -> None:
    """What a program wrote in place of a title says nothing; the name of the file does."""
    assert read("a.pdf", pdf([["Text."]], title=title), tmp_path) == [("#page=1", "untitled", "Text.")]


def test_pages_that_are_pictures_are_named_and_the_others_read(tmp_path: Path) -> None:
    """A scan is no empty document: somebody could have written on it."""
    assert reason("a.pdf", pdf([None, None]), tmp_path) == "its pages are pictures without text, as of a scan"
    found: list[Row] = []
    with pytest.raises(UnreadableError, match="page 2 is a picture without text"):
        found.extend(rows("b.pdf", pdf([["One."], None, ["Three."], []]), tmp_path))
    assert [row.place for row in found] == ["#page=1", "#page=3"]


def test_a_page_of_curves_is_named(tmp_path: Path) -> None:
    """Text that was drawn and not written is no empty page."""
    made = pdf([["One."], ["Two."]])
    drawn = b"0 0 m 9 9 l S"
    begin = made.index(b"BT", made.index(b"BT") + 1)
    end = made.index(b"ET", begin) + 2
    made = made[:begin] + drawn.ljust(end - begin) + made[end:]
    found: list[Row] = []
    with pytest.raises(UnreadableError, match="page 2 is a picture without text"):
        found.extend(rows("a.pdf", made, tmp_path))
    assert [row.text for row in found] == ["One."]


def test_a_word_document_of_pictures_or_other_documents_is_named(tmp_path: Path) -> None:
    """What holds no text that can be read could hold evidence; what can be read beside it is."""
    assert reason("a.docx", docx("<w:p><w:r><w:drawing/></w:r></w:p>"), tmp_path) == "it holds pictures without text"
    found: list[Row] = []
    with pytest.raises(UnreadableError, match="a part of it is a document of another format"):
        found.extend(rows("b.docx", docx(paragraph("One.") + '<w:altChunk w:rel="c1"/>'), tmp_path))
    assert [row.text for row in found] == ["One."]


def test_a_quote_within_a_field_opens_nothing(tmp_path: Path) -> None:
    """Inches are no quotes: the rows that follow keep their own lines."""
    made = 'Name,Note\nPipe,5" wide\nRod,"long, 6"" wide\nand ""old"""\nBar,7" "x\n' + f"Dam,{'high ' * 90}\n"
    places = [(place, text.count("\n")) for place, _, text in read("a.csv", made, tmp_path)]
    assert places == [(":2", 4), (":6", 1)]


def test_a_damaged_page_is_named_and_the_others_read(tmp_path: Path) -> None:
    """One broken object in a file does not cost the rest of it."""
    made = pdf([["One."], ["Two."], ["Three."]])
    at = made.rindex(b"/Type /Page ", 0, made.rindex(b"/Type /Page "))
    found: list[Row] = []
    with pytest.raises(UnreadableError, match="page 2 is damaged"):
        found.extend(rows("a.pdf", made[:at] + b"/Type /Xage " + made[at + 12 :], tmp_path))
    assert [row.text for row in found] == ["One.", "Three."]


def test_a_word_document_gives_headings_lists_tables_and_every_sign(tmp_path: Path) -> None:
    """Nothing that can change a meaning is lost on the way."""
    body = (
        paragraph("Dams", "H1")
        + paragraph(RUSSIAN)
        + paragraph("Results", "H2")
        + paragraph("p &lt; 0.05 &amp; x_1 *2*")
        + table([["Name", "Year"], ["Kariba", "1959"]])
        + paragraph("After.")
    )
    assert read("a.docx", docx(body), tmp_path) == [
        ("#paragraph=2", "Dams", RUSSIAN),
        ("#paragraph=4", "Dams › Results", "p < 0.05 & x_1 *2*\n\nName\tYear\nKariba\t1959\n\nAfter."),
    ]


def test_a_book_is_read_in_its_own_order(tmp_path: Path) -> None:
    """The chapter is counted in the order of reading, and its headings stand above the passage."""
    chapters: dict[str, str | bytes] = {
        "b.xhtml": "<html><head><title>x</title></head><body><h1>Two</h1><p>Second &amp; last.</p></body></html>",
        "a.xhtml": f"<html><body><h1>One</h1><p>{RUSSIAN}</p></body></html>",
    }
    assert read("a.epub", epub(chapters, "The Book", ["a.xhtml", "b.xhtml"]), tmp_path) == [
        ("#chapter=1", "The Book › One", RUSSIAN),
        ("#chapter=2", "The Book › Two", "Second & last."),
    ]


def test_a_missing_or_locked_chapter_is_named_and_the_others_read(tmp_path: Path) -> None:
    """One chapter that cannot be read does not silently go."""
    made = epub(
        {"a.xhtml": "<p>One.</p>", "c.xhtml": bytes(range(256)) * 3}, spine=["a.xhtml", "gone.xhtml", "c.xhtml"]
    )
    found: list[Row] = []
    with pytest.raises(UnreadableError, match="2 of its chapters cannot be read"):
        found.extend(rows("a.epub", made, tmp_path))
    assert [row.text for row in found] == ["One."]


def test_a_book_with_empty_elements_is_read_to_its_end(tmp_path: Path) -> None:
    """A chapter of a book is XHTML, whether or not it says so."""
    made = epub(
        {"a.xhtml": "<head><title/><script src='a.js'/></head><p>One <![CDATA[& all]]>.</p><style/><p>Two.</p>"}
    )
    assert [text for _, _, text in read("a.epub", made, tmp_path)] == ["One & all.\n\nTwo."]


def test_a_long_title_of_a_book_is_cut(tmp_path: Path) -> None:
    """It stands above each passage, so a title of a megabyte would make an index of gigabytes."""
    [(_, title, _)] = read("a.epub", epub({"a.xhtml": "<p>One.</p>"}, "Dam " * 9_000), tmp_path)
    assert len(title) <= 120


def test_a_chapter_of_another_kind_is_named(tmp_path: Path) -> None:
    """A picture in the order of reading, or one that is not listed, could hold evidence."""
    made = epub({"a.xhtml": "<p>One.</p>", "b.svg": "<svg/>"})
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        parts: dict[str, str | bytes] = {name: archive.read(name) for name in archive.namelist()}
        package = archive.read("OEBPS/book.opf")
    kind = b'href="b.svg" media-type='
    package = package.replace(kind + b'"application/xhtml+xml"', kind + b'"image/svg+xml"')
    parts["OEBPS/book.opf"] = package.replace(b"</spine>", b'<itemref idref="nowhere"/></spine>')
    found: list[Row] = []
    with pytest.raises(UnreadableError, match="2 of its chapters cannot be read"):
        found.extend(rows("a.epub", zipped(parts), tmp_path))
    assert [row.text for row in found] == ["One."]


def test_what_a_notebook_has_shown_or_failed_with_is_read(tmp_path: Path) -> None:
    """Markdown, HTML and errors are evidence like printed text; where there are several forms, one is read."""
    made = notebook(
        (
            "code",
            "show()",
            [
                {"data": {"text/plain": "<IPython.core.display.HTML object>", "text/html": ["<b>128</b>", " m"]}},
                {"data": {"text/plain": "a  b", "text/html": "<table><tr><td>a<td>b</table>"}},
                {"data": {"text/plain": "<IPython.core.display.Markdown object>", "text/markdown": "**high**"}},
                {"output_type": "error", "ename": "ValueError", "evalue": "too low", "traceback": []},
            ],
        ),
    )
    assert [text for _, _, text in read("a.ipynb", made, tmp_path)] == [
        "show()\n\n128 m\n\na  b\n\n**high**\n\nValueError: too low"
    ]


def test_a_notebook_gives_prose_code_and_output_by_cell(tmp_path: Path) -> None:
    """A heading in one cell stands over those that follow; what code has printed is evidence."""
    made = notebook(
        ("markdown", "# Dams\n\nAbout walls.\n", []),
        ("code", "# no heading\nprint(height)", [{"output_type": "stream", "text": ["128\n", "metres"]}]),
        ("markdown", "## Cost", []),
        ("code", "cost()", [{"output_type": "execute_result", "data": {"text/plain": "7", "image/png": "x"}}]),
    )
    assert read("a.ipynb", made, tmp_path) == [
        ("#cell=1", "Dams", "About walls.\n\n# no heading\nprint(height)\n\n128\nmetres"),
        ("#cell=4", "Dams › Cost", "cost()\n\n7"),
    ]


def test_a_row_of_a_table_stands_below_the_names_of_its_columns(tmp_path: Path) -> None:
    """A value keeps its meaning; the place is the line of the row, also behind quoted line breaks."""
    lines = [f"Dam {number},{1900 + number},{'a note on it ' * 29}it" for number in range(3)]
    made = "\n".join(["Name,Year,Notes", '"Kariba\ndam",1959,"high, old"', *lines])
    first, *others = read("a.csv", made, tmp_path)
    assert first == (":2", "untitled", 'Name,Year,Notes\n"Kariba\ndam",1959,"high, old"')
    assert others == [(f":{4 + n}", "untitled", f"Name,Year,Notes\n{line}") for n, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("made", "texts"),
    [
        ("1;2\n3;4\n", ["1;2\n3;4"]),
        ("only a line of text\n", ["only a line of text"]),
        ("a\tb\n", ["a\tb"]),
        ("name|x\n" + "v" * 2_000, ["name|x\n" + "v" * 1_193, "name|x\n" + "v" * 807]),
    ],
)
def test_a_table_without_names_or_with_endless_rows_loses_nothing(tmp_path: Path, made: str, texts: list[str]) -> None:
    """Numbers are no names of columns, and a row that is too long goes on in the next passage."""
    found = [text for _, _, text in read("a.csv", made, tmp_path)]
    assert "".join(text.removeprefix("name|x\n") for text in found) == "".join(
        text.removeprefix("name|x\n") for text in texts
    )


def test_titles_of_restructuredtext_make_sections() -> None:
    """Overlined and underlined titles count by the order of their styles; a transition or a table is none."""
    text = (
        "======\nDams\n======\n\nIntro.\n\nKariba\n------\n\nHigh.\n\n-----\n\nMore.\n\n"
        "Itaipu\n------\nWide.\n\n====  ====\na     b\n====  ====\n"
    )
    assert list(read_text(text, "rst").passages("x")) == [
        ("Dams", 5, "Intro."),
        ("Dams › Kariba", 10, "High.\n\n-----\n\nMore."),
        ("Dams › Itaipu", 18, "Wide.\n\n====  ====\na     b\n====  ===="),
    ]


def locked_zip() -> bytes:
    """Return an archive whose first part says that it is encrypted."""
    made = bytearray(zipped({"META-INF/container.xml": "x", "word/document.xml": "x"}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        made[made.index(mark) + offset] |= 1
    return bytes(made)


def bomb() -> bytes:
    """Return a Word document of a few kilobytes that unpacks to 40 MB."""
    return zipped({"word/document.xml": b" " * 40_000_000})


@pytest.mark.parametrize(
    ("name", "made", "says"),
    [
        ("a.pdf", b"", "damaged, or no PDF"),
        ("a.pdf", b"%PDF-1.7\n%%EOF", "damaged, or no PDF"),
        ("a.pdf", pdf([["x"]])[:-400], "damaged|pictures"),
        ("a.docx", b"junk", "damaged"),
        ("a.docx", zipped({"x": "y"}), "damaged, or no Word document"),
        ("a.docx", docx("<broken"), "damaged, or no Word document"),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "locked with a password"),
        ("a.docx", bomb(), "larger than 30 MB when unpacked"),
        ("a.epub", zipped({}), "a part of it is missing"),
        ("a.epub", zipped({"META-INF/container.xml": "<a/>"}), "does not say where its chapters are"),
        ("a.epub", zipped({"META-INF/container.xml": "<a"}), "its list of chapters is damaged"),
        ("a.epub", locked_zip(), "locked with a password"),
        ("a.ipynb", "{", "damaged, or no notebook"),
        ("a.ipynb", "[" * 100_000, "damaged, or no notebook"),
        ("a.ipynb", "[]", "no notebook"),
    ],
)
def test_a_damaged_or_locked_document_says_so(tmp_path: Path, name: str, made: bytes | str, says: str) -> None:
    """The reason is a clause for the report, and never a traceback."""
    assert re.search(says, reason(name, made, tmp_path))


def test_endless_entities_are_refused(tmp_path: Path) -> None:
    """A book whose list of chapters doubles itself in memory is damaged, and not the end of the machine."""
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    xml = f'<!DOCTYPE a [<!ENTITY l0 "ha">{laughs}]><a>&l11;</a>'
    assert reason("a.epub", zipped({"META-INF/container.xml": xml}), tmp_path) == "its list of chapters is damaged"


SAMPLES: dict[str, bytes] = {
    ".pdf": pdf([["Kariba dam"], None], [("Kariba", 1)]),
    ".docx": docx(paragraph("Dams", "H1") + paragraph("Text") + table([["a", "b"]])),
    ".epub": epub({"a.xhtml": "<h1>One</h1><p>Text</p>"}, "Book"),
    ".ipynb": notebook(("markdown", "# A\ntext", []), ("code", "x", [{"text": "y"}])).encode(),
    ".csv": b"a,b\n1,2\n",
    ".rst": b"A\n=\n\ntext",
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data(), suffix=st.sampled_from([*KINDS, ".py", ""]))
def test_any_bytes_under_any_suffix_give_an_outcome(data: st.DataObject, suffix: str, tmp_path: Path) -> None:
    """Passages that fit, or one of two named errors, for noise and for documents with a few wrong bytes."""
    sample = SAMPLES.get(suffix, b"# Text\n\n<p>of 1959</p>")
    content = data.draw(st.one_of(st.binary(max_size=300), st.just(sample)))
    if content == sample:
        for _ in range(data.draw(st.integers(0, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            content = content[:at] + data.draw(st.binary(max_size=3)) + content[at + 1 :]
    try:
        for row in rows(f"a{suffix}", content, tmp_path):
            assert 0 < len(row.text) <= MAX_PASSAGE_CHARS
            assert row.body
            row.text.encode()
            row.title.encode()
    except (UnreadableError, NoTextError) as error:
        assert "\n" not in str(error)


FIELDS = [
    "text/html",
    "text/markdown",
    "evalue",
    "cells",
    "worksheets",
    "source",
    "input",
    "cell_type",
    "outputs",
    "text",
    "data",
    "text/plain",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


CELL = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(FIELDS, JSON)
    | {
        "outputs": st.lists(JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON)), max_size=2),
        "source": st.just("text") | JSON,
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=JSON | st.fixed_dictionaries({"cells": st.lists(CELL | JSON, max_size=3)}))
@example(content={"cells": [{"cell_type": [], "source": "text"}]})
def test_any_json_is_a_notebook_or_none(content: object, tmp_path: Path) -> None:
    """Whatever stands in the place of a field."""
    try:
        list(rows("a.ipynb", json.dumps(content), tmp_path))
    except UnreadableError as error:
        assert str(error) == "it is no notebook"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.lists(st.sampled_from(['"', ",", "\n", "a", "1", ";", "\t", "x" * 500, '""', "é "])).map("".join),
    kind=st.sampled_from(["table"]),
)
def test_every_line_of_a_table_is_in_a_passage(content: str, kind: str, tmp_path: Path) -> None:
    """However it is quoted: what is not white space stands in the passages, verbatim and in order."""
    found = list(Reading(tmp_path, cast("Kind", kind), "t", content.encode()))
    for row in found:
        assert len(row.text) <= MAX_PASSAGE_CHARS
        for line in row.text.split("\n"):
            assert line in content
        assert int(row.place[1:]) <= content.count("\n") + 1


def test_an_archive_that_lies_about_its_sizes_is_not_unpacked_beyond_the_limit(tmp_path: Path) -> None:
    """What an archive says of itself is a first look only."""
    made = bytearray(epub({"a.xhtml": b"<p>" + b"a " * 20_000_000}))
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        size = archive.getinfo("OEBPS/a.xhtml").file_size
    made = bytearray(bytes(made).replace(size.to_bytes(4, "little"), (1_000).to_bytes(4, "little")))
    assert reason("a.epub", bytes(made), tmp_path).startswith("1 of its chapters cannot")
