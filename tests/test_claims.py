"""What a reader can rely on when a claim is called verified."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from caveat.claims import CheckedQuote, Claim, check, find_quote, weight

STANDS = [
    # whitespace and line wraps
    ("the drug is not toxic", "We found that the drug is not toxic to mice."),
    ("the drug is not toxic", "the drug\n  is not\ttoxic"),
    ("the drug is not toxic", "the drug\u00a0is\u2009not  \ntoxic"),
    ("the drug  is\nnot toxic", "the drug is not toxic"),
    ("a hard break and more", "a hard break\\\nand more"),
    ("covered 10 000 patients", "It covered 10\u202f000 patients."),
    # quotation marks, apostrophes, dashes, ellipsis, ligatures, invisible characters
    ("'the drug is not toxic'", "The authors say the drug is not toxic."),
    ("“the drug is not toxic”", "The authors say the drug is not toxic."),
    ("„Das Mittel ist giftig.“", "„Das Mittel ist giftig“, sagt sie."),
    ('he said "no" and left', "Then he said “no” and left."),
    ('il a dit "non" hier', "Hier: il a dit «non» hier."),
    ("it doesn't work", "So it doesn’t work."),
    ("п'ять хвилин тому", "Це було пʼять хвилин тому."),
    ("the cost - and the risk - grew", "the cost — and the risk — grew"),
    ("well-known facts", "well\u2011known facts"),
    ("a drop of -5 degrees", "a drop of −5 degrees"),
    ("pages 12-15 of it", "pages 12–15 of it"),
    ("and so on... until then", "and so on… until then"),
    ("the efficient office flow", "the eﬃcient oﬀice ﬂow"),
    ("unbelievable results", "un\u00adbeliev\u00adable results"),
    ("invisible spaces here", "invis\u200bible\ufeff spaces\u2060 here"),
    # words broken at line ends
    ("for example this one", "for exam-\nple this one"),
    ("a well-known example", "a well-\nknown exam-\n  ple"),
    ("a well-known example", "a well- known exam- ple"),
    ("pre- and post-war art", "pre-\nand post-war art"),
    ("pre- and post-war art", "pre- and post-war art"),
    ("for exam-\nple this one", "for exam-\nple this one"),
    ("under covid-19 rules", "under covid-\n19 rules"),
    ("unbelievable results", "unbe\u00ad\nlievable results"),
    # Markdown that a reader does not see
    ("this is not safe", "this is **not** safe"),
    ("this is not safe", "this _is_ ***not*** safe"),
    ("this is **not** safe", "this is **not** safe"),
    ("this is **not** safe", "this is not safe"),
    ("isRetryable is false", "`isRetryable` is `false`"),
    ("the max_retries option", "the `max_retries` option"),
    ("the __init__ method", "the `__init__` method"),
    ("the ValidationErrors are kept", "the `ValidationError`s are kept"),
    ("both user_* and site_* folders", "both `user_*` and `site_*` folders"),
    ("`user_*` and site_* folders", "both `user_*` and `site_*` folders"),
    ("see tests/*.py for it", "run src/*.py, see tests/*.py for it"),
    ("`isRetryable` is not set", "`isRetryable` is **not** set"),
    ("see the guide for more", "see [the guide](https://x.org/a_(b)) for more"),
    ("see [the guide](https://x.org) now", "see [the guide](https://x.org) now"),
    ("not safe, see [1] there", "**not safe**, see [1] there"),
    ("the price is 5*3 euros", "the price is 5*3 euros"),
    # whole words and numbers
    ("5 million people", "About (5 million people) came."),
    ("5 million people", "In 2019, 5 million people came."),
    ("5 million people", "- 5 million people came"),
    ("grew by 3.7 %", "It grew by 3.7 %."),
    ("grew by 3 percent.", "It grew by 3 percent, then fell."),
    ("the drug works", "the drug works—but not well"),
    ("but not always well", "the drug works—but not always well"),
    ("this was safe", "this was safe[12] and so on"),
    ("The area is 10² km", "The area is 10² km"),
    ("written in C++", "It is written in C++."),
    # Russian, German, French, Hindi: composed and decomposed
    ("препарат не токсичен", "Вывод: препарат не токсичен для мышей."),
    ("всё ещё неясно", unicodedata.normalize("NFD", "Пока всё ещё неясно.")),
    ("Größe und Maß", unicodedata.normalize("NFD", "Die Größe und Maß zählen")),
    (unicodedata.normalize("NFD", "Die Größe über alles"), "Die Größe über alles"),
    ("Vor- und Nachteile", "Alle Vor- und Nachteile"),
    ("Donaudampfschiff fährt", "Das Donau-\ndampfschiff fährt"),
    ("हिन्दी में लिखा", "यह हिन्दी में लिखा है"),
    ("한국어 문장입니다", unicodedata.normalize("NFD", "이것은 한국어 문장입니다.")),
    # Chinese, Japanese, Thai: no spaces, so no word boundaries
    ("该药物对小鼠无毒", "研究表明该药物对小鼠无毒性作用。"),
    ("研究表明该药物无毒", "研究\n表明该药物无毒"),
    ("研究表明该药物无毒", "研究表明**该药物**无毒"),
    ("使用 AI 技术的研究", "他们使用 AI 技术的研究很多"),
    ("参见指南了解更多", "参见[指南](https://x.org)了解更多"),
    ("薬は安全であると", "この薬は安全であると報告された"),
    ("ยานี้ปลอดภัย", "พบว่ายานี้ปลอดภัยมาก"),
    ("共有15万人参加", "共有15万人参加了"),
]

DOES_NOT_STAND = [
    # another word, case, digit or sign
    ("the drug is toxic", "the drug is not toxic"),
    ("the drug is safe", "the drug is **not** safe"),
    ("the drug is not toxic", "the drug is toxic"),
    ("The drug is toxic", "the drug is toxic"),
    ("grew by 8 percent", "grew by 3 percent"),
    ("area of 102 km", "area of 10² km"),
    ("area of 10² km", "area of 102 km"),
    ("half a cup, 12 g", "half a cup, ½ g"),
    ("a drop of 5 degrees", "a drop of -5 degrees"),
    ("grew by 3,7 percent", "grew by 3.7 percent"),
    ("it was 10000 euros", "it was 10 000 euros"),
    ('a height of 5" in all', "a height of 5' in all"),
    ("the drug ... is toxic", "the drug, they say, is toxic"),
    ("the drug … is toxic", "the drug, they say, is toxic"),
    ("the drug is safe...", "the drug is safe for mice"),
    ("the drug is safe.,", "the drug is safe for mice"),
    ("the result is 5--3", "the result is 5-3"),
    ("wellknown facts here", "well-known facts here"),
    ("well-known facts here", "wellknown facts here"),
    ("on their websites", "on their web sites"),
    ("the price is 53 euros", "the price is 5*3 euros"),
    ("the value of 210 is", "the value of 2**10 is"),
    ("it was 10000 euros", "it was 10`000` euros"),
    ("the maxretries option", "the `max_retries` option"),
    ("[it is safe](http://evil.example)", "it is safe"),
    ("call handlersi(x) now", "call handlers[i](x) now"),
    ("a fever of 39 degrees", "a fever of ３９ degrees"),
    # cut inside a word
    ("toxic to all mice", "nontoxic to all mice"),
    ("toxic to all mice", "non-toxic to all mice"),
    ("toxic to all mice", "non‐toxic to all mice"),
    ("toxic to all mice", "non-\ntoxic to all mice"),
    ("toxic to all mice", "non- toxic to all mice"),
    ("toxic to all mice", "non\u00adtoxic to all mice"),
    ("toxic to all mice", "non\u200btoxic to all mice"),
    ("toxic to all mice", "(non)toxic to all mice"),
    ("toxic to all mice", "**non**toxic to all mice"),
    ("toxic to all mice", "[non](u)toxic to all mice"),
    ("toxic to all mice", "<b>non</b>toxic to all mice"),
    ("we recommend it and can", "we recommend it and can't explain it"),
    ("we recommend it and can", "we recommend it and can’t explain it"),
    ("this drink has sugar", "this drink has sugar-free syrup"),
    ("this is entirely safe", "this is entirely safe/unsafe"),
    ("a speed of 5 km", "a speed of 5 km/h"),
    ("it was written in C", "it was written in C++"),
    ("they ate in the caf", "they ate in the café"),
    ("they ate in the cafe", unicodedata.normalize("NFD", "they ate in the café")),
    # cut inside a number
    ("5 million people", "15 million people"),
    ("5 million people", "1.5 million people"),
    ("5 million people", "1,5 million people"),
    ("5 million people", "1·5 million people"),
    ("5 million people", ".5 million people"),
    ("5 million people", "$5 million people"),
    ("$5 million were lost", "A$5 million were lost"),
    ("5 million people", "1**5** million people"),
    ("5** million people", "1**5** million people"),
    ("5 degrees below it", "-5 degrees below it"),
    ("5 degrees below it", "−5 degrees below it"),
    ("5 degrees below it", "−\u00a05 degrees below it"),
    ("5 degrees below it", "–5 degrees below it"),
    ("5 degrees below it", "range 3-5 degrees below it"),
    ("5 degrees below it", "range 3 – 5 degrees below it"),
    ("5 degrees below it", "range **3**–**5** degrees below it"),
    ("5 mg were deadly", ">5 mg were deadly"),
    ("5 mg were deadly", "< 5 mg were deadly"),
    ("500 000 people came", "1 500 000 people came"),
    ("000 people came along", "15 000 people came along"),
    ("the study covered 15", "the study covered 15 000 patients"),
    ("the study covered 15", "the study covered 15…"),
    ("the study covered 15", "the study covered 15万人"),
    ("it grew by 3", "it grew by 3.7 %"),
    ("it grew by 3.", "it grew by 3.7 %"),
    ("it grew by 3.", "it grew by 3 %, not more"),
    ("it grew by 3", "it grew by 3%"),
    ("it grew by 3", "it grew by 3-5 points"),
    ("it grew by 3", "it grew by 3 ± 2 points"),
    ("it grew by 10", "it grew by 10^6"),
    ("it grew by 10", "it grew by 10⁶"),
    ("it grew by 10", "it grew by 10⁻⁶"),
    ("1/2 cup of sugar", "1 1/2 cup of sugar"),
    ("costs 2 3 and 4 5 now", "costs 2 *3 and 4* 5 now"),
    ("the effect of Na", "the effect of Na⁺"),
    ("it grew by 1", "it grew by 1⁄2"),
    ("5 patients were ill", ">= 5 patients were ill"),
    ("5 patients were ill", "≠ 5 patients were ill"),
    ("5 patients were ill", "⩽5 patients were ill"),
    ("5 rupees were paid", "₹5 rupees were paid"),
    ("costs 5, as they say", "costs 5,000, as they say"),
    ("the book costs 5,", "the book costs 5,000"),
    ("the drug was given to 18", "the drug was given to 18+ patients"),
    ("the meeting is at 10", "the meeting is at 10:30"),
    # other languages
    ("препарат токсичен", "препарат не токсичен"),
    ("токсичен для мышей", "нетоксичен для мышей"),
    ("люди все знали это", "люди всё знали это"),
    ("Maßnahmen sind wirksam", "Massnahmen sind wirksam"),
    ("Grosse und Kleine", "Größe und Kleine"),
    ("wirksam gegen Viren", "unwirksam gegen Viren"),
    ("安全有效的治疗方法", "不安全有效的治疗方法"),
    ("五万人参加了会议", "十五万人参加了会议"),
    ("五毫克就会致命的", "零点五毫克就会致命的"),
    ("5万人参加了会议", "15万人参加了会议"),
    ("五的病人没有反应", "百分之五的病人没有反应"),
    ("アルコール飲料です", "ノンアルコール飲料です"),
    ("该药物有毒性作用", "该药物没有毒性作用"),
    ("有毒性作用的药物", "没有毒性作用的药物"),
    ("负五度以下的温度", "五度以下的温度"),
    ("五度以下的温度里", "负五度以下的温度里"),
]


@pytest.mark.parametrize(("quote", "text"), STANDS)
def test_an_honest_quote_stands_however_it_was_typeset(quote: str, text: str) -> None:
    """Whitespace, typography, line breaks and Markdown do not make an honest quote fail; the span is in the text."""
    span = find_quote(quote, text)
    assert span is not None
    start, end = span
    assert 0 <= start < end <= len(text)
    assert not text[start].isspace()
    assert not text[end - 1].isspace()


@pytest.mark.parametrize(("quote", "text"), DOES_NOT_STAND)
def test_a_quote_with_another_meaning_does_not_stand(quote: str, text: str) -> None:
    """A changed word, digit or sign, and a cut through a word or number, make a quote fail."""
    assert find_quote(quote, text) is None


def test_the_span_is_the_quoted_stretch_of_the_original_text() -> None:
    """What is shown to a reader as the place of a quote is the source's own spelling of it."""
    text = "Intro. The **eﬃcient**\nexam-\nple: cafe\u0301s “work”. End."
    span = find_quote('efficient example: cafés "work".', text)
    assert span is not None
    assert text[slice(*span)] == "eﬃcient**\nexam-\nple: cafe\u0301s “work”."


