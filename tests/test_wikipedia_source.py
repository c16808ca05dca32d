"""What a reader gets from Wikipedia: passages with an address and a date, a valid "no match", or a named failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caveat_tools.clock import FakeClock
from caveat_tools.http import user_agent
from caveat_tools.outcome import MAX_PASSAGE_CHARS
from caveat_tools.source import Ask, Page, SourceError
from caveat_tools.sources.wikipedia import WikipediaSource, empty_answer, language_of
from servers import FakeMediaWiki, LocalServer, Request, Step, json_reply, mediawiki_error

TEAS = {
    f"Tea {number}": f"Tea number {number} is a drink.\n\nFurther down, the leaves of it are rolled & dried."
    for number in range(1, 7)
}


def mocked(body: Any, headers: Mapping[str, str] | None = None) -> tuple[WikipediaSource, list[httpx2.Request]]:
    """Return a source whose service answers everything with `body`, and the requests that it will have seen."""
    seen: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx2.Response(200, headers={"content-type": "application/json", **(headers or {})}, content=content)

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(handler))
    return WikipediaSource(client, FakeClock(), base_url="https://{language}.example.org/w/api.php"), seen


async def page_of(body: Any, query: str = "tea") -> Page:
    source, _ = mocked(body)
    return await source.page(Ask(query), None)


async def error_of(body: Any, headers: Mapping[str, str] | None = None, query: str = "tea") -> SourceError:
    source, _ = mocked(body, headers)
    with pytest.raises(SourceError) as caught:
        await source.page(Ask(query), None)
    return caught.value


async def asked_over_network(step: Step, query: str, cursor: str | None = None) -> tuple[Page, list[Request]]:
    with LocalServer(step) as server:
        async with httpx2.AsyncClient(trust_env=False, headers={"user-agent": user_agent()}) as client:
            page = await WikipediaSource(client, FakeClock(), base_url=server.url).page(Ask(query), cursor)
    return page, server.requests


def found(*rows: Any, pages: Any = (), **more: Any) -> dict[str, Any]:
    return {"batchcomplete": True, "query": {"search": list(rows), "pages": pages}, **more}


def row(title: str = "Green tea", **fields: Any) -> dict[str, Any]:
    return {"ns": 0, "title": title, "pageid": 7, **fields}


# --- found -----------------------------------------------------------------------------------------------------------


async def test_a_match_comes_with_its_introduction_address_and_date() -> None:
    """The date is that of the article's last edit; the part that matched is added to the introduction."""
    page, requests = await asked_over_network(FakeMediaWiki(TEAS), "rolled tea 3")
    [passage] = page.passages
    assert passage.title == "Tea 3"
    assert passage.text.startswith("Tea number 3 is a drink.\n\n…Further down")
    assert "rolled & dried" in passage.text
    assert passage.url.endswith("/wiki/Tea_3")
    assert passage.date == "2026-01-02"
    assert page.total == 1
    assert len(requests) == 1
    assert requests[0].path == "/w/api.php"


async def test_pages_follow_each_other_until_everything_is_seen() -> None:
    """Four articles a page, in the service's order, each page one request."""
    first, _ = await asked_over_network(FakeMediaWiki(TEAS), "tea")
    assert [p.title for p in first.passages] == ["Tea 1", "Tea 2", "Tea 3", "Tea 4"]
    assert (first.total, first.next_cursor) == (6, "4")
    last, requests = await asked_over_network(FakeMediaWiki(TEAS), "tea", first.next_cursor)
    assert [p.title for p in last.passages] == ["Tea 5", "Tea 6"]
    assert (last.total, last.next_cursor) == (6, None)
    assert (requests[0].query["sroffset"], requests[0].query["gsroffset"]) == ("4", "4")


async def test_both_versions_of_the_format_are_read() -> None:
    """A mirror may answer in the older one, where pages are an object."""
    rows = (row(snippet="of <span class='searchmatch'>tea</span>"),)
    page = {"pageid": 7, "title": "Green tea", "extract": "A kind of tea.", "fullurl": "https://example.org/GT"}
    new = await page_of(found(*rows, pages=[page]))
    old = await page_of(found(*rows, pages={"7": page, "-1": {"title": "x", "missing": ""}}))
    assert new == old
    assert (new.passages[0].text, new.passages[0].url) == ("A kind of tea.", "https://example.org/GT")


async def test_a_snippet_is_plain_text() -> None:
    """Tags are gone, entities decoded, once."""
    snippet = 'a <span class="searchmatch">tea</span> &amp;  milk &lt;b&gt; &quot;x&quot; &amp;lt;'
    [passage] = (await page_of(found(row(snippet=snippet)))).passages
    assert passage.text == 'a tea & milk <b> "x" &lt;'


