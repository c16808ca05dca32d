"""What a reader gets from OpenAlex: works with their abstract put together again, "no match", or a named failure."""

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
from caveat_tools.sources.openalex import DEFAULT_URL, URL_VARIABLE, OpenAlexSource, abstract_of, empty_answer
from scholarly import TEAS, FakeOpenAlex, Work, inverted, openalex_page, openalex_work
from servers import LocalServer, Request, Step, html_reply


def mocked(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None, **more: Any
) -> tuple[OpenAlexSource, list[httpx2.Request]]:
    """Return a source whose service answers everything with `body`, and the requests that it will have seen."""
    seen: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx2.Response(status, headers={"content-type": "application/json", **(headers or {})}, content=content)

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(handler))
    return OpenAlexSource(client, FakeClock(), **more), seen


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
            page = await OpenAlexSource(client, FakeClock(), base_url=server.url).page(ask, cursor)
    [request] = server.requests
    return page, request


# --- found -----------------------------------------------------------------------------------------------------------


async def test_a_work_comes_with_its_abstract_authors_venue_address_and_date() -> None:
    """The first line is the record's, the rest is the abstract; the address is that of the DOI."""
    page, _ = await asked_over_network(FakeOpenAlex(), Ask("tea 3"))
    [passage] = page.passages
    assert passage.title == "On tea 3"
    assert passage.url == "https://doi.org/10.5555/tea.3"
    assert passage.date == "2013-05-17"
    assert passage.text == f"Ada Byron, Li Wei. Journal of Tea, 2013\n\n{TEAS[2].abstract}"
    assert passage.identifiers == {"doi:10.5555/tea.3", "arxiv:2005.00003"}
    assert page.total == 1


async def test_a_work_without_an_abstract_shows_that_it_exists_and_nothing_more() -> None:
    """Its text is one line of the record, with the title, so that a quote can show that there is such a work."""
    [passage] = (await page_of(openalex_page(openalex_work(Work("On tea"))))).passages
    assert passage.text == "Ada Byron, Li Wei. On tea. Journal of Tea, 2020"
    assert passage.url == "https://openalex.org/W1"
    assert passage.identifiers == frozenset()


async def test_markup_in_a_title_or_an_abstract_is_undone() -> None:
    """The index holds it word by word, as the publisher sent it."""
    work = openalex_work(Work("On <i>Camellia</i>", "<jats:p>Fish &amp; leaves, p &lt; 0.05</jats:p>"))
    [passage] = (await page_of(openalex_page(work))).passages
    assert passage.title == "On Camellia"
    assert passage.text.endswith("\n\nFish & leaves, p < 0.05")


async def test_a_retracted_work_says_so() -> None:
    """Nobody quotes it as if nothing had happened."""
    [passage] = (await page_of(openalex_page(openalex_work(TEAS[0]) | {"is_retracted": True}))).passages
    assert "2011. Retracted\n\nWe steep" in passage.text


async def test_pages_follow_each_other_until_everything_is_seen() -> None:
    """Eight works a page, by the service's cursor."""
    first, request = await asked_over_network(FakeOpenAlex(), Ask("tea"))
    assert ([p.title for p in first.passages][::7], first.total) == (["On tea 1", "On tea 8"], 10)
    assert request.query["cursor"] == "*"
    last, request = await asked_over_network(FakeOpenAlex(), Ask("tea"), first.next_cursor)
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
    page, _ = await asked_over_network(FakeOpenAlex(), Ask("tea", **dates))
    assert [p.title for p in page.passages] == titles


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("green tea", "green tea"),
        ("tea AND (milk OR NOT sugar)", "tea and milk or not sugar"),
        ('"green tea" -milk +sugar', "green tea milk sugar"),
        ("COVID-19 don't U.S. x~y*?", "COVID-19 don't U.S x y"),
        ("C++ C# .NET", "C C NET"),
        ("title:tea,type:book|a&b", "title tea type book a b"),
        ("thé à l'eau, 緑茶 हिन्दी", "thé à l'eau 緑茶 हिन्दी"),
    ],
)
async def test_a_query_is_words_and_never_syntax(query: str, sent: str) -> None:
    """Operators, quotes and wildcards are taken out; words of every script stay."""
    source, seen = mocked(empty_answer()[1])
    await source.page(Ask(query), None)
    assert seen[0].url.params["search"] == sent