# Properties: whatever the passage is, an honest quote stands and a changed one does not.

SENTENCE = (
    "the drug was not toxic in mice and 3.7 % of 15 patients didn't recover from a well-known “effect” at −5 °C: "
    "препарат ещё не изучен Größe über Maß café 12–15"
)
WORDS = st.sampled_from(SENTENCE.split())
PASSAGE = st.lists(WORDS, min_size=6, max_size=40)
CHANGES: list[Callable[[str], str]] = [
    lambda word: word,
    lambda word: unicodedata.normalize("NFD", word),
    lambda word: word.replace("'", "’").replace("“", '"').replace("”", '"'),
    lambda word: word.replace("-", "\u2010").replace("–", "-").replace("−", "-"),
    lambda word: "\u00ad".join(re.findall(r"\w\W*|\W+", word)),
    lambda word: f"**{word}**",
    lambda word: f"`{word}`",
]
SPACES = st.sampled_from([" ", "  ", "\n", "\u00a0", " \n\t", "\u200b "])


@given(data=st.data(), words=PASSAGE)
def test_words_copied_in_order_stand_in_any_typesetting(data: st.DataObject, words: list[str]) -> None:
    """Any stretch of a passage is found, whatever its spaces, hyphens, quotation marks and emphasis look like."""
    first = data.draw(st.integers(0, len(words) - 3))
    last = data.draw(st.integers(first + 2, len(words)))
    quoted = words[first:last]
    assume(
        not any(
            re.search(r"[\d%°]", word) for word in words[max(0, first - 1) : first + 1] + words[last - 1 : last + 1]
        )
    )
    text = "".join(data.draw(st.sampled_from(CHANGES))(word) + data.draw(SPACES) for word in words)
    assert find_quote(" ".join(quoted), text) is not None


