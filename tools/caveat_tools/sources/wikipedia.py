"""Wikipedia, or any other MediaWiki with CirrusSearch: one request a page gives matches, snippets and introductions."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import httpx2

from caveat_tools.clock import Clock
from caveat_tools.documents import unescaped
from caveat_tools.http import JsonAnswer, failure, get_json, retry_after, with_service_text
from caveat_tools.network import is_address, without_password
from caveat_tools.outcome import MAX_PASSAGE_CHARS, ErrorType
from caveat_tools.plain_text import clip
from caveat_tools.source import Ask, Page, Passage, SourceError, UnsearchableError

DEFAULT_URL: Final = "https://{language}.wikipedia.org/w/api.php"
PAGE_SIZE: Final = 4
MAX_SEARCH_CHARS: Final = 300  # CirrusSearchMaxFullTextQueryLength
MAX_EXTRACT_CHARS: Final = 1_100
MAX_SNIPPET_CHARS: Final = 400
MAX_SNIPPET_HTML_CHARS: Final = 4_000
MAX_CODE_CHARS: Final = 100

_LANGUAGE_OF_SCRIPT: Final = {
    "CYRILLIC": "ru",
    "CJK": "zh",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "ARABIC": "ar",
    "HEBREW": "he",
    "GREEK": "el",
    "DEVANAGARI": "hi",
    "THAI": "th",
}
_ERROR_TYPE_OF_CODE: Final[dict[str, ErrorType]] = {
    "ratelimited": "rate_limited",
    "maxlag": "unavailable",
    "readonly": "unavailable",
    "unknown_action": "unavailable",
    "cirrussearch-backend-error": "unavailable",
    "cirrussearch-too-busy-error": "unavailable",
    "cirrussearch-regex-too-busy-error": "unavailable",
    "blocked": "access_denied",
    "autoblocked": "access_denied",
    "systemblocked": "access_denied",
    "permissiondenied": "access_denied",
    "readapidenied": "access_denied",
    "mustbeloggedin": "access_denied",
    "assertuserfailed": "access_denied",
    "assertbotfailed": "access_denied",
    "assertnameduserfailed": "access_denied",
}
"""What MediaWiki's error codes mean here; every other code says that the query is wrong. The remaining codes of
CirrusSearch (a query too long, too complex or not understood) are of that kind."""
_OUT_OF_TIME: Final = {"cirrussearch-timed-out", "cirrussearch-regex-timed-out"}
"""Warnings in an otherwise good answer: the search stopped early, so that even no match says nothing."""


def empty_answer() -> tuple[str, bytes]:
    """Return the content type and the body with which the service says that it holds no match."""
    body = b'{"batchcomplete":true,"query":{"searchinfo":{"totalhits":0},"search":[]}}'
    return "application/json; charset=utf-8", body


def language_of(query: str) -> str:
    """Return the language edition for a query, judged by script: one other than Latin needs a quarter of the letters.

    (So that "TNF-α inhibitors" is not looked up in Greek.)
    """
    names = [unicodedata.name(char, "").replace("-", " ").partition(" ")[0] for char in query if char.isalpha()]
    letters = Counter(_LANGUAGE_OF_SCRIPT.get(name, "en") for name in names)
    if letters["ja"]:
        letters["ja"] += letters.pop("zh", 0)
    latin = letters.pop("en", 0)
    language, count = max(letters.items(), key=lambda item: item[1], default=("en", 0))
    if count * 3 <= latin:
        return "en"
    return "uk" if language == "ru" and set("іїєґ") & set(query.lower()) else language


class WikipediaSource:
    """The `Source` named wikipedia. The client becomes its own and is closed with it."""

    name = "wikipedia"
    description = (
        "Wikipedia, the encyclopedia, in the language of the query: introductions of articles and the place that "
        "matches. Send two to six key words. A result's date is that of the article's last edit."
    )
    accepts_dates = False
    in_process = False

    def __init__(self, client: httpx2.AsyncClient, clock: Clock, *, base_url: str | None = None) -> None:
        """`base_url` is the address of api.php, by default Wikipedia's.

        `{language}` in it becomes the language of each query; an address without a path is completed with
        /w/api.php. Raises ValueError where it is not an http or https address.
        """
        self._client = client
        self._clock = clock
        self._base_url = _checked(base_url or DEFAULT_URL)

    @property
    def place(self) -> str:
        """The address that is asked, without login and keys that may stand in it."""
        return without_password(self._base_url)

    async def page(self, ask: Ask, cursor: str | None) -> Page:
        """Return up to four articles; a passage's date is that of the article's last edit.

        A passage is the article's introduction, cut at the end of a sentence, and the snippet that matched where that
        is not part of it. Articles without any text are left out but stay in `total`. Raises SourceError.
        """
        if len(ask.query) > MAX_SEARCH_CHARS:
            raise UnsearchableError(
                f"the query has {len(ask.query)} characters, and Wikipedia's search takes at most {MAX_SEARCH_CHARS}"
            )
        url = self._base_url.replace("{language}", language_of(ask.query))
        now = self._clock.now()
        answer = await get_json(
            self._client,
            url,
            _params(ask.query, cursor or "0"),
            now=now,
            hint="set wikipedia_url (CAVEAT_WIKIPEDIA_URL) to the address of api.php",
            error_text=lambda body: next((text for _, text in _errors(body)), None),
        )
        return _page(answer, url, now, first=int(cursor or 0))

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()


def _checked(base_url: str) -> str:
    example = base_url.replace("{language}", "en")
    if not is_address(example):
        raise ValueError(f"{without_password(base_url)!r} is not an http or https address such as {DEFAULT_URL}")
    url = httpx2.URL(example)
    return base_url.rstrip("/") + "/w/api.php" if url.path == "/" else base_url


def _params(query: str, offset: str) -> dict[str, str]:
    search = {"search": query, "limit": str(PAGE_SIZE), "offset": offset}
    return {
        "action": "query",
        "format": "json",
        "formatversion": "2",
        "errorformat": "plaintext",  # the only form in which warnings have a code
        "list": "search",
        "srprop": "snippet|timestamp",
        "srinfo": "totalhits",
        "generator": "search",
        "prop": "extracts|info",
        "exintro": "1",
        "explaintext": "1",
        "exlimit": "max",
        "inprop": "url",
        **{f"sr{key}": value for key, value in search.items()},
        **{f"gsr{key}": value for key, value in search.items()},
    }


def _page(answer: JsonAnswer, url: str, now: datetime, *, first: int) -> Page:
    """Return the answer as a page of at most PAGE_SIZE articles, the first of which is number `first`, from 0."""
    body = answer.value
    if not isinstance(body, dict):
        raise failure("malformed_response", "the answer is JSON, but not the object that MediaWiki documents")
    error = _error(answer, now)
    if error is not None:
        raise error
    query = _query(body)
    if query is None or not isinstance(rows := query.get("search"), list):
        raise failure("malformed_response", "the answer is JSON, but holds no list of search results")
    articles = _articles(query.get("pages"))
    passages = tuple(
        passage
        for row in rows[:PAGE_SIZE]
        if isinstance(row, dict) and (passage := _passage(row, articles.get(_whole(row, "pageid"), {}), url))
    )
    if _OUT_OF_TIME & {code for code, _ in _coded(body.get("warnings"))}:
        raise SourceError(
            "timeout", "the service ran out of time and searched only in part", retryable=True, passages=passages
        )
    total = _whole(query.get("searchinfo"), "totalhits")
    if total is None and not passages and rows:
        total = len(rows)  # matches without text are not "no match"
    next_offset = first + PAGE_SIZE if len(rows) > PAGE_SIZE else _whole(body.get("continue"), "sroffset")
    return Page(passages, total, None if next_offset is None else str(next_offset))


def _query(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the object of results: an empty one where a complete answer without a warning leaves it out, else None."""
    if "query" not in body and body.get("batchcomplete") in (True, "") and not body.get("warnings"):
        return {"search": []}
    query = body.get("query")
    return query if isinstance(query, dict) else None


