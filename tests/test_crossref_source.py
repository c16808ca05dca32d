"""What a reader gets from Crossref: records with their abstract as text, a valid "no match", or a named failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caveat_tools.clock import FakeClock
from caveat_tools.source import Ask, Page, SourceError, UnsearchableError
from caveat_tools.sources.crossref import DEFAULT_URL, URL_VARIABLE, CrossrefSource, empty_answer
from scholarly import TEAS, FakeCrossref, Work, crossref_failure, crossref_item, crossref_page
from servers import LocalServer, Request, Step, html_reply


def mocked(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None, contact: str = ""
) -> tuple[CrossrefSource, list[httpx2.Request]]:
    """Return a source whose service answers everything with `body`, and the requests that it will have seen."""
    seen: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx2.Response(status, headers={"content-type": "application/json", **(headers or {})}, content=content)

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(handler))
    return CrossrefSource(client, FakeClock(), contact=contact), seen


async def page_of(body: Any) -> Page:
    source, _ = mocked(body)
    return await source.page(Ask("tea"), None)


async def error_of(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> SourceError:
    source, _ = mocked(body, status, headers)
    with pytest.raises(SourceError) as caught:
        await source.page(Ask("tea"), None)
    return caught.value


async def asked_over_network(step: Step, ask: Ask, cursor: str | None = None) -> tuple[Page, Request]:
    with LocalServer(step) as server:
        async with httpx2.AsyncClient(trust_env=False) as client:
            page = await CrossrefSource(client, FakeClock(), base_url=server.url).page(ask, cursor)
    [request] = server.requests
    return page, request


# --- found -----------------------------------------------------------------------------------------------------------


async def test_a_work_comes_with_its_abstract_authors_venue_address_and_date() -> None:
    """The first line is the record's, the rest is the abstract without its markup."""
    page, _ = await asked_over_network(FakeCrossref(TEAS[2:3]), Ask("tea"))
    [passage] = page.passages
    assert passage.title == "On tea 3"
    assert passage.url == "https://doi.org/10.5555/tea.3"
    assert passage.date == "2013-05-17"
    assert passage.text == f"Ada Byron, Li Wei. Journal of Tea, 2013\n\n{TEAS[2].abstract}"
    assert passage.identifiers == {"doi:10.5555/tea.3", "arxiv:2005.00003"}
    assert page.total == 1


async def test_a_work_without_an_abstract_shows_that_it_exists_and_nothing_more() -> None:
    """Its text is one line of the record, with the title; a subtitle belongs to it, and markup does not."""
    item = crossref_item(Work("On <i>Camellia</i>\n tea", doi="10.5555/1")) | {
        "subtitle": ["A &amp; B"],
        "author": None,
    }
    [passage] = (await page_of(crossref_page(item))).passages
    assert passage.title == "On Camellia tea: A & B"
    assert passage.text == "On Camellia tea: A & B. Journal of Tea, 2020"


async def test_a_publisher_stands_where_there_is_no_venue_and_a_group_where_there_is_no_person() -> None:
    """What the record has."""
    item = crossref_item(TEAS[0]) | {
        "container-title": [],
        "author": [{"name": "The Tea Board"}, {"family": "Wu"}, None],
    }
    [passage] = (await page_of(crossref_page(item))).passages
    assert passage.text.startswith("The Tea Board, Wu. Tea Press, 2011\n\n")


@pytest.mark.parametrize(
    ("parts", "date"),
    [
        ([[2022, 7, 26]], "2022-07-26"),
        ([[2001, 2]], "2001-02"),
        ([[2020]], "2020"),
        ([[None]], None),
        ([[2020, 13]], "2020"),
        ([[2020, 1, "5"]], "2020-01"),
        ([["2020"]], None),
        ([[True]], None),
        ([[10**12]], None),
        ([[]], None),
        ([], None),
        ([None], None),
        ("2020", None),
        (None, None),
    ],
)
async def test_a_date_is_as_exact_as_the_record(parts: Any, date: str | None) -> None:
    """Never a day that nobody named."""
    item: dict[str, Any] = {"DOI": "10.5555/1", "title": ["On tea"], "published": {"date-parts": parts}}
    [passage] = (await page_of(crossref_page(item))).passages
    assert passage.date == date
    item = {"DOI": "10.5555/1", "title": ["On tea"], "published": None, "issued": {"date-parts": parts}}
    assert (await page_of(crossref_page(item))).passages[0].date == date