@given(data=st.data(), words=PASSAGE)
def test_one_changed_letter_or_digit_makes_a_quote_fail(data: st.DataObject, words: list[str]) -> None:
    """A quote with one other letter or digit stands only if those very words occur in the passage too."""
    text = " ".join(words)
    places = [index for index, char in enumerate(text) if char.isalnum()]
    assume(places)
    index = data.draw(st.sampled_from(places))
    other = data.draw(st.sampled_from("aeoxzяё0123456789²ßÄ中").filter(lambda char: char != text[index]))
    changed = text[:index] + other + text[index + 1 :]
    assert find_quote(changed, text) is None
    start = changed.rfind(" ", 0, max(0, index - 12)) + 1
    end = changed.find(" ", index + 12)
    part = changed[start : None if end < 0 else end]
    assert find_quote(part, text) is None or part.strip("“”'.,;: ") in text


@given(data=st.data(), words=PASSAGE)
def test_a_word_put_in_or_left_out_makes_a_quote_fail(data: st.DataObject, words: list[str]) -> None:
    """Leaving out a "not", or adding one, is not quoting."""
    text = " ".join(words)
    at = data.draw(st.integers(1, len(words) - 2))
    assert find_quote(" ".join([*words[:at], "never", *words[at:]]), text) is None
    shorter = " ".join(words[:at] + words[at + 1 :])
    assert find_quote(shorter, text) is None or shorter.strip("“”.,;:") in text