async def test_a_location_by_the_doi_that_arxiv_gave_is_the_preprint() -> None:
    """OpenAlex names preprints by address or by DOI; either makes the record one work with arXiv's own."""
    work = openalex_work(Work("On tea", doi="10.5555/tea"))
    work["locations"] = [{"landing_page_url": "https://doi.org/10.48550/arxiv.1706.03762", "pdf_url": None}]
    [passage] = (await page_of(openalex_page(work))).passages
    assert passage.identifiers == {"doi:10.5555/tea", "arxiv:1706.03762"}


async def test_a_query_without_a_word_is_not_sent() -> None:
    """There is nothing to look for."""
    source, seen = mocked(empty_answer()[1])
    with pytest.raises(UnsearchableError) as caught:
        await source.page(Ask("?! – \ud800"), None)
    assert (caught.value.error_type, seen) == ("invalid_query", [])


async def test_a_contact_is_sent_only_as_a_mail_address_and_a_key_stays_out_of_sight() -> None:
    """The base URL's own parameters are kept, so that a key can stand there; snapshots do not store it."""
    for contact, sent in (("ada@example.org", "ada@example.org"), ("https://example.org/ada", None)):
        source, seen = mocked(
            empty_answer()[1], contact=contact, base_url="https://api.example.org/works?api_key=secret"
        )
        await source.page(Ask("tea"), None)
        assert seen[0].url.params.get("mailto") == sent
        assert seen[0].url.params["api_key"] == "secret"
        assert source.place == "https://api.example.org/works?api_key=…"
        await source.aclose()
    async with httpx2.AsyncClient() as client:
        assert OpenAlexSource(client, FakeClock()).place == DEFAULT_URL
        with pytest.raises(ValueError, match="not an http"):
            OpenAlexSource(client, FakeClock(), base_url="api.openalex.org")


# --- the abstract ----------------------------------------------------------------------------------------------------


@given(st.lists(st.text("abcdeé,.", min_size=1, max_size=5), max_size=30))
def test_an_abstract_comes_out_word_by_word_as_it_went_in(words: list[str]) -> None:
    """Whatever the order of the index."""
    index = inverted(" ".join(words))
    assert abstract_of(dict(reversed(index.items()))) == " ".join(words)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ({"tea": [0], "good": [2]}, "tea … good"),
        ({"late": [10**12], "tea": [0, 1]}, "tea tea … late"),
        ({"tea": [3]}, "… tea"),
        ({"tea": [0], "milk": [0]}, ""),
        ({"tea": [0, 0], "good": [1]}, "tea good"),
        ({"tea": [None, "1", 1.5, -1, True, 0], "good": [1]}, "tea good"),
        ({"tea": None, "good": {"0": 1}}, ""),
        ({}, ""),
        (None, ""),
        ([["tea", [0]]], ""),
    ],
)
def test_an_abstract_that_is_damaged_says_so_or_is_left_out(index: Any, text: str) -> None:
    """No quote can span a hole; where two words claim one place, nobody knows the text."""
    assert abstract_of(index) == text


# --- empty and failed ------------------------------------------------------------------------------------------------


async def test_no_match_is_an_answer() -> None:
    """A page without works, and a count of nought."""
    kind, body = empty_answer()
    assert kind == "application/json"
    assert await page_of(body) == Page((), 0, None)
    page, _ = await asked_over_network(FakeOpenAlex(), Ask("coffee"))
    assert page == Page((), 0, None)


@pytest.mark.parametrize("works", [[None], [{}], [openalex_work(Work(""))], ["W1", 7, []]])
async def test_matches_without_anything_to_show_are_not_no_match(works: list[Any]) -> None:
    """The total says that there is something, whatever the service's own count is."""
    for count in (0, 5):
        page = await page_of(openalex_page(*works, count=count))
        assert page.passages == ()
        assert page.total