async def test_what_a_preprint_became_is_the_same_work_and_what_it_cites_is_not() -> None:
    """Relations to other records are looked at by their kind."""
    relation: dict[str, Any] = {
        "is-preprint-of": [{"id-type": "doi", "id": "10.5555/B"}],
        "has-review": [{"id-type": "doi", "id": "10.5555/C"}],
        "has-preprint": [{"id": "10.48550/arXiv.2005.00001"}, {"id": 7}, None],
        "is-identical-to": None,
    }
    [passage] = (
        await page_of(crossref_page(crossref_item(Work("On tea", doi="10.5555/A")) | {"relation": relation}))
    ).passages
    assert passage.identifiers == {"doi:10.5555/a", "doi:10.5555/b", "arxiv:2005.00001"}


async def test_pages_follow_each_other_until_everything_is_seen() -> None:
    """Eight works a page, by the service's cursor, which it also gives with the last page."""
    first, request = await asked_over_network(FakeCrossref(), Ask("tea"))
    assert (len(first.passages), first.total, request.query["cursor"]) == (8, 10, "*")
    last, request = await asked_over_network(FakeCrossref(), Ask("tea"), first.next_cursor)
    assert [p.title for p in last.passages] == ["On tea 9", "On tea 10"]
    assert (last.next_cursor, request.query["cursor"]) == (None, "8")


@pytest.mark.parametrize(
    ("dates", "titles"),
    [
        ({"date_from": "2019-01-01"}, ["On tea 9", "On tea 10"]),
        ({"date_to": "2011-12-31"}, ["On tea 1"]),
        ({"date_from": "2012-05-17", "date_to": "2012-05-17"}, ["On tea 2"]),
    ],
)
async def test_dates_are_those_of_publication_both_ends_included(dates: dict[str, Any], titles: list[str]) -> None:
    """Either end may be open."""
    page, _ = await asked_over_network(FakeCrossref(), Ask("tea", **dates))
    assert [p.title for p in page.passages] == titles


async def test_a_query_is_words_and_never_syntax() -> None:
    """Words of every script stay, everything else goes; without a word nothing is sent."""
    source, seen = mocked(empty_answer()[1], contact="ada@example.org")
    await source.page(Ask('+"green tea" -milk, 緑茶: COVID-19 & l\'eau'), None)
    assert seen[0].url.params["query"] == "green tea milk 緑茶 COVID-19 l'eau"
    assert seen[0].url.params["mailto"] == "ada@example.org"
    with pytest.raises(UnsearchableError) as caught:
        await source.page(Ask("?!"), None)
    assert (caught.value.error_type, len(seen)) == ("invalid_query", 1)
    assert source.place == DEFAULT_URL
    await source.aclose()


# --- empty and failed ------------------------------------------------------------------------------------------------


async def test_no_match_is_an_answer() -> None:
    """A list without items, and a count of nought."""
    assert await page_of(empty_answer()[1]) == Page((), 0, None)
    page, _ = await asked_over_network(FakeCrossref(), Ask("coffee"))
    assert page == Page((), 0, None)


@pytest.mark.parametrize(
    "items", [[None], [{}], [{"DOI": "10.5555/1"}], [{"DOI": "none", "title": ["On tea"]}], ["x", 7]]
)
async def test_matches_without_anything_to_show_are_not_no_match(items: list[Any]) -> None:
    """The total says that there is something, whatever the service's own count is."""
    for count in (0, 5):
        page = await page_of(crossref_page(*items, total=count))
        assert page.passages == ()
        assert page.total


