"""Crossref, the registry of DOIs of most publishers: https://api.crossref.org. One request gives a page of records."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import httpx2

from caveat_tools.clock import Clock
from caveat_tools.http import (
    HttpAnswer,
    failure,
    get,
    json_or_none,
    json_value,
    mail_address,
    refusal,
    service_url,
    with_service_text,
)
from caveat_tools.markup import markup_text
from caveat_tools.network import without_password
from caveat_tools.outcome import MAX_RESULTS
from caveat_tools.source import Ask, Page, Passage, SourceError
from caveat_tools.works import (
    address_of,
    arxiv_identifier,
    citation,
    doi_identifier,
    identifiers,
    searchable,
    strings,
)

URL_VARIABLE: Final = "CAVEAT_CROSSREF_URL"
DEFAULT_URL: Final = "https://api.crossref.org/works"
PAGE_SIZE: Final = MAX_RESULTS

_WRONG_QUERY: Final = ("validation-failure", "resource-failure")
"""The types of message that speak of the request's parameters; any other failure is the service's own."""
_FIELDS: Final = "DOI,title,subtitle,author,container-title,publisher,published,issued,relation,abstract"
_SAME_WORK: Final = frozenset({"is-preprint-of", "has-preprint", "is-identical-to"})
"""Relations to another record of the same work; see https://www.crossref.org/documentation/schema-library/."""


def empty_answer() -> tuple[str, bytes]:
    """Return the content type and the body with which the service says that it holds no match."""
    body = (
        b'{"status":"ok","message-type":"work-list","message-version":"1.0.0",'
        b'"message":{"facets":{},"total-results":0,"items":[],"items-per-page":8}}'
    )
    return "application/json", body


class CrossrefSource:
    """The `Source` named crossref. The client becomes its own and is closed with it."""

    name = "crossref"
    description = (
        "Crossref, the registry of the DOIs of journals, books and conferences: title, authors, venue, year "
        "and, for some, the abstract; without one a result shows only that the work exists. Send the words of a title, "
        "with names of authors if known; matching any of them counts, so look whether the results fit. A result's "
        "date, and a date range, are those of publication."
    )
    accepts_dates = True
    in_process = False

    def __init__(
        self, client: httpx2.AsyncClient, clock: Clock, *, base_url: str | None = None, contact: str = ""
    ) -> None:
        """`base_url` is the address of the list of works, else the public one.

        `contact` is sent as `mailto` if it is a mail address. Raises ValueError where `base_url` is not an http or
        https address.
        """
        self._client = client
        self._clock = clock
        self._url = service_url(base_url or DEFAULT_URL, "/works")
        self._contact = mail_address(contact)

    @property
    def place(self) -> str:
        """The address that is asked, without login and keys that may stand in it."""
        return without_password(self._url)

    async def page(self, ask: Ask, cursor: str | None) -> Page:
        """Return up to eight works, in the service's order of relevance.

        A passage is a line with authors, venue and year, and the abstract. A work without an abstract is given by a
        line with its title. Raises SourceError.
        """
        now = self._clock.now()
        answer = await get(
            self._client, self._url, self._params(ask, cursor), hint=f"set {URL_VARIABLE} to the list of works"
        )
        if not answer.response.is_success:
            raise _refusal(answer, now)
        return _page(json_value(answer))

    def _params(self, ask: Ask, cursor: str | None) -> dict[str, str]:
        words = " ".join(searchable(ask.query))
        params = {"query": words, "rows": str(PAGE_SIZE), "cursor": cursor or "*", "select": _FIELDS}
        dates = {"from-pub-date": ask.date_from, "until-pub-date": ask.date_to}
        if ask.date_from or ask.date_to:
            params["filter"] = ",".join(f"{name}:{day}" for name, day in dates.items() if day)
        if self._contact:
            params["mailto"] = self._contact
        return params

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()


