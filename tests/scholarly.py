"""OpenAlex, arXiv and Crossref as they document themselves, over a few works; each is a step for a `LocalServer`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from servers import Reply, Request, html_reply, json_reply

ATOM_TYPE = "application/atom+xml; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Work:
    """A work, as all three could know it."""

    title: str
    abstract: str = ""
    doi: str = ""
    arxiv: str = ""
    date: str = "2020-05-17"
    authors: tuple[str, ...] = ("Ada Byron", "Li Wei")
    venue: str = "Journal of Tea"

    def holds(self, words: Sequence[str]) -> bool:
        """Say whether every word occurs."""
        text = f"{self.title} {self.abstract} {' '.join(self.authors)}".casefold()
        return all(word.casefold() in text for word in words)


TEAS = tuple(
    Work(
        f"On tea {number}",
        f"We steep the leaves of tea {number} for three minutes & measure their taste.",
        doi=f"10.5555/Tea.{number}",
        arxiv=f"2005.{number:05d}v2",
        date=f"20{number + 10:02d}-05-17",
    )
    for number in range(1, 11)
)


def inverted(abstract: str) -> dict[str, list[int]]:
    """Return an abstract as OpenAlex gives it: each word with its positions."""
    index: dict[str, list[int]] = {}
    for position, word in enumerate(abstract.split()):
        index.setdefault(word, []).append(position)
    return index


def openalex_work(work: Work, number: int = 1) -> dict[str, Any]:
    """Return the record of a work."""
    pages = [{"landing_page_url": f"http://arxiv.org/abs/{work.arxiv}", "pdf_url": None}] if work.arxiv else []
    return {
        "id": f"https://openalex.org/W{number}",
        "doi": f"https://doi.org/{work.doi.lower()}" if work.doi else None,
        "ids": {"openalex": f"https://openalex.org/W{number}"},
        "title": work.title,
        "publication_date": work.date,
        "publication_year": int(work.date[:4]),
        "authorships": [{"author": {"display_name": name}} for name in work.authors],
        "primary_location": {"source": {"display_name": work.venue}, "landing_page_url": None},
        "locations": pages,
        "is_retracted": False,
        "abstract_inverted_index": inverted(work.abstract) if work.abstract else None,
    }


def openalex_page(*works: Any, count: int | None = None, next_cursor: str | None = None) -> dict[str, Any]:
    """Return a list of records."""
    count = len(works) if count is None else count
    return {"meta": {"count": count, "next_cursor": next_cursor}, "results": list(works), "group_by": []}


class FakeOpenAlex:
    """The list of works: search, date filter, cursor, and refusals in the service's forms."""

    def __init__(self, works: Sequence[Work] = TEAS) -> None:
        self._works = works

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        if request.path != "/works":
            return html_reply("<!doctype html><h1>Not Found</h1>", 404)
        asked = dict(request.query)
        filters = dict(part.split(":", 1) for part in asked.get("filter", "").split(",") if part)
        unknown = set(filters) - {"from_publication_date", "to_publication_date"}
        if unknown or not asked.get("search", "").strip():
            body = {"error": "Invalid query parameters error.", "message": f"{sorted(unknown)} is not valid."}
            return json_reply(body, 400)
        low, high = filters.get("from_publication_date", ""), filters.get("to_publication_date", "9999")
        hits = [w for w in self._works if w.holds(asked["search"].split()) and low <= w.date <= high]
        first, size = int(asked["cursor"].strip("*") or 0), int(asked["per_page"])
        shown = [openalex_work(work, number) for number, work in enumerate(hits[first : first + size], first)]
        more = str(first + size) if shown else None
        return json_reply(openalex_page(*shown, count=len(hits), next_cursor=more))


def arxiv_entry(work: Work) -> str:
    """Return the entry of a preprint."""
    authors = "".join(f"<author><name>{escape(name)}</name></author>" for name in work.authors)
    doi = f"<arxiv:doi>{escape(work.doi)}</arxiv:doi>" if work.doi else ""
    return (
        f"<entry><id>http://arxiv.org/abs/{work.arxiv}</id><title>{escape(work.title)}</title>"
        f"<updated>2030-01-01T00:00:00Z</updated><published>{work.date}T12:00:00Z</published>"
        f"<summary>  {escape(work.abstract)}\n</summary>{authors}{doi}</entry>"
    )


