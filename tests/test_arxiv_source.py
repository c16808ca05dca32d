"""What a reader gets from arXiv: preprints with their abstract, a valid "no match", or a named failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat_tools.clock import FakeClock
from caveat_tools.safe_xml import MAX_DEPTH, MAX_ELEMENTS, XmlError, parse_xml
from caveat_tools.source import Ask, Page, SourceError, UnsearchableError
from caveat_tools.sources.arxiv import DEFAULT_URL, URL_VARIABLE, ArxivSource, empty_answer
from scholarly import ATOM_TYPE, TEAS, FakeArxiv, Work, arxiv_entry, arxiv_error, arxiv_feed
from servers import LocalServer, Request, Step, html_reply


def mocked(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, contact: str = ""
) -> tuple[ArxivSource, list[httpx2.Request]]:
    """Return a source whose service answers everything with `body`, and the requests that it will have seen."""
    seen: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(status, headers={"content-type": ATOM_TYPE, **(headers or {})}, content=body)

    return ArxivSource(httpx2.AsyncClient(transport=httpx2.MockTransport(handler)), FakeClock(), contact=contact), seen


async def page_of(body: bytes, cursor: str | None = None) -> Page:
    source, _ = mocked(body)
    return await source.page(Ask("tea"), cursor)


async def error_of(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> SourceError:
    source, _ = mocked(body, status, headers)
    with pytest.raises(SourceError) as caught:
        await source.page(Ask("tea"), None)
    return caught.value


async def asked_over_network(step: Step, ask: Ask, cursor: str | None = None) -> tuple[Page, Request]:
    with LocalServer(step) as server:
        async with httpx2.AsyncClient(trust_env=False) as client:
            page = await ArxivSource(client, FakeClock(), base_url=server.url).page(ask, cursor)
    [request] = server.requests
    assert request.path == "/api/query"
    return page, request


# --- found -----------------------------------------------------------------------------------------------------------


async def test_a_preprint_comes_with_its_abstract_authors_address_and_date() -> None:
    """The date is that of the first submission; the address names the version that was read; the DOI is known too."""
    page, _ = await asked_over_network(FakeArxiv(), Ask("tea 3"))
    [passage] = page.passages
    assert passage.title == "On tea 3"
    assert passage.url == "https://arxiv.org/abs/2005.00003v2"
    assert passage.date == "2013-05-17"
    assert passage.text == f"Ada Byron, Li Wei. 2013\n\n{TEAS[2].abstract}"
    assert passage.identifiers == {"arxiv:2005.00003", "doi:10.5555/tea.3"}
    assert page.total == 1


async def test_a_journal_reference_takes_the_place_of_the_year() -> None:
    """It names the year of the journal, and the line does not put that of the submission beside it."""
    reference = '<x:journal_ref xmlns:x="http://arxiv.org/schemas/atom">Tea 5 (2013)</x:journal_ref></entry>'
    entry = arxiv_entry(TEAS[0]).replace("</entry>", reference)
    [passage] = (await page_of(arxiv_feed(entry))).passages
    assert passage.text.startswith("Ada Byron, Li Wei. Tea 5 (2013)\n\n")


async def test_an_old_identifier_is_one_too() -> None:
    """Of the form archive/number, with a subject class or without."""
    [passage] = (await page_of(arxiv_feed(arxiv_entry(replace(TEAS[0], arxiv="math.GT/0309136v1", doi=""))))).passages
    assert passage.url == "https://arxiv.org/abs/math.GT/0309136v1"
    assert passage.identifiers == {"arxiv:math/0309136"}


async def test_the_prefixes_of_a_feed_are_its_own_affair() -> None:
    """Elements are known by their namespace."""
    feed = arxiv_feed(arxiv_entry(TEAS[0])).decode()
    feed = feed.replace("<", "<a:").replace("<a:/", "</a:").replace("<a:?", "<?").replace("a:opensearch", "opensearch")
    feed = feed.replace("xmlns=", "xmlns:a=").replace("a:arxiv", "arxiv")
    assert await page_of(feed.encode()) == await page_of(arxiv_feed(arxiv_entry(TEAS[0])))


async def test_pages_follow_each_other_until_everything_is_seen() -> None:
    """Eight preprints a page, by number."""
    first, _ = await asked_over_network(FakeArxiv(), Ask("tea"))
    assert (len(first.passages), first.total, first.next_cursor) == (8, 10, "8")
    last, request = await asked_over_network(FakeArxiv(), Ask("tea"), first.next_cursor)
    assert [p.title for p in last.passages] == ["On tea 9", "On tea 10"]
    assert (last.next_cursor, request.query["start"], request.query["sortBy"]) == (None, "8", "relevance")


@pytest.mark.parametrize(
    ("dates", "titles"),
    [
        ({"date_from": "2019-01-01"}, ["On tea 9", "On tea 10"]),
        ({"date_to": "2011-12-31"}, ["On tea 1"]),
        ({"date_from": "2012-05-17", "date_to": "2012-05-17"}, ["On tea 2"]),
    ],
)
async def test_dates_are_those_of_submission_both_ends_included(dates: dict[str, Any], titles: list[str]) -> None:
    """Either end may be open: arXiv's first day, and today, close it."""
    page, request = await asked_over_network(FakeArxiv(), Ask("tea", **dates))
    assert [p.title for p in page.passages] == titles
    if "date_to" not in dates:
        assert request.query["search_query"].endswith("AND submittedDate:[201901010000 TO 202601022359]")