@given(quote=st.text(), text=st.text())
def test_any_input_has_an_answer(quote: str, text: str) -> None:
    """No text, however odd, makes the check raise; a span is always inside the text."""
    span = find_quote(quote, text)
    assert span is None or 0 <= span[0] < span[1] <= len(text)


ODD = st.text(alphabet="ab15-−–.,% \n*_`\"'\u0301中不五", max_size=40)


@given(data=st.data(), text=ODD)
def test_what_stands_has_the_same_letters_and_digits_as_its_place(data: st.DataObject, text: str) -> None:
    """However oddly a passage is written, a quote that stands differs from its place in no letter, digit or mark."""
    start = data.draw(st.integers(0, len(text)))
    drop = data.draw(st.sampled_from(["", "\n", "-", "−", "*", "1", "a", " ", "."]))
    quote = text[start : data.draw(st.integers(start, len(text)))].replace(drop, "", 1)
    span = find_quote(quote, text)
    if span is not None:
        assert _said(quote) == _said(text[slice(*span)])
        assert not re.fullmatch(r"[ab15]{2}|[−–.,-][15]", text[max(0, span[0] - 1) : span[0] + 1])
        assert not re.fullmatch(r"[ab15]{2}|[15]%|.\u0301", text[span[1] - 1 : span[1] + 1])