def arxiv_feed(*entries: str, total: int | None = None) -> bytes:
    """Return a feed with these entries."""
    count = len(entries) if total is None else total
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom" '
        'xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/" xmlns:arxiv="http://arxiv.org/schemas/atom">'
        f"<title>arXiv Query</title><opensearch:totalResults>{count}</opensearch:totalResults>{''.join(entries)}</feed>"
    ).encode()


def arxiv_error(words: str) -> bytes:
    """Return the feed with which arXiv refuses a query."""
    return arxiv_feed(
        f"<entry><id>https://arxiv.org/api/errors#{words.replace(' ', '_')}</id><title>Error</title>"
        f"<summary>{escape(words)}</summary></entry>"
    )


class FakeArxiv:
    """The query interface: words in quotes joined by AND, a range of dates, and the error feed for anything else."""

    def __init__(self, works: Sequence[Work] = TEAS) -> None:
        self._works = works

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        terms = request.query.get("search_query", "").split(" AND ")
        words = [match[1] for term in terms if (match := re.fullmatch(r'all:"([^":()\[\]]+)"', term))]
        dates = [m for term in terms if (m := re.fullmatch(r"submittedDate:\[([0-9]{12}) TO ([0-9]{12})\]", term))]
        if len(words) + len(dates) < len(terms) or not words:
            return Reply(400, {"content-type": ATOM_TYPE}, arxiv_error("malformed search_query"))
        low, high = dates[0].groups() if dates else ("0", "9")
        hits = [w for w in self._works if w.holds(words) and low <= w.date.replace("-", "") + "1200" <= high]
        first, size = int(request.query["start"]), int(request.query["max_results"])
        entries = [arxiv_entry(work) for work in hits[first : first + size]]
        return Reply(200, {"content-type": ATOM_TYPE}, arxiv_feed(*entries, total=len(hits)))


def crossref_item(work: Work) -> dict[str, Any]:
    """Return the record of a work."""
    parts = [[int(part) for part in work.date.split("-")]]
    item: dict[str, Any] = {
        "DOI": work.doi,
        "title": [work.title],
        "container-title": [work.venue],
        "publisher": "Tea Press",
        "author": [dict(zip(("given", "family"), name.split(), strict=True)) for name in work.authors],
        "published": {"date-parts": parts},
    }
    if work.abstract:
        item["abstract"] = f"<jats:title>Abstract</jats:title><jats:p>{escape(work.abstract)}</jats:p>"
    if work.arxiv:
        item["relation"] = {"has-preprint": [{"id-type": "arxiv", "id": work.arxiv, "asserted-by": "subject"}]}
    return item


def crossref_page(*items: Any, total: int | None = None, next_cursor: str | None = None) -> dict[str, Any]:
    """Return a list of records."""
    count = len(items) if total is None else total
    message: dict[str, Any] = {"facets": {}, "total-results": count, "items": list(items)}
    if next_cursor:
        message["next-cursor"] = next_cursor
    return {"status": "ok", "message-type": "work-list", "message-version": "1.0.0", "message": message}


def crossref_failure(words: str, kind: str = "validation-failure") -> dict[str, Any]:
    """Return the form in which Crossref refuses a parameter."""
    return {"status": "failed", "message-type": kind, "message": [{"type": "x-not-valid", "message": words}]}


class FakeCrossref:
    """The list of works: any word counts, a date filter, a cursor that is also given with the last page."""

    def __init__(self, works: Sequence[Work] = TEAS) -> None:
        self._works = works

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        if request.path != "/works":
            return Reply(404, {"content-type": "text/plain"}, b"Resource not found.")
        asked = request.query
        filters = dict(part.split(":", 1) for part in asked.get("filter", "").split(",") if part)
        if set(filters) - {"from-pub-date", "until-pub-date"}:
            return json_reply(crossref_failure("there is no such filter"), 400)
        if not re.fullmatch(r"\*|[0-9]+", asked["cursor"]):
            return json_reply(crossref_failure("Cursor is invalid", "resource-failure"), 404)
        words = asked["query"].split()
        low, high = filters.get("from-pub-date", ""), filters.get("until-pub-date", "9999")
        hits = [w for w in self._works if any(w.holds([word]) for word in words) and low <= w.date <= high]
        first, size = int(asked["cursor"].strip("*") or 0), int(asked["rows"])
        items = [crossref_item(work) for work in hits[first : first + size]]
        return json_reply(crossref_page(*items, total=len(hits), next_cursor=str(first + size)))