def _error(answer: JsonAnswer, now: datetime) -> SourceError | None:
    """Return what an error object in a 200 stands for; MediaWiki answers so to almost everything."""
    body = answer.value
    code, text = next(_errors(body), (answer.headers.get("mediawiki-api-error"), ""))
    if not code:
        no_errors = body.get("errors") == [] and "query" in body
        if "error" in body or ("errors" in body and not no_errors):
            return failure("malformed_response", "answered with an error in a form that MediaWiki does not document")
        return None
    error_type = _ERROR_TYPE_OF_CODE.get(code, "invalid_query")
    if code.startswith("internal_api_error_"):
        error_type = "unavailable"
    if "globalblocking" in code:
        error_type = "access_denied"
    waits = error_type in {"rate_limited", "unavailable"}
    return failure(
        error_type,
        with_service_text(f"answered with the error {clip(code, MAX_CODE_CHARS)[0]}", text),
        retry_after_seconds=retry_after(answer.headers, now) if waits else None,
    )


def _errors(body: Any) -> Iterator[tuple[str, str]]:
    """Yield code and text of each error, from `{"error": {…}}` or `{"errors": […]}`."""
    if isinstance(body, dict):
        yield from _coded([body.get("error")])
        yield from _coded(body.get("errors"))


def _coded(entries: Any) -> Iterator[tuple[str, str]]:
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and (code := _string(entry, "code")):
            yield code, next((t for key in ("info", "text", "*") if (t := _string(entry, key))), "")