def _refusal(answer: HttpAnswer, now: datetime) -> SourceError:
    """Return what an answer with an error status stands for; a 404 can also mean that a parameter is wrong."""
    body = json_or_none(answer)
    text = _failures(body)
    status = answer.response.status_code
    if text and status in {400, 404} and body.get("message-type") in _WRONG_QUERY:
        return failure("invalid_query", with_service_text(f"answered with status {status}", text))
    return refusal(answer, now=now, hint=f"set {URL_VARIABLE} to the list of works", text=text)


def _failures(body: Any) -> str:
    """Return the words of `{"status": "failed", "message": [{"type": …, "message": …}]}`, "" for any other value."""
    if not isinstance(body, dict) or body.get("status") != "failed":
        return ""
    message = body.get("message")
    entries = [entry for entry in message if isinstance(entry, dict)] if isinstance(message, list) else []
    words = strings(value for entry in entries for value in (entry.get("message") or entry.get("type"),))
    return "; ".join(words) or "failed"


def _page(body: Any) -> Page:
    if text := _failures(body):
        wrong = body.get("message-type") in _WRONG_QUERY
        raise failure("invalid_query" if wrong else "unavailable", with_service_text("answered with a failure", text))
    message = body.get("message") if isinstance(body, dict) and body.get("status") == "ok" else None
    items = message.get("items") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(items, list):
        raise failure("malformed_response", "the answer is JSON, but not the list of works that Crossref documents")
    passages = tuple(passage for item in items[:PAGE_SIZE] if isinstance(item, dict) and (passage := _passage(item)))
    count = message.get("total-results")
    total = count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
    if not items and total is None:
        raise failure("malformed_response", "the answer holds neither works nor a count of them")
    cursor = message.get("next-cursor")  # also given with the last page
    following = cursor if isinstance(cursor, str) and cursor and len(items) >= PAGE_SIZE else None
    return Page(passages, total if passages or total or not items else len(items), following)


def _passage(item: dict[str, Any]) -> Passage | None:
    """Return the record as evidence, or None where it has no DOI or no title."""
    own = doi_identifier(doi) if isinstance(doi := item.get("DOI"), str) else None
    title = ": ".join(markup_text(part) for part in (*_first(item, "title"), *_first(item, "subtitle")))
    if own is None or not title:
        return None
    date = _date(item.get("published")) or _date(item.get("issued"))
    abstract = markup_text(item["abstract"]) if isinstance(item.get("abstract"), str) else ""
    venue = next(iter([*_first(item, "container-title"), *strings([item.get("publisher")])]), "")
    line = citation(_authors(item), "" if abstract else title, markup_text(venue), date)
    text = "\n\n".join(part for part in (line, abstract) if part)
    return Passage(title, address_of(own), text, date, identifiers(own, *_related(item)))


def _first(item: dict[str, Any], key: str) -> list[str]:
    """Return the first of a list of texts, as a list of one or none."""
    values = item.get(key)
    return strings(values)[:1] if isinstance(values, list) else []


def _authors(item: dict[str, Any]) -> list[str]:
    authors = item.get("author")
    people = [author for author in authors if isinstance(author, dict)] if isinstance(authors, list) else []
    return strings(" ".join(strings([p.get("given"), p.get("family")])) or p.get("name") for p in people)


def _related(item: dict[str, Any]) -> Iterator[str | None]:
    """Yield the identifiers of other records of the same work: a preprint, or what a preprint became."""
    relations = item.get("relation")
    for kind, others in relations.items() if isinstance(relations, dict) else ():
        for other in others if kind in _SAME_WORK and isinstance(others, list) else ():
            if isinstance(other, dict) and isinstance(name := other.get("id"), str):
                yield doi_identifier(name) or arxiv_identifier(name)


def _date(value: Any) -> str | None:
    """Return `{"date-parts": [[2022, 7, 26]]}` as 2022-07-26, 2022-07 or 2022; the list holds null for no date."""
    parts = value.get("date-parts") if isinstance(value, dict) else None
    first = parts[0] if isinstance(parts, list) and parts else None
    numbers = []
    for number, highest in zip(first if isinstance(first, list) else (), (9_999, 12, 31), strict=False):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= highest:
            break
        numbers.append(number)
    return f"{numbers[0]:04d}" + "".join(f"-{number:02d}" for number in numbers[1:]) if numbers else None