@pytest.mark.parametrize("unit", ["<", "<a", "&", "&#", "&#x", "&lt", "9", "&#9", " "])
@pytest.mark.usefixtures("_ends")
async def test_a_hostile_snippet_does_not_keep_it_busy(unit: str) -> None:
    """Half a megabyte of unclosed markup is cut before it is read."""
    page = await page_of(found(row(snippet=f"tea {unit * (500_000 // len(unit))}")))
    assert page.passages[0].text.startswith("tea")
    assert len(page.passages[0].text) < 1_000


async def test_a_character_reference_of_thousands_of_digits_is_replaced() -> None:
    """It stands for no character, and Python refuses to read such a number."""
    [passage] = (await page_of(found(row(snippet=f"milk tea &#{'9' * 5_000};")))).passages
    assert passage.text == "milk tea \ufffd"


async def test_a_page_has_as_many_articles_as_were_asked_for() -> None:
    """A service that sends thousands is not read to its end; the total stays its own, the next page begins there."""
    rows = [row(f"Tea {number}", pageid=number, snippet="tea") for number in range(1, 20_001)]
    body = found(*rows)
    body["query"]["searchinfo"] = {"totalhits": 20_000}
    page = await page_of(body)
    assert ([p.title for p in page.passages], page.total) == (["Tea 1", "Tea 2", "Tea 3", "Tea 4"], 20_000)
    assert page.next_cursor == "4"
    assert (await page_of(found(*[row("Bare")] * 9))).total == 9


async def test_an_empty_page_in_the_middle_leads_on() -> None:
    """Whether to follow it is for the search to say."""
    page = await page_of(found(**{"continue": {"sroffset": 4, "continue": "-||"}}))
    assert (page.passages, page.next_cursor) == ((), "4")


async def test_an_address_is_made_from_the_title_where_none_is_given() -> None:
    """On the wiki's own host, with underscores, percent-encoded."""
    [passage] = (await page_of(found(row("Thé vert: 100 % (boisson)?", snippet="x")))).passages
    assert passage.url == "https://en.example.org/wiki/Th%C3%A9_vert:_100_%25_(boisson)%3F"


async def test_articles_without_an_id_do_not_share_a_text() -> None:
    """Foreign files all have the page id 0."""
    rows = [row(title, pageid=0, snippet=f"about {title}") for title in ("One", "Two")]
    page = await page_of(found(*rows, pages=[{"pageid": 0, "extract": "of neither"}]))
    assert [p.text for p in page.passages] == ["about One", "about Two"]


async def test_an_article_without_text_is_left_out_but_counted() -> None:
    """There is nothing to quote; but it is no "no match" either, also where the service gives no total."""
    body = found(row("Bare"), row("Told", snippet="told"), None)
    body["query"]["searchinfo"] = {"totalhits": 2}
    page = await page_of(body)
    assert ([p.title for p in page.passages], page.total) == (["Told"], 2)
    bare = await page_of(found(row("Bare")))
    assert (bare.passages, bare.total) == ((), 1)


async def test_a_long_introduction_makes_room_for_what_matched() -> None:
    """It is cut at the end of a sentence, and the whole passage fits what the model may see."""
    sentence = "Tea is an aromatic beverage prepared by pouring hot water over leaves."
    snippet = "the tea trade " * 12
    extract = " ".join([sentence] * 40)
    [passage] = (await page_of(found(row(snippet=snippet), pages=[{"pageid": 7, "extract": extract}]))).passages
    opening, _, tail = passage.text.partition("\n\n…")
    assert extract.startswith(opening)
    assert opening.endswith("leaves.")
    assert tail == snippet.strip() + "…"
    assert 1_000 < len(passage.text) <= MAX_PASSAGE_CHARS


CHARACTERS = st.characters(codec="utf-8")


TEXTS = st.builds(lambda text, times: text * times, st.text(CHARACTERS, max_size=40), st.integers(0, 300))


@settings(deadline=None)
@given(extract=TEXTS, snippet=TEXTS, title=st.text(CHARACTERS, max_size=20))
async def test_every_passage_fits_the_wire(extract: str, snippet: str, title: str) -> None:
    """Whatever the texts are, a passage has some, and at most 1 200 characters."""
    page = await page_of(found(row(title, snippet=snippet), pages=[{"pageid": 7, "extract": extract}]))
    for passage in page.passages:
        assert passage.text
        assert len(passage.text) <= MAX_PASSAGE_CHARS