def _said(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if c.isalnum() or unicodedata.combining(c))


@given(text=st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "M", "P", "S", "Zs"]), min_size=1))
def test_a_whole_passage_stands_in_itself(text: str) -> None:
    """Quoting everything is always quoting, whatever the script and the markup."""
    assume(any(char.isalnum() for char in text) and not unicodedata.category(text.lstrip()[0]).startswith("M"))
    assert find_quote(text, text) is not None


# Whole claims

STORED = {
    "S1": "The drug is not toxic to mice, a study of 15 animals says.",
    "S4": "Another study found no effect at all in 2019.",
    "S7": "The vaccine was **safe** in 1 500 000 patients.",
}


def test_a_claim_with_good_quotes_is_verified() -> None:
    """It keeps its text, its topic and each quote with the id of its result, and nothing is said against it."""
    claim = check("It is not toxic.", "T1", [("S1", "not toxic to mice"), ("S7", "The vaccine was safe")], STORED)
    evidence = (CheckedQuote("S1", "not toxic to mice"), CheckedQuote("S7", "The vaccine was safe"))
    assert claim == Claim("It is not toxic.", "T1", verified=True, evidence=evidence)
    assert claim.problems == ()


@pytest.mark.parametrize(
    ("evidence", "problems"),
    [
        ([], ("no evidence",)),
        ([("S9", "not toxic to mice")], ("no result has the id S9",)),
        ([("S4", "toxic to mice, a drug")], ("the quote is not in S4",)),
        ([("S4", "The vaccine was safe")], ("the quote is not in S4; it stands in S7",)),
        ([("S1", "not toxic")], ("too short to prove anything",)),
        ([("S1", "")], ("too short to prove anything",)),
        ([("S1", "not toxic to mice"), ("S9", "no effect at all")], ("no result has the id S9",)),
    ],
)
def test_an_unverified_claim_says_what_is_wrong(evidence: list[tuple[str, str]], problems: tuple[str, ...]) -> None:
    """One bad quote is enough to leave a claim unverified, and the reason names the id and the right place."""
    claim = check("It is not toxic.", "T1", evidence, STORED)
    assert not claim.verified
    assert claim.problems == problems