@pytest.mark.parametrize(
    ("status", "body", "error_type"),
    [
        (400, {"error": "Invalid query parameters error.", "message": "Because of this."}, "invalid_query"),
        (403, {"error": "Invalid query parameters error.", "message": "Because of this."}, "invalid_query"),
        (400, {"error": "Pagination error.", "message": "Because of this."}, "invalid_query"),
        (404, {"error": "Search execution error.", "message": "Because of this."}, "unavailable"),
        (403, {"error": "Rate limit exceeded", "message": "Because of this."}, "rate_limited"),
        (401, {"error": "Invalid API key", "message": "Because of this."}, "access_denied"),
        (500, {"error": None, "message": "Because of this."}, "unavailable"),
        (503, {"error": "Unavailable", "message": "Because of this."}, "unavailable"),
        (200, {"error": "Invalid query parameters error.", "message": "Because of this."}, "invalid_query"),
        (200, {"error": "other", "message": "Because of this."}, "malformed_response"),
    ],
)
async def test_an_error_object_is_a_failure_by_its_status_and_label(
    status: int, body: dict[str, Any], error_type: str
) -> None:
    """The service's words are passed on."""
    error = await error_of(body, status)
    assert error.error_type == error_type
    assert error.message.endswith(": Because of this.")


@pytest.mark.parametrize(
    ("status", "error_type"),
    [(403, "access_denied"), (404, "unavailable"), (429, "rate_limited"), (502, "unavailable"), (200, "unavailable")],
)
async def test_a_web_page_is_a_failure_by_its_status(status: int, error_type: str) -> None:
    """A wall, a wrong address, a rate limit in HTML; none of it is "no match"."""
    reply = html_reply("<!doctype html><title>429 Too Many Requests</title>", status)
    assert (await error_of(reply.body, status, reply.headers)).error_type == error_type


@pytest.mark.parametrize(
    ("headers", "retryable", "wait"),
    [
        ({}, True, None),
        ({"retry-after": "2"}, True, 2),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "40"}, True, 40),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "41000"}, False, 41_000),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "41000", "retry-after": "41000"}, False, 41_000),
        ({"x-ratelimit-remaining": "900", "x-ratelimit-reset": "41000"}, True, None),
        ({"x-ratelimit-remaining": "900", "x-ratelimit-reset": "41000", "retry-after": "1"}, True, 1),
    ],
)
async def test_a_spent_daily_budget_is_told_from_a_short_limit(
    headers: dict[str, str], retryable: bool, wait: float | None
) -> None:
    """Hours away is not retryable; the reset of a budget that is not spent is no wait."""
    error = await error_of({"error": "Rate limit exceeded", "message": "x"}, 429, headers)
    assert (error.error_type, error.retryable, error.retry_after_seconds) == ("rate_limited", retryable, wait)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        "no match",
        b"",
        b'{"meta":{"count":1},"results":[{"title"',
        {"results": []},
        {"results": [], "meta": {}},
        {"results": [], "meta": {"count": "0"}},
        {"results": {}, "meta": {"count": 0}},
        {"results": None, "meta": {"count": 0}},
        {"error": None},
    ],
)
async def test_an_answer_of_another_shape_is_malformed(body: Any) -> None:
    """It is neither found nor empty."""
    assert (await error_of(body)).error_type == "malformed_response"


async def test_a_wrong_address_names_the_variable_to_set() -> None:
    """A 404 is no "no match"."""
    with LocalServer(FakeOpenAlex()) as server:
        async with httpx2.AsyncClient(trust_env=False) as client:
            with pytest.raises(SourceError, match=URL_VARIABLE) as caught:
                await OpenAlexSource(client, FakeClock(), base_url=f"{server.url}/v2").page(Ask("tea"), None)
    assert caught.value.error_type == "unavailable"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
FIELDS = st.sampled_from([*openalex_work(TEAS[0]), "meta", "count", "results", "next_cursor", "error", "source", "tea"])
JSON_VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12
)
RECORDS = st.fixed_dictionaries({}, optional=dict.fromkeys(openalex_work(TEAS[0]), JSON_VALUES)).map(
    lambda fields: openalex_work(TEAS[0]) | fields
)


@given(JSON_VALUES | st.builds(lambda records: openalex_page(*records), st.lists(RECORDS | JSON_VALUES, max_size=3)))
async def test_any_json_gives_a_page_or_a_named_failure(body: Any) -> None:
    """A field of another type than documented never ends the run."""
    source, _ = mocked(body)
    try:
        page = await source.page(Ask("tea"), None)
    except SourceError:
        return
    assert all(p.text and p.title and p.url for p in page.passages)


@given(st.binary(max_size=60), st.sampled_from([200, 400, 403, 404, 429, 500]))
async def test_any_bytes_give_a_page_or_a_named_failure(body: bytes, status: int) -> None:
    """With every status."""
    source, _ = mocked(body, status)
    with pytest.raises(SourceError):
        await source.page(Ask("tea"), None)