@pytest.mark.parametrize(
    ("status", "body", "error_type", "words"),
    [
        (400, crossref_failure("Because of this."), "invalid_query", ": Because of this."),
        (404, crossref_failure("Because of this.", "resource-failure"), "invalid_query", ": Because of this."),
        (200, crossref_failure("Because of this."), "invalid_query", ": Because of this."),
        (200, crossref_failure("Because of this.", "exception"), "unavailable", ": Because of this."),
        (404, crossref_failure("Because of this.", "exception"), "unavailable", ": Because of this."),
        (404, {"status": "failed", "message-type": [], "message": []}, "unavailable", ": failed"),
        (400, {"status": "failed", "message": [{"type": "x-not-valid"}, None]}, "invalid_query", ": x-not-valid"),
        (400, {"status": "failed", "message": None}, "invalid_query", ": failed"),
        (400, b"Bad request.", "invalid_query", "status 400"),
        (404, b"Resource not found.", "unavailable", URL_VARIABLE),
        (404, b'"Resource not found."', "unavailable", URL_VARIABLE),
        (403, b"<html>Blocked</html>", "access_denied", "status 403"),
        (429, b"<html><h1>429 Too Many Requests</h1></html>", "rate_limited", "status 429"),
        (500, crossref_failure("Because of this.", "exception"), "unavailable", ": Because of this."),
        (504, b"", "unavailable", "status 504"),
    ],
)
async def test_a_refusal_is_a_failure_by_status_and_form(status: int, body: Any, error_type: str, words: str) -> None:
    """invalid_query only where the service says so; its words are passed on."""
    error = await error_of(body, status)
    assert error.error_type == error_type
    assert words in error.message


async def test_a_rate_limit_names_its_wait() -> None:
    """By Retry-After; the limit that stands in every answer is no wait."""
    limit = {"x-rate-limit-limit": "5", "x-rate-limit-interval": "1s"}
    assert (await error_of(b"", 429, limit)).retry_after_seconds is None
    assert (await error_of(b"", 429, {**limit, "retry-after": "3"})).retry_after_seconds == 3


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        b"",
        b'{"status":"ok","message":{"items":[{"DOI"',
        {"status": "ok"},
        {"status": "ok", "message": []},
        {"status": "ok", "message": {"items": None, "total-results": 0}},
        {"status": "ok", "message": {"items": []}},
        {"status": "ok", "message": {"items": [], "total-results": "0"}},
        {"status": "other", "message": {"items": [], "total-results": 0}},
        {"message": {"items": [], "total-results": 0}},
    ],
)
async def test_an_answer_of_another_shape_is_malformed(body: Any) -> None:
    """It is neither found nor empty."""
    assert (await error_of(body)).error_type == "malformed_response"


async def test_a_web_page_is_an_outage() -> None:
    """A maintenance page with status 200."""
    reply = html_reply()
    assert (await error_of(reply.body, 200, reply.headers)).error_type == "unavailable"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
FIELDS = st.sampled_from([*crossref_item(TEAS[0]), "status", "message", "items", "total-results", "date-parts", "id"])
JSON_VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12
)
RECORDS = st.fixed_dictionaries({}, optional=dict.fromkeys(crossref_item(TEAS[0]), JSON_VALUES)).map(
    lambda fields: crossref_item(TEAS[0]) | fields
)


@given(JSON_VALUES | st.builds(lambda items: crossref_page(*items), st.lists(RECORDS | JSON_VALUES, max_size=3)))
async def test_any_json_gives_a_page_or_a_named_failure(body: Any) -> None:
    """A field of another type than documented never ends the run."""
    source, _ = mocked(body)
    try:
        page = await source.page(Ask("tea"), None)
    except SourceError:
        return
    assert all(p.text and p.title and p.url.startswith("https://doi.org/10.") for p in page.passages)


@given(st.binary(max_size=60), st.sampled_from([200, 400, 404, 429, 500]))
async def test_any_bytes_give_a_named_failure(body: bytes, status: int) -> None:
    """With every status."""
    source, _ = mocked(body, status)
    with pytest.raises(SourceError):
        await source.page(Ask("tea"), None)