# --- empty -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        empty_answer()[1],
        found(),
        {"batchcomplete": "", "query": {"searchinfo": {"totalhits": 0}, "search": []}},
        {"batchcomplete": True},
        {"batchcomplete": ""},
        {**found(), "errors": []},
    ],
)
async def test_no_match_is_an_answer(body: Any) -> None:
    """A page without passages, without a cursor, without a total above nought."""
    page = await page_of(body)
    assert (page.passages, page.next_cursor) == ((), None)
    assert not page.total


async def test_a_word_that_is_nowhere_is_no_match() -> None:
    """Over the network as well."""
    page, _ = await asked_over_network(FakeMediaWiki(TEAS), "coffee")
    assert page == Page((), 0, None)


# --- failed ----------------------------------------------------------------------------------------------------------

CODES = [
    ("ratelimited", "rate_limited"),
    ("maxlag", "unavailable"),
    ("readonly", "unavailable"),
    ("internal_api_error_DBQueryError", "unavailable"),
    ("cirrussearch-backend-error", "unavailable"),
    ("cirrussearch-too-busy-error", "unavailable"),
    ("unknown_action", "unavailable"),
    ("blocked", "access_denied"),
    ("autoblocked", "access_denied"),
    ("wikimedia-globalblocking-ipblocked", "access_denied"),
    ("permissiondenied", "access_denied"),
    ("readapidenied", "access_denied"),
    ("assertuserfailed", "access_denied"),
    ("search-title-disabled", "invalid_query"),
    ("cirrussearch-query-too-long", "invalid_query"),
    ("cirrussearch-regex-syntax-error", "invalid_query"),
    ("missingparam", "invalid_query"),
]


@pytest.mark.parametrize(("code", "error_type"), CODES)
@pytest.mark.parametrize("plaintext", [True, False], ids=["errors", "error"])
async def test_an_error_in_a_200_is_a_failure_by_its_code(code: str, error_type: str, plaintext: bool) -> None:
    """In both forms of the error object; the service's words are passed on."""
    reply = mediawiki_error(code, "Because of this.", plaintext=plaintext)
    error = await error_of(reply.body)
    assert error.error_type == error_type
    assert error.message == f"answered with the error {code}: Because of this."


async def test_an_error_code_of_any_length_is_shortened() -> None:
    """The message stays one that can be shown."""
    error = await error_of({"error": {"code": "x" * 1_000_000, "info": "y" * 1_000_000}})
    assert error.error_type == "invalid_query"
    assert len(error.message) < 400


async def test_a_lagged_wiki_says_how_long_to_wait() -> None:
    """A wait is only taken from answers that it helps."""
    waits = {"retry-after": "5"}
    lagged = await error_of(mediawiki_error("maxlag", "Waiting for a database").body, waits)
    assert (lagged.retryable, lagged.retry_after_seconds) == (True, 5)
    wrong = await error_of(mediawiki_error("missingparam", "No query").body, waits)
    assert (wrong.retryable, wrong.retry_after_seconds) == (False, None)


async def test_an_error_that_only_the_header_names_is_a_failure() -> None:
    """An empty list beside it is not taken for "no match"."""
    assert (await error_of(found(), {"mediawiki-api-error": "readonly"})).error_type == "unavailable"


async def test_a_search_that_ran_out_of_time_is_not_an_answer() -> None:
    """The service says so in a warning only; what it did find is kept."""
    warning = {"code": "cirrussearch-timed-out", "text": "The search timed out", "module": "search"}
    error = await error_of(found(row(snippet="tea"), warnings=[warning]))
    assert (error.error_type, [p.text for p in error.passages]) == ("timeout", ["tea"])
    assert (await error_of(found(warnings=[warning]))).error_type == "timeout"
    other = {"code": "unrecognizedvalues", "text": "extracts", "module": "query"}
    assert (await page_of(found(warnings=[other]))) == Page()


