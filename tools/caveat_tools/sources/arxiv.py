"""arXiv, the preprint server: https://info.arxiv.org/help/api/user-manual.html. One request gives an Atom feed."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final
from xml.etree.ElementTree import Element

import httpx2

from caveat_tools.clock import Clock
from caveat_tools.http import failure, get, mail_address, refusal, service_url, with_service_text, xml_value
from caveat_tools.network import without_password
from caveat_tools.outcome import MAX_RESULTS
from caveat_tools.source import Ask, Page, Passage, SourceError, UnsearchableError
from caveat_tools.works import arxiv_identifier, citation, doi_identifier, identifiers, searchable

URL_VARIABLE: Final = "CAVEAT_ARXIV_URL"
DEFAULT_URL: Final = "https://export.arxiv.org/api/query"
PAGE_SIZE: Final = MAX_RESULTS
FIRST_DAY: Final = "1991-08-14"
"""arXiv's first day: where a range without a beginning begins."""

_ATOM: Final = "{http://www.w3.org/2005/Atom}"
_ARXIV: Final = "{http://arxiv.org/schemas/atom}"
_OPENSEARCH: Final = "{http://a9.com/-/spec/opensearch/1.1/}"
_OPERATORS: Final = frozenset({"and", "or", "not", "andnot"})


def empty_answer() -> tuple[str, bytes]:
    """Return the content type and the body with which the service says that it holds no match."""
    body = (
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        b'<feed xmlns="http://www.w3.org/2005/Atom" xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/">'
        b"<title>arXiv Query</title><opensearch:totalResults>0</opensearch:totalResults></feed>"
    )
    return "application/atom+xml; charset=utf-8", body


class ArxivSource:
    """The `Source` named arxiv. The client becomes its own and is closed with it."""

    name = "arxiv"
    description = (
        "arXiv, preprints in physics, mathematics, computer science and neighbouring fields: title, authors and "
        "abstract, in English. Send two to five key words; all of them must occur. A result's date, and a date range, "
        "are those of the first submission; the abstract is that of the latest version."
    )
    accepts_dates = True
    in_process = False

    def __init__(
        self, client: httpx2.AsyncClient, clock: Clock, *, base_url: str | None = None, contact: str = ""
    ) -> None:
        """`base_url` is the address of the query interface, else the public one.

        `contact` is sent in the header From (RFC 9110, 10.1.2) if it is a mail address. Raises ValueError where
        `base_url` is not an http or https address.
        """
        self._client = client
        self._clock = clock
        self._url = service_url(base_url or DEFAULT_URL, "/api/query")
        self._headers = {"from": mail_address(contact)} if mail_address(contact) else {}

    @property
    def place(self) -> str:
        """The address that is asked, without login and keys that may stand in it."""
        return without_password(self._url)

    async def page(self, ask: Ask, cursor: str | None) -> Page:
        """Return up to eight preprints, in the service's order of relevance; `cursor` is the number of the first.

        A passage is a line with authors, venue and year, and the abstract. Raises SourceError.
        """
        now = self._clock.now()
        first = int(cursor or 0)
        params = {
            "search_query": _search_query(ask, now),
            "start": str(first),
            "max_results": str(PAGE_SIZE),
            "sortBy": "relevance",
            "sortOrder": "descending",
        }
        hint = f"set {URL_VARIABLE} to the query interface"
        answer = await get(self._client, self._url, params, headers=self._headers, hint=hint)
        if answer.response.is_success:
            return _page(xml_value(answer), first)
        if answer.response.status_code == 400:
            try:
                _page(xml_value(answer), first)
            except SourceError as error:
                if error.error_type == "invalid_query":
                    raise
        raise refusal(answer, now=now, hint=hint)

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()


def _search_query(ask: Ask, now: datetime) -> str:
    """Return the query in arXiv's syntax: every word in any field, and a range of days in which it was submitted.

    A word is always put in quotes, and what joins its parts (a hyphen is taken for a NOT) becomes a space: then it is
    a phrase; in quotes the signs of C++ and C# mean nothing but themselves. Words that are operators are left out.
    """
    words = [
        re.sub(r"[-'’.]", " ", word)
        for word in searchable(ask.query, with_signs=True)
        if word.lower() not in _OPERATORS
    ]
    if not words:
        raise UnsearchableError("the query holds no word that can be searched, only operators")
    terms = [f'all:"{word}"' for word in words]
    if ask.date_from or ask.date_to:
        begin = ask.date_from or FIRST_DAY
        end = ask.date_to or max(begin, f"{now:%Y-%m-%d}")
        terms.append(f"submittedDate:[{begin.replace('-', '')}0000 TO {end.replace('-', '')}2359]")
    return " AND ".join(terms)


def _page(feed: Element, first: int) -> Page:
    """Return a feed as a page, the first entry of which is number `first`, from 0. Raises SourceError.

    A refusal is a feed, too: with one entry, whose id is an address below /api/errors.
    """
    if feed.tag != f"{_ATOM}feed":
        raise failure("malformed_response", "the answer is XML, but no Atom feed")
    entries = feed.findall(f"{_ATOM}entry")
    for entry in entries:
        if "/api/errors" in _text(entry, f"{_ATOM}id"):
            raise failure("invalid_query", with_service_text("answered with an error", _text(entry, f"{_ATOM}summary")))
    count = _text(feed, f"{_OPENSEARCH}totalResults")
    total = int(count) if re.fullmatch(r"[0-9]{1,9}", count) else None
    if not entries and (total is None or total > first):
        says = "no count of matches" if total is None else f"{total} matches"
        raise failure("malformed_response", f"the feed names {says}, but holds no entry")
    passages = tuple(passage for entry in entries[:PAGE_SIZE] if (passage := _passage(entry)))
    following = first + PAGE_SIZE
    more = len(entries) >= PAGE_SIZE and (total is None or total > following)
    return Page(passages, total or len(entries), str(following) if more else None)


def _passage(entry: Element) -> Passage | None:
    """Return the entry as evidence, or None where it names no preprint or has no abstract."""
    own = arxiv_identifier(_text(entry, f"{_ATOM}id"))
    title = _text(entry, f"{_ATOM}title")
    abstract = (entry.findtext(f"{_ATOM}summary") or "").strip()
    if own is None or not title or not abstract:
        return None
    published = re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", _text(entry, f"{_ATOM}published"))
    date = published[0] if published else None
    authors = [_text(author, f"{_ATOM}name") for author in entry.findall(f"{_ATOM}author")]
    journal = _text(entry, f"{_ARXIV}journal_ref")  # names its own year, which is not that of the submission
    line = citation([name for name in authors if name], "", journal, None if journal else date)
    dois = (doi_identifier(doi) for each in entry.findall(f"{_ARXIV}doi") for doi in (each.text or "").split())
    address = re.sub(r"^https?://(?:export\.)?arxiv\.org/", "https://arxiv.org/", _text(entry, f"{_ATOM}id"))
    return Passage(title, address, f"{line}\n\n{abstract}".strip(), date, identifiers(own, *dois))


def _text(element: Element, tag: str) -> str:
    """Return the text of the first child with this tag on one line, "" where there is none."""
    return " ".join((element.findtext(tag) or "").split())