async def test_a_range_that_begins_in_the_future_is_a_day_and_no_error() -> None:
    """It does not end before it begins."""
    source, seen = mocked(empty_answer()[1])
    await source.page(Ask("tea", date_from="2031-01-01"), None)
    assert seen[0].url.params["search_query"].endswith("submittedDate:[203101010000 TO 203101012359]")


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("green tea", 'all:"green" AND all:"tea"'),
        ("tea AND milk ANDNOT (sugar OR not)", 'all:"tea" AND all:"milk" AND all:"sugar"'),
        ('ti:"green tea" cat:cs.CL', 'all:"ti" AND all:"green" AND all:"tea" AND all:"cat" AND all:"cs CL"'),
        ("non-invasive COVID-19", 'all:"non invasive" AND all:"COVID 19"'),
        ("C++ or C#, +tea .NET", 'all:"C++" AND all:"C#" AND all:"tea" AND all:"NET"'),
        ("submittedDate:[1 TO 2]", 'all:"submittedDate" AND all:"1" AND all:"TO" AND all:"2"'),
        ("Erdős–Rényi graph's", 'all:"Erdős" AND all:"Rényi" AND all:"graph s"'),
        ("a\\b %22 c", 'all:"a" AND all:"b" AND all:"22" AND all:"c"'),
    ],
)
async def test_a_query_is_words_and_never_syntax(query: str, sent: str) -> None:
    """Fields, operators and quotes are taken out; a hyphen, which means NOT, makes a phrase."""
    source, seen = mocked(empty_answer()[1])
    await source.page(Ask(query), None)
    assert seen[0].url.params["search_query"] == sent


@pytest.mark.parametrize("query", ["", "?", "👍", "NOT", "AND OR not"])
async def test_a_query_without_a_word_is_not_sent(query: str) -> None:
    """There is nothing to look for."""
    source, seen = mocked(empty_answer()[1])
    with pytest.raises(UnsearchableError) as caught:
        await source.page(Ask(query), None)
    assert (caught.value.error_type, seen) == ("invalid_query", [])


async def test_a_contact_is_sent_as_the_header_that_is_made_for_it() -> None:
    """A mail address only."""
    for contact, sent in (("ada@example.org", "ada@example.org"), ("https://example.org", None), ("ä@b", None)):
        source, seen = mocked(empty_answer()[1], contact=contact)
        await source.page(Ask("tea"), None)
        assert seen[0].headers.get("from") == sent
        assert source.place == DEFAULT_URL
        await source.aclose()


# --- empty -----------------------------------------------------------------------------------------------------------


async def test_no_match_is_an_answer() -> None:
    """A feed without entries whose count is nought."""
    kind, body = empty_answer()
    assert kind == ATOM_TYPE
    assert await page_of(body) == Page((), 0, None)
    page, _ = await asked_over_network(FakeArxiv(), Ask("coffee"))
    assert page == Page((), 0, None)


async def test_matches_without_anything_to_show_are_not_no_match() -> None:
    """Entries without an abstract, without an id of a preprint: the total stays."""
    for work in (replace(TEAS[0], abstract=""), replace(TEAS[0], title=""), replace(TEAS[0], arxiv="x")):
        for total in (0, 1):
            page = await page_of(arxiv_feed(arxiv_entry(work), total=total))
            assert (page.passages, page.total) == ((), 1)


async def test_a_feed_that_counts_matches_and_sends_none_is_a_failure() -> None:
    """ArXiv does so under load; after the last page it is the end."""
    error = await error_of(arxiv_feed(total=12))
    assert (error.error_type, error.retryable) == ("malformed_response", True)
    assert "12 matches" in error.message
    assert await page_of(arxiv_feed(total=12), "16") == Page((), 12, None)


# --- failed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 400])
async def test_an_error_entry_in_a_feed_says_that_the_query_is_wrong(status: int) -> None:
    """With status 400, as today, and with 200, as before; the service's words are passed on."""
    error = await error_of(arxiv_error("incorrect id format for 1.2"), status)
    assert (error.error_type, error.retryable) == ("invalid_query", False)
    assert error.message == "answered with an error: incorrect id format for 1.2"


