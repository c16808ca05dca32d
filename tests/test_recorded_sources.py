"""Recorded answers of the real services, kept beside the repository, go through the code that will meet them.

Rows of services that no source of ours asks do not apply here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import httpx2
import pytest
from _pytest.mark import ParameterSet

from caveat_tools.clock import FakeClock
from caveat_tools.http import get_json
from caveat_tools.outcome import MAX_RESULTS
from caveat_tools.source import Ask, SourceError
from caveat_tools.sources.arxiv import ArxivSource
from caveat_tools.sources.crossref import CrossrefSource
from caveat_tools.sources.openalex import OpenAlexSource
from caveat_tools.sources.wikipedia import PAGE_SIZE, WikipediaSource
from recordings import Row, needs, recorded, response, rows

FILE = "sources.jsonl"

RUN_HERE = frozenset({"wikipedia", "openalex", "arxiv", "crossref", "page"})
DO_NOT_APPLY = {
    "semantic_scholar": "no source of ours asks it: without a key it answers 429 most of the time",
    "tavily": "a paid service, which wants a key",
    "exa": "a paid service, which wants a key",
}
"""Services whose rows are not run, and why."""

WITHOUT_TEXT = {
    "s3c5aebe4f4": "srprop=size: rows have no snippet",
    "sffade04ef0": "srprop=wordcount: rows have no snippet",
    "sd68f905af1": "srprop=timestamp: rows have no snippet",
}
"""Rows whose request left out the text, as ours never does: there is nothing to quote, but the total is theirs."""


def answers(source: str) -> list[ParameterSet]:
    """Return the rows of one service as parameters."""
    return recorded(FILE, lambda row: row["source"] == source)


def played(row: Row) -> httpx2.AsyncClient:
    """Return a client to whom the service gives the recorded answer, whatever is asked."""
    return httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: response(row)))


@pytest.mark.parametrize("row", answers("wikipedia"))
async def test_a_recorded_search_comes_out_as_it_was_labelled(row: Row) -> None:
    """Found with as many passages and the same total, or failed with the same kind of error."""
    expect = row["expect"]
    query = httpx2.URL(row["url"]).params["srsearch"]
    async with played(row) as client:
        source = WikipediaSource(client, FakeClock())
        if expect["status"] == "failed":
            with pytest.raises(SourceError) as caught:
                await source.page(Ask(query), None)
            assert caught.value.error_type == expect["errorType"]
            assert expect["code"] in caught.value.message
            return
        page = await source.page(Ask(query), None)
    assert expect["status"] == "found"
    assert page.total == expect["total"]
    assert page.next_cursor == str(min(10, PAGE_SIZE))
    assert len(page.passages) == (0 if row["id"] in WITHOUT_TEXT else min(expect["count"], PAGE_SIZE))
    for passage in page.passages:
        assert passage.url.startswith("https://en.wikipedia.org/wiki/")
        assert "<" not in passage.text
        assert "&#" not in passage.text
        assert passage.date is not None


SCHOLARLY: dict[str, type[OpenAlexSource | ArxivSource | CrossrefSource]] = {
    "openalex": OpenAlexSource,
    "arxiv": ArxivSource,
    "crossref": CrossrefSource,
}
ANOTHER_ENDPOINT = {
    "se0e4c5c9cd": "/types/tape/works: a plain 404 says that the type in the path is unknown; the path that we ask has "
    "none, so that its plain 404 is a wrong address",
}
"""Rows whose label rests on the address that was asked."""


@pytest.mark.parametrize("row", [row for name in SCHOLARLY for row in answers(name)])
async def test_a_recorded_list_of_works_comes_out_as_it_was_labelled(row: Row) -> None:
    """Found with as many works and the same total, empty, or failed with the same kind of error."""
    expect = row["expect"]
    async with played(row) as client:
        source = SCHOLARLY[row["source"]](client, FakeClock())
        if expect["status"] == "failed":
            with pytest.raises(SourceError) as caught:
                await source.page(Ask("tea"), None)
            expected = "unavailable" if row["id"] in ANOTHER_ENDPOINT else expect["errorType"]
            assert caught.value.error_type == expected
            return
        page = await source.page(Ask("tea"), None)
    assert page.total == expect["total"] if "total" in expect else page.total is not None
    assert len(page.passages) == min(expect["count"], MAX_RESULTS)
    assert expect["status"] == ("found" if page.passages else "empty")
    for passage in page.passages:
        assert passage.url.startswith(("https://doi.org/10.", "https://arxiv.org/abs/"))
        assert passage.identifiers
        assert not re.search(r"</?(jats|mml|[ib]>)", passage.title + passage.text)
        assert passage.date is None or re.fullmatch(r"[0-9]{4}(-[0-9]{2}){0,2}", passage.date)


@pytest.mark.parametrize("row", answers("page"))
async def test_a_recorded_web_page_is_never_taken_for_data(row: Row) -> None:
    """Where JSON is due, a bot wall is an outage, and so is a page of results (labelled found or empty as a page)."""
    async with played(row) as client:
        with pytest.raises(SourceError) as caught:
            await get_json(client, "https://example.org/", {}, now=datetime(2026, 1, 2, tzinfo=UTC))
    assert (caught.value.error_type, caught.value.retryable) == ("unavailable", True)


@needs(FILE)
def test_every_recorded_service_is_run_or_named_with_the_reason() -> None:
    """No row falls through silently."""
    assert {row["source"] for row in rows(FILE)} == RUN_HERE | DO_NOT_APPLY.keys()
