"""One work, however many records: identifiers, the same work once in a search, and said so across searches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caveat import research
from caveat.ledger import Ledger
from caveat.loop import Call
from caveat_tools.clock import FakeClock
from caveat_tools.faults import FaultPlan
from caveat_tools.outcome import Found, Result, results_of, wire
from caveat_tools.search import Searcher, _Progress
from caveat_tools.snapshots import SnapshotKey, Snapshots
from caveat_tools.source import Ask, Passage
from caveat_tools.works import (
    MAX_IDENTIFIERS,
    address_of,
    arxiv_identifier,
    citation,
    doi_identifier,
    identifiers,
    words_of,
)
from scripted import ScriptedModel, ScriptedSource, memory_store, tool_use


@pytest.mark.parametrize(
    ("text", "identifier"),
    [
        ("10.1063/1.4938384", "doi:10.1063/1.4938384"),
        ("https://doi.org/10.1063/1.4938384", "doi:10.1063/1.4938384"),
        ("http://dx.doi.org/10.1002/(SICI)1:1<67::AID-X>3.0.CO;2-3", "doi:10.1002/(sici)1:1<67::aid-x>3.0.co;2-3"),
        (" DOI: 10.5555/ÄB ", "doi:10.5555/äb"),
        ("10.48550/arXiv.2101.01234", "arxiv:2101.01234"),
        ("https://doi.org/10.48550/ARXIV.2101.01234v3", "arxiv:2101.01234"),
        ("10.48550/arXiv.math/0309136", "arxiv:math/0309136"),
        ("10.48550/arxiv.nonsense", None),
        ("10.1103/x,", "doi:10.1103/x"),
        ("10.1103/PhysRev.1.;", "doi:10.1103/physrev.1"),
        ("10.1002%2Fabc", "doi:10.1002/abc"),
        ("https://doi.org/10.1002/(SICI)1%3A1%3C67%C3%84", "doi:10.1002/(sici)1:1<67ä"),
        ("10.1002/a%2Fb", "doi:10.1002/a%2fb"),
        ("https://doi.org/10.5555/a%20b", None),
        ("10.5555/.,", None),
        ("10.1/x", None),
        ("10.5555/", None),
        ("10.5555/a b", None),
        ("10.5555/" + "x" * 300, None),
        ("11.5555/x", None),
        ("", None),
    ],
)
def test_a_doi_in_any_of_its_forms_is_one_identifier(text: str, identifier: str | None) -> None:
    """In lower case; the DOIs of arXiv are arXiv ids; everything else is none."""
    assert doi_identifier(text) == identifier


@pytest.mark.parametrize(
    ("text", "identifier"),
    [
        ("2101.01234", "arxiv:2101.01234"),
        ("arXiv:2101.01234v2", "arxiv:2101.01234"),
        ("http://arxiv.org/abs/2101.01234v12", "arxiv:2101.01234"),
        ("https://www.arxiv.org/pdf/2101.01234.pdf", "arxiv:2101.01234"),
        ("https://arxiv.org/pdf/0704.0001v1.pdf", "arxiv:0704.0001"),
        ("http://arxiv.org/abs/astro-ph/0601001v1", "arxiv:astro-ph/0601001"),
        ("math.GT/0309136", "arxiv:math/0309136"),
        ("hep-th/9901001", "arxiv:hep-th/9901001"),
        ("arXiv:2101.00001 [cs.CL]", "arxiv:2101.00001"),
        ("arXiv:2101.00001v3 [astro-ph.GA]", "arxiv:2101.00001"),
        ("https://arxiv.org/abs/2101.00001?context=cs", "arxiv:2101.00001"),
        ("https://arxiv.org/pdf/2101.00001v2.pdf#page=3", "arxiv:2101.00001"),
        ("https://doi.org/10.48550/arxiv.1706.03762", "arxiv:1706.03762"),
        ("10.48550/arXiv.math/0309136", "arxiv:math/0309136"),
        ("https://doi.org/10.5555/1706.03762", None),
        ("arXiv:2101.00001 and more", None),
        ("https://arxiv.org/list/cs", None),
        ("2101.012345", None),
        ("12101.01234", None),
        ("https://example.org/abs/2101.01234", None),
        ("", None),
    ],
)
def test_an_arxiv_id_in_any_of_its_forms_is_one_identifier(text: str, identifier: str | None) -> None:
    """Without version and subject class; everything else is none."""
    assert arxiv_identifier(text) == identifier


@given(st.text(max_size=40) | st.from_regex(r"(10\.\d{4}/|arxiv:|\d{4}\.)[a-z0-9./%,?#]{0,12}", fullmatch=True))
@example("10.5555%2fa%2fb%20,")
def test_any_text_is_an_identifier_or_none(text: str) -> None:
    """What is one, is one again when it is read from its address."""
    for found in (doi_identifier(text), arxiv_identifier(text)):
        if found:
            assert address_of(found).startswith("https://")
            assert arxiv_identifier(found) == found or doi_identifier(found) == found


def test_an_address_is_safe_and_stable() -> None:
    """Signs that end or begin something in an address are encoded."""
    assert address_of("doi:10.5555/a#b?c%d") == "https://doi.org/10.5555/a%23b%3Fc%25d"
    assert address_of("arxiv:math/0309136") == "https://arxiv.org/abs/math/0309136"


def test_a_record_that_names_a_library_has_a_few_identifiers() -> None:
    """It cannot make the run compare thousands."""
    assert len(identifiers(None, *(f"doi:10.5555/{number}" for number in range(10_000)), "")) == MAX_IDENTIFIERS


@given(st.text(max_size=40))
def test_words_hold_nothing_but_letters_digits_and_what_joins_them(query: str) -> None:
    """No sign that any query language gives a meaning; and words of words are the same words."""
    words = words_of(query)
    assert words_of(" ".join(words)) == words
    for word in words:
        assert not set(word) & set('"()[]{}:*?~^|&!+/\\<>=,;%')
        assert word.strip("-'’.") == word


@pytest.mark.parametrize(
    ("query", "plain", "signed"),
    [
        ("C++ templates", ["C", "templates"], ["C++", "templates"]),
        ("is C#, or F#?", ["is", "C", "or", "F"], ["is", "C#", "or", "F#"]),
        ("(C++).", ["C"], ["C++"]),
        (".NET", ["NET"], ["NET"]),
        ("+tea #milk a+b # ++ -+", ["tea", "milk", "a", "b"], ["tea", "milk", "a", "b"]),
        ("a++++", ["a"], ["a"]),
    ],
)
def test_signs_at_the_end_of_a_word_stay_where_they_are_asked_for(
    query: str, plain: list[str], signed: list[str]
) -> None:
    """C++ is not C; a sign that stands before a word or alone belongs to none."""
    assert words_of(query) == plain
    assert words_of(query, with_signs=True) == signed


@pytest.mark.parametrize(
    ("authors", "title", "venue", "date", "line"),
    [
        (["Ada Byron"], "On tea", "Tea", "2020-05-17", "Ada Byron. On tea. Tea, 2020"),
        (["A", "B", "C", "D", "E"], "", "", "2020", "A, B, C, D, E. 2020"),
        (["A", "B", "C", "D", "E", "F"], "", "Tea", None, "A, B, C, D, E, …. Tea"),
        ([], "", "", None, ""),
    ],
)
def test_a_line_names_a_work_as_far_as_the_record_does(
    authors: list[str], title: str, venue: str, date: str | None, line: str
) -> None:
    """It adds nothing of its own."""
    assert citation(authors, title, venue, date) == line


# --- the same work in one search -------------------------------------------------------------------------------------


def record(text: str, *known: str) -> Passage:
    return Passage(text, f"test:{text}", text, identifiers=frozenset(known))


async def test_a_search_shows_a_work_once() -> None:
    """The first record of it stays; a page that brought only repeats is followed by the next."""
    preprint, article = record("preprint", "arxiv:1"), record("article", "arxiv:1", "doi:10.1/a")
    other, plain, again = record("other", "doi:10.1/b"), record("plain"), record("again")
    source = ScriptedSource([[preprint, article, other, plain, again, preprint]])
    searcher = Searcher([source], clock=FakeClock(), snapshots=Snapshots([memory_store()]), faults=FaultPlan())
    outcome = await searcher.search("wiki", Ask("q"))
    assert [result.title for result in results_of(outcome)] == ["preprint", "other", "plain", "again"]


ARTICLE, PREPRINT, BOTH = (
    record("article", "doi:10.5/a"),
    record("preprint", "arxiv:1"),
    record("both", "doi:10.5/a", "arxiv:1"),
)


@pytest.mark.parametrize(
    ("records", "limit", "kept"),
    [
        ([ARTICLE, BOTH], 5, ["article"]),
        ([ARTICLE, PREPRINT, BOTH], 5, ["article"]),
        ([record("other"), PREPRINT, ARTICLE, record("last"), BOTH], 5, ["other", "preprint", "last"]),
        ([PREPRINT, record("other"), BOTH], 2, ["preprint", "other"]),
    ],
)
async def test_a_record_that_is_not_shown_still_says_what_is_one_work(
    records: list[Passage], limit: int, kept: list[str]
) -> None:
    """Dropped as a double or cut by the limit: the one that stays is known by all identifiers."""
    searcher = Searcher(
        [ScriptedSource([records])], clock=FakeClock(), snapshots=Snapshots([memory_store()]), faults=FaultPlan()
    )
    results = results_of(await searcher.search("wiki", Ask("q", limit=limit)))
    assert [result.title for result in results] == kept
    assert [set(result.identifiers) for result in results if result.identifiers] == [BOTH.identifiers]


@given(st.lists(st.frozensets(st.sampled_from("abcdef"), max_size=3), max_size=8))
def test_in_one_search_no_two_results_are_of_one_work_and_no_identifier_is_lost(
    records: list[frozenset[str]],
) -> None:
    """In whatever order they come."""
    progress = _Progress()
    for place, known in enumerate(records):
        progress.add([record(f"text {place}", *known)])
    for place, one in enumerate(progress.passages):
        assert all(one.identifiers.isdisjoint(other.identifiers) for other in progress.passages[place + 1 :])
    assert frozenset().union(*(each.identifiers for each in progress.passages)) == frozenset().union(*records)
    assert progress.passages[:1] == [] or progress.passages[0].title == "text 0"


# --- the same work across searches -----------------------------------------------------------------------------------


def found(source: str, *known: str, text: str = "text") -> Found:
    result = Result(title="t", url=f"{source}:{text}", text=text, identifiers=known)
    return Found(source=source, query="q", results=(result,))


def numbered(ledger: Ledger, turn: int, outcome: Found) -> Result:
    [result] = results_of(ledger.record("T1", Call(turn, 0, last=False), Ask("q"), outcome))
    return result


def test_a_work_that_another_source_had_before_says_so() -> None:
    """It keeps an id of its own, so that its text can be cited."""
    ledger = Ledger("q", FakeClock().now)
    first = numbered(ledger, 1, found("crossref", "doi:10.5555/a"))
    second = numbered(ledger, 2, found("openalex", "arxiv:2101.01234", "doi:10.5555/a"))
    third = numbered(ledger, 3, found("arxiv", "arxiv:2101.01234"))
    other = numbered(ledger, 4, found("wiki"))
    assert [(r.id, r.same_work_as) for r in (first, second, third, other)] == [
        ("S1", None),
        ("S2", "S1"),
        ("S3", "S1"),
        ("S4", None),
    ]
    assert numbered(ledger, 5, found("arxiv", "arxiv:2101.01234")) == third


def test_a_record_that_names_two_works_shows_that_they_are_one() -> None:
    """Told from then on; the ledger knows it of the earlier one, too."""
    ledger = Ledger("q", FakeClock().now)
    numbered(ledger, 1, found("crossref", "doi:10.5555/a"))
    assert numbered(ledger, 2, found("arxiv", "arxiv:2101.01234")).same_work_as is None
    assert numbered(ledger, 3, found("openalex", "arxiv:2101.01234", "doi:10.5555/a")).same_work_as == "S1"
    assert {ledger.first_of_work(number) for number in ("S1", "S2", "S3")} == {"S1"}
    assert numbered(ledger, 4, found("arxiv", "arxiv:2101.01234")).same_work_as == "S1"


def test_a_passage_that_comes_again_with_more_identifiers_joins_what_they_name() -> None:
    """A second search dropped a double that knew more; the passage keeps its id."""
    ledger = Ledger("q", FakeClock().now)
    numbered(ledger, 1, found("arxiv", "arxiv:2101.01234"))
    assert numbered(ledger, 2, found("crossref", "doi:10.5555/a")).same_work_as is None
    again = numbered(ledger, 3, found("crossref", "doi:10.5555/a", "arxiv:2101.01234"))
    assert (again.id, again.same_work_as) == ("S2", "S1")
    assert ledger.first_of_work("S2") == "S1"


@given(st.lists(st.frozensets(st.sampled_from("abcdef"), max_size=3), max_size=12))
def test_two_records_are_of_one_work_exactly_where_identifiers_lead_from_one_to_the_other(
    records: list[frozenset[str]],
) -> None:
    """In whatever order they come."""
    ledger = Ledger("q", FakeClock().now)
    for turn, known in enumerate(records):
        numbered(ledger, turn, found("s", *sorted(known), text=f"text {turn}"))
    works = [{place} for place in range(len(records))]
    for _ in records:
        for work in works:
            names = frozenset().union(*(records[place] for place in work))
            work |= {place for place, known in enumerate(records) if known & names}
    for place, work in enumerate(works):
        assert ledger.first_of_work(f"S{place + 1}") == f"S{min(work) + 1}"


# --- on the wire and in snapshots ------------------------------------------------------------------------------------


def test_the_model_sees_the_earlier_id_and_no_identifiers() -> None:
    """And the field only where it applies, so that other answers look as they did."""
    result = Result(id="S2", title="t", url="u", text="x", same_work_as="S1", identifiers=("doi:10.5555/a",))
    body = wire(Found(source="s", query="q", results=(result,)))
    assert body["results"] == [{"id": "S2", "title": "t", "url": "u", "date": None, "text": "x", "sameWorkAs": "S1"}]
    plain = result.model_copy(update={"same_work_as": None})
    assert "sameWorkAs" not in json.dumps(wire(Found(source="s", query="q", results=(plain,))))


def test_a_stored_answer_still_knows_its_works() -> None:
    """A work from a snapshot meets its live record."""
    snapshots = Snapshots([memory_store()])
    key = SnapshotKey("crossref", "p", "q", "", "")
    snapshots.keep(key, found("crossref", "doi:10.5555/a"), FakeClock().now())
    served = snapshots.served(key, FakeClock().now())
    assert served is not None
    assert served.results[0].identifiers == ("doi:10.5555/a",)


async def test_one_paper_in_two_sources_is_one_source_in_the_report(tmp_path: Path) -> None:
    """The model is told at the search, the reader in the list of sources; a work that nobody quotes is not named."""
    article = record("The dam was finished in 1959, they write.", "doi:10.5555/a", "arxiv:2101.01234")
    preprint = record("The dam was finished in 1959, we write.", "arxiv:2101.01234")
    other = record("Nobody quotes this.", "doi:10.5555/b")
    twin = record("The dam is 128 metres high, one says.", "doi:10.5555/b")
    sources = [
        ScriptedSource([[other, article]], name="crossref"),
        ScriptedSource([[preprint, twin]], name="arxiv"),
    ]
    evidence = [{"id": f"S{number}", "quote": p.text} for number, p in ((2, article), (3, preprint), (4, twin))]
    searches = [tool_use("search", topic_id="T1", source=source.name, query="dam") for source in sources]
    findings = [{"topic_id": "T1", "text": "It was finished in 1959.", "evidence": evidence}]
    script = ScriptedModel(
        [
            searches,
            [tool_use("report_findings", findings=findings)],
            [tool_use("write_sections", sections=[{"topic_id": "T1", "text": "It was finished in 1959 [C1]."}])],
        ]
    )
    clock = FakeClock()
    report = await research("When?", sources=sources, model=script.model(clock), clock=clock, home=tmp_path)
    shown = [result for block in script.results(1) for result in block["content"]["results"]]
    assert [(r["id"], r.get("sameWorkAs")) for r in shown] == [("S1", None), ("S2", None), ("S3", "S2"), ("S4", "S1")]
    assert [(s.id, s.same_work_as) for s in report.sources] == [("S2", None), ("S3", "S2"), ("S4", None)]
    assert report.answer.count("; the same work as S2)") == 1
    assert "the same work as S1" not in report.answer