@pytest.mark.parametrize(
    "text", ["", "  ", "test", "Test.", "N/A", "tbd", "...", "…", "lorem ipsum", "Lorem ipsum dolor"]
)
def test_a_claim_that_says_nothing_is_not_verified(text: str) -> None:
    """A good quote does not turn a placeholder into a finding."""
    claim = check(text, "T1", [("S1", "not toxic to mice")], STORED)
    assert not claim.verified
    assert claim.problems == ("the claim is empty or a placeholder",)


def test_what_a_model_hides_in_a_claim_does_not_come_out_of_the_check() -> None:
    """Escape sequences, overrides and lone surrogates are gone from text, quote and reason."""
    evil = "\x1b[31m\u202e\ud800"
    claim = check(f"It is so.{evil}", "T1", [("S1", f"not toxic\u202e to mice{evil[:-1]}"), (f"S9{evil}", "x")], STORED)
    assert claim.evidence[0] == CheckedQuote(id="S1", quote="not toxic to mice")
    assert claim.problems == ("no result has the id S9\ufffd",)
    assert claim.text == "It is so.\ufffd"


def test_nobody_can_build_a_claim_that_is_verified_and_has_problems() -> None:
    """`verified` cannot be set by hand against the evidence."""
    bad = CheckedQuote(id="S1", quote="x", why="too short to prove anything")
    for evidence in ((), (bad,)):
        with pytest.raises(ValueError, match="evidence and no problem"):
            Claim(text="It is so.", topic="T1", verified=True, evidence=evidence)


@pytest.mark.parametrize(
    ("quote", "expected"),
    [
        ("it is so bad", 12),
        ("it  is \n so bad", 12),
        ("该药物是无毒", 12),
        ("。。。。。。。。", 1),
        ("a . . . . . . . . . .", 2),
        ("Gro\u0308ße", 5),
        ("t\u00ado\u00adx\u00adi\u00adc", 5),
        ("a\u200b\u200b\u200b\u200b\u200b", 1),
    ],
)
def test_a_quote_weighs_what_a_reader_sees_of_it(quote: str, expected: int) -> None:
    """Dots, spaces and invisible characters do not make a quote long enough."""
    assert weight(quote) == expected


# Speed


@pytest.mark.parametrize(
    ("quote", "text"),
    [
        ("a" * 5000, "a" * 100_000),
        ("a" * 5000 + "b", "a" * 100_000),
        ("a " * 2500 + "b", "a " * 50_000),
        ("ab " * 1600 + "a", "ab " * 30_000),
        ("-" * 5000, "-\n" * 50_000),
        ("a-" * 2500, "a-\n" * 30_000),
        ("x" * 20, "[" * 50_000),
        ("x" * 20, "[a](" * 20_000),
        ("x" * 20, "[a](" + "(b)" * 20_000),
        ("x" * 20, "*a " * 30_000),
        ("*" * 5000, "*" * 100_000),
        ("x" * 20, " " * 100_000),
        ("x" * 20, "中 " * 30_000),
        ("1 " * 2500, "1 000 " * 20_000),
        ("e" + "\u0301" * 5000, "e" + "\u0301" * 50_000),
        ('"' * 5000, '"' * 50_000),
        ("x" * 20, "\u00ad\n" * 30_000),
        ("x" * 20, "\u00ad" + " " * 50_000),
    ],
)
@pytest.mark.usefixtures("_ends")
def test_hostile_input_does_not_keep_the_check_busy(quote: str, text: str) -> None:
    """Texts made to defeat a pattern are checked, and the check ends."""
    find_quote(quote, text)


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("See pages 10-\n20 of the annual report.", "See pages 1020 of the annual report"),
        ("It lasted from 1990-\n1995 in all.", "It lasted from 19901995 in all"),
        ("Call 555-\n1234 for the answer.", "Call 5551234 for the answer"),
        ("The F-\n16 flew over the dam.", "The F16 flew over the dam"),
        ("The wall is 1\u00ad\n5 metres high.", "The wall is 15 metres high"),
    ],
)
def test_digits_at_a_line_break_are_never_joined_into_another_number(text: str, quote: str) -> None:
    """A range or a number that was broken at a hyphen is not read as one that the source does not hold."""
    assert find_quote(quote, text) is None
