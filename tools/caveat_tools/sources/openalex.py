"""OpenAlex, an index of scholarly works: https://developers.openalex.org. One request gives a page of whole records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, TypeGuard

import httpx2

from caveat_tools.clock import Clock
from caveat_tools.http import (
    HttpAnswer,
    delay,
    failure,
    get,
    json_or_none,
    json_value,
    mail_address,
    refusal,
    retry_after,
    service_url,
    with_service_text,
)
from caveat_tools.markup import markup_text
from caveat_tools.network import without_password
from caveat_tools.outcome import MAX_RESULTS, ErrorType
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

URL_VARIABLE: Final = "CAVEAT_OPENALEX_URL"
DEFAULT_URL: Final = "https://api.openalex.org/works"
PAGE_SIZE: Final = MAX_RESULTS
SPENT_FOR_TODAY_SECONDS: Final = 3_600.0
"""A wait from which on a rate limit is a spent budget, which no wait within a research mends."""
MAX_ABSTRACT_WORDS: Final = 5_000

_FIELDS: Final = (
    "id,doi,ids,title,publication_date,publication_year,authorships,primary_location,locations,is_retracted,"
    "abstract_inverted_index"
)
_ERROR_TYPE_OF: Final[dict[str, ErrorType]] = {
    "Invalid query parameters error.": "invalid_query",
    "Pagination error.": "invalid_query",
    "High author count limitation.": "invalid_query",
    "Search execution error.": "unavailable",
}
"""What the field `error` says, by the exceptions of the service (openalex-elastic-api, core/exceptions.py)."""


def empty_answer() -> tuple[str, bytes]:
    """Return the content type and the body with which the service says that it holds no match."""
    body = b'{"meta":{"count":0,"page":null,"per_page":8,"next_cursor":null},"results":[],"group_by":[]}'
    return "application/json", body


class OpenAlexSource:
    """The `Source` named openalex. The client becomes its own and is closed with it."""

    name = "openalex"
    description = (
        "OpenAlex, an index of scholarly works of all fields: title, authors, venue, year and, for about "
        "half of them, the abstract; without one a result shows only that the work exists. Send two to six key words; "
        "all of them must occur. A result's date, and a date range, are those of publication."
    )
    accepts_dates = True
    in_process = False

    def __init__(
        self, client: httpx2.AsyncClient, clock: Clock, *, base_url: str | None = None, contact: str = ""
    ) -> None:
        """`base_url` is the address of the list of works, else the public one; its own parameters are kept.

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
        line with its title; one without that is left out but stays in `total`. Raises SourceError.
        """
        now = self._clock.now()
        answer = await get(
            self._client, self._url, self._params(ask, cursor), hint=f"set {URL_VARIABLE} to the list of works"
        )
        if not answer.response.is_success:
            raise _refusal(answer, now)
        return _page(json_value(answer))

    def _params(self, ask: Ask, cursor: str | None) -> dict[str, str]:
        # AND, OR and NOT are operators in capitals only
        words = [word.lower() if word in {"AND", "OR", "NOT"} else word for word in searchable(ask.query)]
        params = {"search": " ".join(words), "per_page": str(PAGE_SIZE), "cursor": cursor or "*", "select": _FIELDS}
        dates = {"from_publication_date": ask.date_from, "to_publication_date": ask.date_to}
        if ask.date_from or ask.date_to:
            params["filter"] = ",".join(f"{name}:{day}" for name, day in dates.items() if day)
        if self._contact:
            params["mailto"] = self._contact
        return params

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()


def _refusal(answer: HttpAnswer, now: datetime) -> SourceError:
    """Return what an answer with an error status stands for.

    The documentation gives 403 as "slow down" (https://developers.openalex.org/api-reference/errors), and the service
    then answers in JSON; a 403 that is a web page comes from a wall in front of it.
    """
    status, headers = answer.response.status_code, answer.response.headers
    body = json_or_none(answer)
    text = _error_text(body)
    message = with_service_text(f"answered with status {status}", text)
    if status in {400, 403, 404} and (error_type := _error_type(body)):
        return failure(error_type, message)
    if status == 429 or (status == 403 and text):
        spent = not re.fullmatch(r"[1-9][0-9]*", headers.get("x-ratelimit-remaining", "").strip())
        # the reset of a budget that is not spent has nothing to do with this refusal
        wait = retry_after(headers, now) if spent else delay(headers, now)
        return SourceError(
            "rate_limited",
            message,
            retryable=wait is None or wait < SPENT_FOR_TODAY_SECONDS,
            retry_after_seconds=wait,
        )
    return refusal(answer, now=now, hint=f"set {URL_VARIABLE} to the list of works", text=text)


def _error_type(body: Any) -> ErrorType | None:
    error = body.get("error") if isinstance(body, dict) else None
    return _ERROR_TYPE_OF.get(error) if isinstance(error, str) else None


def _error_text(body: Any) -> str | None:
    return next(iter(strings([body.get("message"), body.get("error")])), None) if isinstance(body, dict) else None


def _page(body: Any) -> Page:
    if not isinstance(body, dict):
        raise failure("malformed_response", "the answer is JSON, but not the object that OpenAlex documents")
    if "error" in body:
        message = with_service_text("answered with an error", _error_text(body))
        raise failure(_error_type(body) or "malformed_response", message)
    results, meta = body.get("results"), body.get("meta")
    if not isinstance(results, list) or not isinstance(meta, dict):
        raise failure("malformed_response", "the answer is JSON, but holds no list of works")
    passages = tuple(passage for work in results[:PAGE_SIZE] if isinstance(work, dict) and (passage := _passage(work)))
    total = meta.get("count") if _is_count(meta.get("count")) else None
    if not results and total is None:
        raise failure("malformed_response", "the answer holds neither works nor a count of them")
    cursor = meta.get("next_cursor")
    following = cursor if isinstance(cursor, str) and cursor and len(results) >= PAGE_SIZE else None
    return Page(passages, total if passages or total or not results else len(results), following)


def _passage(work: dict[str, Any]) -> Passage | None:
    """Return the work as evidence, or None where the record does not even name it."""
    title = markup_text(_string_at(work, "title"))
    date = _date(work)
    venue = _string_at(work, "primary_location", "source", "display_name")
    abstract = markup_text(abstract_of(work.get("abstract_inverted_index")))
    line = citation(_authors(work), "" if abstract else title, venue, date)
    if work.get("is_retracted") is True:
        line = f"{line}. Retracted" if line else "Retracted"
    text = "\n\n".join(part for part in (line, abstract) if part)
    known = identifiers(*_identifiers(work))
    first = next((i for i in _identifiers(work) if i), None)
    url = address_of(first) if first else _string_at(work, "id")
    if not title or not text or not url:
        return None
    return Passage(title, url, text, date, known)


def abstract_of(index: Any) -> str:
    """Return the text of an `abstract_inverted_index` (word → positions); "" where there is none that can be trusted.

    Positions at which no word stands are shown as "…", so that no quote spans them. An index that gives one position to
    two words is of no known text. Positions are only compared: one of 10¹² costs nothing.
    """
    words: dict[int, str] = {}
    for word, positions in index.items() if isinstance(index, dict) else ():
        for position in positions if isinstance(positions, list) else ():
            if _is_count(position) and words.setdefault(position, word) != word:
                return ""
    text: list[str] = []
    expected = 0
    for position in sorted(words)[:MAX_ABSTRACT_WORDS]:
        if position != expected:
            text.append("…")
        text.append(words[position])
        expected = position + 1
    return " ".join(text).strip()


def _identifiers(work: dict[str, Any]) -> Iterator[str | None]:
    """Yield the work's DOIs, then the arXiv ids under which it can be read."""
    for doi in strings([work.get("doi"), _string_at(work, "ids", "doi")]):
        yield doi_identifier(doi)
    locations = work.get("locations")
    for location in [work.get("primary_location"), *(locations if isinstance(locations, list) else [])]:
        if isinstance(location, dict):
            for address in strings([location.get("landing_page_url"), location.get("pdf_url")]):
                yield arxiv_identifier(address)


def _authors(work: dict[str, Any]) -> list[str]:
    authorships = work.get("authorships")
    entries = authorships if isinstance(authorships, list) else []
    return strings(_string_at(entry, "author", "display_name") for entry in entries)


def _date(work: dict[str, Any]) -> str | None:
    date = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", _string_at(work, "publication_date"))
    year = work.get("publication_year")
    return date[0] if date else f"{year:04d}" if _is_count(year) and 0 < year < 10_000 else None


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _string_at(value: Any, *keys: str) -> str:
    """Return the text at a path of keys, "" where it leads to none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""