@pytest.mark.parametrize(
    ("status", "error_type"),
    [
        (200, "unavailable"),
        (400, "invalid_query"),
        (403, "access_denied"),
        (404, "unavailable"),
        (429, "rate_limited"),
        (503, "unavailable"),
    ],
)
async def test_a_web_page_of_the_front_end_is_a_failure_by_its_status(status: int, error_type: str) -> None:
    """Whatever content type it claims; it is never "no match"."""
    reply = html_reply("<!DOCTYPE html><html><title>arXiv</title>", status)
    assert (await error_of(reply.body, status, reply.headers)).error_type == error_type
    assert (await error_of(reply.body, status)).error_type == error_type


async def test_a_plain_refusal_names_its_wait() -> None:
    """ArXiv refuses in plain text, with Retry-After."""
    error = await error_of(b"Rate exceeded.", 429, {"content-type": "text/plain", "retry-after": "7"})
    assert (error.error_type, error.retry_after_seconds) == ("rate_limited", 7)
    error = await error_of(arxiv_error("x"), 503, {"retry-after": "9"})
    assert (error.error_type, error.retry_after_seconds) == ("unavailable", 9)


WHOLE = arxiv_feed(arxiv_entry(TEAS[0]))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"Rate exceeded.",
        b"{}",
        b"<feed/>",
        b"<rss><entry/></rss>",
        WHOLE[:-1],
        WHOLE[: len(WHOLE) // 2],
        WHOLE.replace(b"UTF-8", b"UTF-99"),
        WHOLE.replace(b"UTF-8", b"UTF-7"),
        WHOLE.replace(b"<title>", b"<title>\xff", 1),
        arxiv_feed().replace(b"<opensearch:totalResults>0</opensearch:totalResults>", b""),
        arxiv_feed().replace(b">0<", b">none<"),
        arxiv_feed("<x>" * MAX_DEPTH + "</x>" * MAX_DEPTH),
        arxiv_feed("<x/>" * MAX_ELEMENTS),
    ],
)
async def test_an_answer_of_another_shape_is_malformed(body: bytes) -> None:
    """It is neither found nor empty."""
    assert (await error_of(body)).error_type == "malformed_response"


@pytest.mark.parametrize(
    "declaration",
    [
        b'<!DOCTYPE feed [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>',
        b'<!DOCTYPE feed SYSTEM "http://127.0.0.1:9/x.dtd">',
        b"<!DOCTYPE feed>",
    ],
)
async def test_a_feed_with_a_document_type_is_refused(declaration: bytes) -> None:
    """No entity is ever expanded, nothing is fetched."""
    error = await error_of(WHOLE.replace(b"<feed", declaration + b"<feed", 1))
    assert error.error_type == "malformed_response"
    assert "document type" in error.message


async def test_a_wrong_address_names_the_variable_to_set() -> None:
    """A 404 is no "no match"."""
    error = await error_of(b"not found", 404)
    assert error.error_type == "unavailable"
    assert URL_VARIABLE in error.message


@given(st.binary(max_size=80) | st.text(max_size=80))
def test_any_bytes_are_xml_or_no_xml(data: bytes | str) -> None:
    """The parser has one kind of error."""
    try:
        parse_xml(data)
    except XmlError:
        return


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
PARTS = st.sampled_from(
    ["entry", "id", "title", "summary", "published", "author", "name", "link", "opensearch:totalResults"]
)
FEEDS = st.recursive(
    TEXTS.map(lambda text: text.replace("&", "").replace("<", "")),
    lambda inner: st.builds(lambda tag, parts: f"<{tag}>{''.join(parts)}</{tag}>", PARTS, st.lists(inner, max_size=4)),
    max_leaves=15,
)
ENTRIES = st.builds(Work, TEXTS, TEXTS, doi=TEXTS, arxiv=st.sampled_from([TEAS[0].arxiv, "", "x y"]), date=TEXTS)


@given(st.lists(FEEDS | ENTRIES.map(lambda work: arxiv_entry(work).replace("&", "").replace("<<", "<")), max_size=3))
async def test_any_feed_gives_a_page_or_a_named_failure(parts: list[str]) -> None:
    """Elements that are missing, doubled or in another place than documented never end the run."""
    source, _ = mocked(arxiv_feed(*parts))
    try:
        page = await source.page(Ask("tea"), None)
    except SourceError:
        return
    assert all(p.text and p.title and p.url.startswith("https://arxiv.org/abs/") for p in page.passages)


@given(st.binary(max_size=60), st.sampled_from([200, 400, 404, 429, 500]))
async def test_any_bytes_give_a_named_failure(body: bytes, status: int) -> None:
    """With every status."""
    source, _ = mocked(body, status)
    with pytest.raises(SourceError):
        await source.page(Ask("tea"), None)
