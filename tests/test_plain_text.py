"""What text from a source or a model can no longer do once it is stored or shown."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from caveat_tools.plain_text import MAX_MARKS, markdown_text, one_line, plain

ZWJ, ZWNJ = "\u200d", "\u200c"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m, \x1b[1;38;5;196mbold\x1b[m", "red, bold"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x1b]8;;http://evil.example\x07link\x1b]8;;\x07", "link"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]8;;http://evil.example\x9clink\x9d8;;\x9c.", "link."),
        ("a\x1b]52;c;cm0gLXJm\nIC8=\x07b", "ab"),
        ("a\x1b]52;c;cm0gLXJmIC8=\nnext line", "a\nnext line"),
        ("a\x1b]0;" + "x" * 10_000, "a" + "x" * 5_906),
        ("a\x1bP1$r0m\x1b\\b\x1b_hidden\x1b\\c\x1b^x\x1b\\d\x1bXy\x1b\\e", "abcde"),
        ("a\x1bPtmux;\x1b\x1b]52;c;cm0=\x07\x1b\\b", "ab"),
        ("a\x1b(Bb\x1bcc\x1b", "abc"),
        ("a\x1b[2Jb\x1b[?1049hc\x1b[12", "abc"),
        ("a\x9ezivot continues here", "azivot continues here"),
    ],
)
def test_escape_sequences_go_with_everything_they_carry(text: str, expected: str) -> None:
    """No colour, link, window title or clipboard content reaches a terminal, nor is its payload left as litter."""
    assert plain(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\nd\te", "a\nb\nc\nd\te"),
        ("page one\fpage two\vx\x85y\u2028z\u2029.", "page one\npage two\nx\ny\nz\n."),
        ("real\rfake", "real\nfake"),
        ("a\x00b\x08c\x7fd\x80e", "abcde"),
        ("abc\u202ecba\u202c\u2066x\u2069\u200e\u200f\u061c", "abccbax"),
        ("in\u200bvis\u2060ible\ufeff", "invisible"),
        ("ok\U000e0041\U000e0042\U000e007f", "ok"),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        ("z" + "\u0301" * 50 + "a", "z" + "\u0301" * MAX_MARKS + "a"),
        ("ก" + "็" * 20, "ก" + "็" * MAX_MARKS),
        ("😀" + "\U000e0101" * 20, "😀" + "\U000e0101" * MAX_MARKS),
    ],
)
def test_nothing_hides_reorders_or_overprints(text: str, expected: str) -> None:
    """Controls, bidi overrides, invisible characters and towers of marks do not survive; line breaks do."""
    assert plain(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        f"می{ZWNJ}خواهم",
        f"क्{ZWJ}ष",
        f"ක්{ZWJ}ර",
        f"👩{ZWJ}👩{ZWJ}👧",
        f"❤\ufe0f{ZWJ}🔥",
        "Ünïcödé, 中文, русский, हिन्दी, עִבְרִית: “fine” — 10 000 € ½ …",
        "Zo\u0308e, e\u0301 and soft\u00adhyphen",
    ],
)
def test_real_writing_is_left_as_it_is(text: str) -> None:
    """Joiners that a script needs, accents, and characters of any language stay untouched."""
    assert plain(text) == text


@pytest.mark.parametrize(
    "text", [f"a{ZWJ}b", f"1{ZWNJ}5", f"{ZWJ}م", f"م{ZWNJ}", f"م{ZWJ}{ZWJ}م", f"٣{ZWNJ}٤", f"а{ZWJ}б"]
)
def test_a_joiner_that_joins_nothing_is_removed(text: str) -> None:
    """An invisible character cannot split a word or number of a script that has no use for it."""
    assert plain(text) == text.replace(ZWJ, "").replace(ZWNJ, "")


HOSTILE = st.text(
    alphabet=st.one_of(
        st.characters(),
        st.sampled_from("\x1b\x07\x9b\x9c\x9d\\[]P;m0\r\n\t\u202e\u200b\u200c\u200d\ud800\U000e0041\u0301\u0302मم👩a "),
    )
)
UNWANTED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


@given(HOSTILE)
def test_plain_text_is_free_of_everything_unwanted_and_stays_as_it_is(text: str) -> None:
    """Whatever comes in, the result is clean, never longer, can be encoded, and cleaning again changes nothing."""
    result = plain(text)
    assert not UNWANTED.search(result)
    assert len(result) <= len(text)
    assert result.encode().decode() == result
    assert plain(result) == result


@given(st.text(alphabet="a\u0301\u0302\u0e47\u200c\u200d\u0915\u094d\ufe0f", max_size=60))
def test_no_run_of_marks_is_longer_than_any_script_needs(text: str) -> None:
    """Not even invisible joiners between them let marks pile up."""
    run = 0
    for char in plain(text):
        run = run + 1 if unicodedata.category(char) == "Mn" else 0
        assert run <= MAX_MARKS


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_letters_digits_and_signs_are_never_touched(text: str) -> None:
    """Cleaning cannot change what a source says."""
    assert plain(text) == text


@given(HOSTILE, st.integers(1, 80))
def test_one_line_is_one_line_of_the_length_asked_for(text: str, limit: int) -> None:
    """A title fits its place; nothing in it starts a new line."""
    result = one_line(text, limit)
    assert len(result) <= limit
    assert len(result.splitlines()) <= 1
    assert "  " not in result
    assert result == result.strip()


def test_one_line_says_where_it_was_cut() -> None:
    """A reader sees that a title goes on."""
    assert one_line("A  long\n\ttitle of\x1b[1m a paper", 12) == "A long…"
    assert one_line("short\r\n", 12) == "short"


# Markdown

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
SOURCE_TEXT = st.text(alphabet=st.sampled_from("ab1 \n\t\\`*_[]()<>#|!&;~+-=.:/?\"'é中"), max_size=60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[click](http://evil.example)", r"\[click\](http\://evil.example)"),
        ("![pixel](//evil.example/x.png)", r"!\[pixel\](//evil.example/x.png)"),
        ("<img src=x onerror=alert(1)>", r"\<img src=x onerror=alert(1)>"),
        ("<!-- hidden", r"\<!-- hidden"),
        ("# Heading\n## Another #", "\\# Heading\n\\## Another \\#"),
        ("Title\n===\n---\n- - -", "Title\n\\===\n\\---\n\\- - -"),
        ("- item\n12. item\n> quote\n+ item", "\\- item\n12\\. item\n\\> quote\n\\+ item"),
        ("    code\n\tcode\n```\ncode", "code\ncode\n\\`\\`\\`\ncode"),
        ("a | b\n:-|-:", "a \\| b\n\\:-\\|-:"),
        ("**bold** ~~gone~~ _it_ `code`", r"\*\*bold\*\* \~\~gone\~\~ \_it\_ \`code\`"),
        ("&lt;b&gt; &#x41;", r"\&lt;b\&gt; \&#x41;"),
        ("www.evil.example or me@evil.example", r"www\.evil.example or me\@evil.example"),
        ("Look!", r"Look\!"),
        ("a\\", "a\\\\"),
        ("\x1b[31m[x](y)", r"\[x\](y)"),
        # what needs no escape stays readable
        ("R&D in C#: p < 0.05, 3-5 % of snake_case (-5 °C). Yes! No.", None),
        ("-5 degrees, 2019 was warm", None),
    ],
)
def test_a_source_cannot_write_into_the_report(text: str, expected: str | None) -> None:
    """Links, images, headings, lists, tags and code come out as the characters they are written with."""
    assert markdown_text(text) == (text if expected is None else expected)


@given(SOURCE_TEXT)
def test_a_reader_of_the_rendered_report_sees_the_source_text_and_nothing_else(text: str) -> None:
    """Rendered, the text is paragraphs of plain characters: the very characters that the source wrote."""
    seen = []
    for block in MARKDOWN.parse(markdown_text(text)):
        assert block.type in {"paragraph_open", "inline", "paragraph_close"}
        for piece in block.children or ():
            assert piece.type in {"text", "softbreak", "hardbreak"}
            seen.append(piece.content if piece.type == "text" else " ")
        seen.append(" ")
    assert "".join(seen).split() == text.split()


@pytest.mark.parametrize(
    "frame", ["# {} #", "- {}", "> {}", "**{}**", "[{}](#S1)", "{}[S1](#S1)", "| {} | b |\n|---|---|"]
)
@given(title=SOURCE_TEXT)
def test_a_title_stays_plain_inside_the_reports_own_markup(frame: str, title: str) -> None:
    """A title in a heading, list, link or table adds no markup of its own, and its end does not change what follows."""
    text = one_line(title, 60) or "x"

    def markup(inner: str) -> list[str]:
        tokens = MARKDOWN.parse(frame.format(inner))
        return [t.type for block in tokens for t in [block, *(block.children or ())] if t.type != "text"]

    assert markup(markdown_text(text)) == markup("x")
    assert "html_inline" not in markup(markdown_text(text))


@pytest.mark.parametrize(
    "piece",
    [
        "\x1b]",
        "\x9d",
        "\x9da\n",
        "\x1b[",
        "\x1b[1",
        "\x1b ",
        "\u0301",
        ZWJ,
        f"م{ZWJ}",
        "—",
        "[",
        "&a",
        "<",
        "_",
        "1",
        " ",
        "\t\n",
        "a",
    ],
)
@pytest.mark.usefixtures("_ends")
def test_much_of_anything_does_not_keep_it_busy(piece: str) -> None:
    """Time grows with length only, also for text made to defeat a pattern; and what comes out is plain."""
    text = piece * (300_000 // len(piece))
    once = plain(text)
    assert plain(once) == once
    plain("\x1b]" + text)
    markdown_text(text[:100_000])
