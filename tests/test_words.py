"""What counts as the same word, what a query is about, and where a sentence ends, in any language."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat_tools.words import content_terms, sentence_spans, sentences, terms


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The DAMS were finished", "the dam was finishing"),
        ("Плотины достроены", "плотина достроена"),
        ("naïve Łódź Straße", "naive Lodz STRASSE"),
        ("Кари́ба ёлка", "Кариба елка"),
        ("Kariba's wall", "Kariba wall"),
        ("ﬁne １９５９", "fine 1959"),
        ("auto\u00admatic", "automatic"),
        ("ΠΌΛΗ", "πολη"),
        ("شَمْس", "شمس"),
    ],
)
def test_a_word_is_found_in_another_form_case_or_spelling(one: str, other: str) -> None:
    """Endings, case, accents, stress marks, ligatures and soft hyphens do not hide a word from a query."""
    assert set(terms(other)) - set(terms(one)) <= {"was"}


@pytest.mark.parametrize(
    "forms",
    [
        "паром парома парому паромом пароме паромы паромов паромам паромами паромах",
        "вагон вагона вагону вагоном вагоне вагоны вагонов вагонам вагонами вагонах",
        "альбом альбома альбому альбомом альбоме альбомы альбомов альбомам альбомами альбомах",
        "закон закона закону законом законе законы законов законам законами законах",
        "музей музея музею музеем музее музеи музеев музеям музеями музеях",
        "трамвай трамвая трамваю трамваем трамвае трамваи трамваев трамваям трамваями трамваях",
        "дом дома дому домом доме домов домам домами домах",
        "мост моста мосту мостом мосте мосты мостов мостам мостами мостах",
        "плотина плотины плотине плотину плотиной плотиною плотин плотинам плотинами плотинах",
        "город города городу городом городе городов городам городами городах",
        "улица улицы улице улицу улицей улиц улицам улицами улицах",
        "озеро озера озеру озером озере озёра озёр озёрам озёрами озёрах",
        "станция станции станцию станцией станций станциям станциями станциях",
        "здание здания зданию зданием здании зданий зданиям зданиями зданиях",
        "площадь площади площадью площадей площадям площадями площадях",
        "автобус автобуса автобусу автобусом автобусе автобусы автобусов автобусам автобусами автобусах",
        "корабль корабля кораблю кораблём корабле корабли кораблей кораблям кораблями кораблях",
        "программа программы программе программу программой программ программам программами программах",
        "герой героя герою героем герое герои героев героям героями героях",
        "объём объёма объёму объёмом объёме объёмы объёмов объёмам объёмами объёмах",
        "имя имени именем имена имён именам именами именах",
        "время времени временем времена времён временам временами временах",
    ],
)
def test_a_russian_noun_is_found_in_every_case(forms: str) -> None:
    """All case forms of singular and plural are one term, also where the noun itself ends like a case form."""
    assert len({terms(form)[0] for form in forms.split()}) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CO2, 128.5 m", ["co2", "128", "5", "m"]),
        ("snake_case", ["snake", "case"]),
        ("大坝建成", ["大坝", "坝建", "建成"]),
        ("日", ["日"]),
        ("2024年", ["2024", "年"]),
        ("カリバ・ダム", ["カリ", "リバ", "ダム"]),
        ("서울은", ["서울", "울은"]),
        ("करिबा बाँध", ["करिबा", "बाँध"]),
        ("йод и ёж", ["йод", "и", "еж"]),
        ("\ud800 ❤️ ?!", []),
    ],
)
def test_terms_are_words_numbers_and_pairs_of_characters(text: str, expected: list[str]) -> None:
    """Scripts without spaces are cut into overlapping pairs; vowel signs stay in their words; signs are no terms."""
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When was the Kariba Dam finished, and who built the dam?", ["kariba", "dam", "finish", "built"]),
        ("Когда была достроена плотина Кариба?", ["достр", "плотин", "кариб"]),
        ("カリバダムはいつ", ["カリ", "リバ", "バダ", "ダム", "ムは"]),
        ("What is the difference between a dam and a weir?", ["dam", "weir"]),
        ("Чем может отличаться плотина?", ["плотин"]),
        ("Who is who?", ["who", "is"]),
        ("???", []),
    ],
)
def test_a_question_is_reduced_to_what_it_is_about(question: str, expected: list[str]) -> None:
    """Question words and auxiliaries go, repeats too, unless nothing else would be left."""
    assert content_terms(question) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "It was built, e.g. by Dr. Smith and J. R. Jones. It is 128.5 m high! Why? Nobody knows… No. 5 leaks.",
            [
                "It was built, e.g. by Dr. Smith and J. R. Jones.",
                "It is 128.5 m high!",
                "Why?",
                "Nobody knows…",
                "No. 5 leaks.",
            ],
        ),
        (
            "В 1959 г. её достроили, т.е. закрыли. А. С. Попов против и т.д. Высота 128,5 м.",
            ["В 1959 г. её достроили, т.е. закрыли.", "А. С. Попов против и т.д.", "Высота 128,5 м."],
        ),
        (
            "Works for Foo Corp. Эта компания стара. It is of Bar Inc. The firm is new. Not Foo Co. Ltd. Bar.",
            [
                "Works for Foo Corp.",
                "Эта компания стара.",
                "It is of Bar Inc.",
                "The firm is new.",
                "Not Foo Co. Ltd. Bar.",
            ],
        ),
        (
            "Достроена в 1959 г. Её высота 128 м. Живёт в г. С. Посад.",
            ["Достроена в 1959 г.", "Её высота 128 м.", "Живёт в г. С. Посад."],
        ),
        (
            "The FAQ\tChapter 2. The dam\n\nIt is Part 2. Read on.",
            ["The FAQ\tChapter 2. The dam", "It is Part 2.", "Read on."],
        ),
        ("Chapter 2. The dam\n\nГлава 7.1. Плотина", ["Chapter 2. The dam", "Глава 7.1. Плотина"]),
        ("大坝建成。高128米！「真的？」是。", ["大坝建成。", "高128米！", "「真的？」", "是。"]),
        ("It is (they say) “done.” Cited.[12] Really.", ["It is (they say) “done.”", "Cited.[12]", "Really."]),
        ("one line\nof prose. Then\nmore.\n\nNew paragraph", ["one line\nof prose.", "Then\nmore.", "New paragraph"]),
        ("# Kariba Dam\nText.\n\n> ## Facts", ["Kariba Dam", "Text.", "Facts"]),
        (
            "Facts:\n- high\n  and wide\n* old. Very.\n1. first\n2) second",
            ["Facts:", "high\n  and wide", "old.", "Very.", "first", "second"],
        ),
        ("| a | b |\n|---|---|\n| 1 | 2 |\nx\ty\n", ["| a | b |", "| 1 | 2 |", "x\ty"]),
        ("Title\n=====\n\n```python\nx = 1\n```\n***\n", ["Title", "x = 1"]),
        ("?! ... \n\n", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: list[str]) -> None:
    """Abbreviations, initials, decimals and "Chapter 2." end none; headings, list items and table rows are one each."""
    assert sentences(text) == expected


@pytest.mark.parametrize("unit", [".", ". ", "a", "> ", "# ", "(.", '."', "'s", "1. ", "中", "é", "\t", "- .", "Co. "])
def test_a_megabyte_of_one_thing_is_read_in_reasonable_time(unit: str) -> None:
    """A hostile or broken file costs time in proportion to its size: each of these takes well under a second."""
    text = unit * (1_000_000 // len(unit))
    assert all(len(term) <= 64 for term in terms(text))
    assert sum(map(len, sentences(text))) <= len(text)


MARKDOWN = st.lists(
    st.one_of(st.text(max_size=20), st.sampled_from(["\n", "\n\n", ". ", "- ", "# ", "| ", "。", "г. ", "```\n", "A"]))
).map("".join)


@given(MARKDOWN)
def test_every_sentence_stands_in_the_text(text: str) -> None:
    """A sentence can be looked up in its text as it is, and no two share a character."""
    spans = sentence_spans(text)
    assert sentences(text) == [text[start:end] for start, end in spans]
    assert all(text[start:end].strip() == text[start:end] != "" for start, end in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@given(st.text(alphabet="Aa в大.!。\n\r-"))
def test_no_word_is_lost_between_sentences(text: str) -> None:
    """Together the sentences hold every letter of the prose that they were cut from."""
    assert [each for each in "".join(sentences(text)) if each.isalpha()] == [each for each in text if each.isalpha()]


@given(st.text(alphabet=st.characters()))
def test_terms_of_any_text_hold_no_syntax(text: str) -> None:
    """Whatever a query holds, its terms hold no space, quote or operator, and terms of terms stay as findable."""
    found = terms(text)
    assert not any(character.isspace() or character in "\"'*^:()-+_\0" for term in found for character in term)
    assert all(0 < len(term) <= 64 for term in found)
    assert set(content_terms(text)) <= set(found)
    assert bool(content_terms(text)) == bool(found)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Wer hat das Mühlrad gebaut?", "Mühlrad gebaut"),
        ("Wie lange dauert die Röste?", "lange dauert Röste"),
        ("When did the Oder flood?", "Oder flood"),
        ("What EIN does the company use?", "EIN company use"),
        ("Who won the war of 1812, and did many die?", "won war 1812 die"),
    ],
)
def test_german_questions_lose_their_question_words_and_english_ones_keep_theirs(question: str, words: str) -> None:
    """A German question asks for its nouns; "war" and "die" stay words where the question is English."""
    assert content_terms(question) == terms(words)