NO_QUERIES: list[Any] = [None, False, 0, "", [], {}]
NO_ERRORS: list[Any] = [None, False, "", {}, [], {"code": ""}, {"code": 5}]
NO_LISTS_OF_ERRORS: list[Any] = [None, False, "", {}, [{}], [None], [{"code": None}]]


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        "no match",
        {"batchcomplete": True, "query": "none"},
        {"batchcomplete": True, "query": {"pages": []}},
        {"batchcomplete": True, "query": {"search": None}},
        {"query": {"search": {"0": {}}}},
        {"error": "rate limit exceeded", "batchcomplete": True},
        {"error": {"info": "no code"}, "batchcomplete": True},
        {"batchcomplete": False},
        {"batchcomplete": True, "warnings": [{"code": "unrecognizedvalues", "text": "list: search"}]},
        {"batchcomplete": True, "errors": []},
        *({"batchcomplete": True, "query": query, "warnings": []} for query in NO_QUERIES),
        *(found(error=error) for error in NO_ERRORS),
        *(found(errors=errors) for errors in NO_LISTS_OF_ERRORS),
    ],
)
async def test_an_answer_of_another_shape_is_malformed(body: Any) -> None:
    """It is neither found nor empty."""
    assert (await error_of(body)).error_type == "malformed_response"


FIELDS = st.sampled_from(
    [
        *("query", "search", "pages", "searchinfo", "totalhits", "continue", "sroffset", "batchcomplete", "warnings"),
        *("title", "pageid", "snippet", "extract", "fullurl", "timestamp", "error", "errors", "code", "info"),
    ]
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(CHARACTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(JSON_VALUES | st.fixed_dictionaries({"query": st.fixed_dictionaries({"search": st.lists(JSON_VALUES)})}))
async def test_any_json_gives_a_page_or_a_named_failure(body: Any) -> None:
    """A field of another type than documented never ends the run."""
    source, _ = mocked(body)
    try:
        page = await source.page(Ask("tea"), None)
    except SourceError:
        return
    assert all(passage.text and passage.title for passage in page.passages)


async def test_a_query_that_is_too_long_is_not_sent() -> None:
    """CirrusSearch takes 300 characters; the message says so."""
    source, seen = mocked(empty_answer()[1])
    with pytest.raises(SourceError) as caught:
        await source.page(Ask("t" * 301), None)
    assert (caught.value.error_type, seen) == ("invalid_query", [])
    assert "301 characters" in caught.value.message
    assert "at most 300" in caught.value.message
    await source.page(Ask("t" * 300), None)
    assert seen[0].url.params["srsearch"] == "t" * 300


async def test_a_wrong_endpoint_names_the_variable_to_set() -> None:
    """A 404 is no "no match"."""
    with pytest.raises(SourceError) as caught:
        await asked_over_network(json_reply({}, status=404), "tea")
    assert caught.value.error_type == "unavailable"
    assert "CAVEAT_WIKIPEDIA_URL" in caught.value.message


# --- which wiki ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "language"),
    [
        ("green tea", "en"),
        ("thé vert", "en"),
        ("1984", "en"),
        ("", "en"),
        ("зелёный чай", "ru"),
        ("зелений чай і його", "uk"),
        ("绿茶", "zh"),
        ("緑茶の歴史", "ja"),
        ("カフェイン", "ja"),
        ("녹차", "ko"),
        ("شاي أخضر", "ar"),
        ("תה ירוק", "he"),
        ("πράσινο τσάι", "el"),
        ("हरी चाय", "hi"),
        ("ชาเขียว", "th"),
        ("COVID-19 疫苗", "zh"),
        ("TNF-α inhibitors", "en"),
        ("β-lactam antibiotics", "en"),
    ],
)
async def test_a_query_goes_to_the_wikipedia_of_its_script(query: str, language: str) -> None:
    """A single Greek letter in an English query does not count."""
    assert language_of(query) == language
    source, seen = mocked(empty_answer()[1])
    await source.page(Ask(query), None)
    assert seen[0].url.host == f"{language}.example.org"


async def test_another_address_can_be_asked() -> None:
    """With a path before api.php, and its own parameters kept; one without a path is completed."""
    seen: list[httpx2.URL] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.url)
        return httpx2.Response(200, content=empty_answer()[1])

    addresses = ("http://wiki.example.org/mirror/{language}/api.php?key=1", "http://other.example.org/", None)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(handler)) as client:
        for address in addresses:
            await WikipediaSource(client, FakeClock(), base_url=address).page(Ask("чай"), None)
    assert [(url.host, url.path) for url in seen] == [
        ("wiki.example.org", "/mirror/ru/api.php"),
        ("other.example.org", "/w/api.php"),
        ("ru.wikipedia.org", "/w/api.php"),
    ]
    assert seen[0].params["key"] == "1"


@pytest.mark.parametrize("url", ["wiki.example.org", "ftp://example.org/", "http://", "http://h:99999/", "http://[::1"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    """The message names the value."""
    client = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(200)))
    with pytest.raises(ValueError, match="address") as caught:
        WikipediaSource(client, FakeClock(), base_url=url)
    assert url in str(caught.value)