def _articles(pages: Any) -> dict[int | None, dict[str, Any]]:
    """Return the pages by id: a list in formatversion 2, an object in formatversion 1."""
    listed = pages.values() if isinstance(pages, dict) else pages if isinstance(pages, list) else ()
    return {number: page for page in listed if (number := _whole(page, "pageid"))}


def _passage(row: dict[str, Any], article: dict[str, Any], url: str) -> Passage | None:
    """Return the row as evidence, or None where it has no title or no text."""
    title = _string(row, "title")
    text = _text(_string(article, "extract").strip(), _plain(_string(row, "snippet")))
    if not title or not text:
        return None
    date = re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", _string(row, "timestamp"))
    address = _string(article, "fullurl")
    if not address.startswith(("https://", "http://")):
        base = httpx2.URL(url)
        address = f"{base.scheme}://{base.netloc.decode()}/wiki/{quote(title.replace(' ', '_'), safe='/:(),')}"
    return Passage(title, address, text, date[0] if date else None)


def _text(extract: str, snippet: str) -> str:
    """Join introduction and snippet; the introduction makes room, since the snippet is what matched."""
    opening = _opening(extract, MAX_EXTRACT_CHARS)
    if not extract:
        return snippet
    more = _beyond(" ".join(opening.split()), snippet.split())
    if not more:
        return opening
    tail = f"\n\n…{more}" if more.endswith((".", "!", "?", "。", "…")) else f"\n\n…{more}…"
    return _opening(extract, min(MAX_EXTRACT_CHARS, MAX_PASSAGE_CHARS - len(tail))) + tail


def _beyond(opening: str, snippet: list[str]) -> str:
    """Return what the snippet adds to the introduction: all after its longest beginning that stands there."""
    beginnings = (len(snippet), *range(len(snippet) - 1, 2, -1))
    known = next((n for n in beginnings if " ".join(snippet[:n]) in opening), 0)
    return " ".join(snippet[known:])


def _opening(text: str, limit: int) -> str:
    """Cut to `limit` characters at the last end of a sentence in its second half, else at a word."""
    if len(text) <= limit:
        return text
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s)|[。！？؟।]", text[: limit + 1])]
    fitting = [end for end in ends if limit // 2 < end <= limit]
    return text[: fitting[-1]] if fitting else clip(text, limit)[0]


def _plain(snippet: str) -> str:
    text = " ".join(unescaped(re.sub(r"<[^<>]*>", "", snippet[:MAX_SNIPPET_HTML_CHARS])).split())
    return clip(text, MAX_SNIPPET_CHARS)[0]


def _string(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def _whole(entry: Any, key: str) -> int | None:
    value = entry.get(key) if isinstance(entry, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
