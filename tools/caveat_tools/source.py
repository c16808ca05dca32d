"""What a source of evidence is: one small protocol, one question form, one page form, one error.

To add a source, write a class with five attributes, `page` and `aclose`. It raises `SourceError` (or lets an
`httpx2.TransportError` pass, which `http.get_json` has already turned into one) and returns a `Page`; retries,
guards, snapshots, numbering and coverage are done around it.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from caveat_tools.outcome import ERROR_KINDS, ErrorType
from caveat_tools.retry import RecoverableError


@dataclass(frozen=True, slots=True)
class Ask:
    """One question to one source. Dates are ISO 8601 days (`2024-05-31`), both ends included; `limit` is 1 to 8."""

    query: str
    date_from: str | None = None
    date_to: str | None = None
    limit: int = 5

    def key(self) -> tuple[str, str, str]:
        """Return what makes two asks the same: NFC, case-folded, spaces collapsed; dates; `limit` does not count."""
        return _folded(self.query), self.date_from or "", self.date_to or ""


@lru_cache(maxsize=4_096)
def _folded(query: str) -> str:
    return " ".join(unicodedata.normalize("NFC", query).casefold().split())


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document, as its source gives it. `text` may be longer than the wire allows; it is cut there.

    `identifiers` are those of the work that it is of (`works.py`): two passages that share one are of the same work.
    """

    title: str
    url: str
    text: str
    date: str | None = None
    identifiers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Page:
    """One page of answers. No passages and no cursor on the first page is the source's valid answer "no match"."""

    passages: tuple[Passage, ...] = ()
    total: int | None = None
    next_cursor: str | None = None


class SourceError(RecoverableError):
    """A source could not answer. `error_type` is decided from exception class, status and documented error fields.

    `passages` are complete pieces of evidence that arrived before the failure within the same page.
    """

    def __init__(
        self,
        error_type: ErrorType,
        message: str,
        *,
        retryable: bool,
        retry_after_seconds: float | None = None,
        passages: tuple[Passage, ...] = (),
    ) -> None:
        """`message` is one clause for the model and the reader: what happened, without a verdict on the topic.

        Raises ValueError where `retryable` contradicts the table of error types.
        """
        if retryable not in ERROR_KINDS[error_type].retryable:
            raise ValueError(f"a SourceError of the kind {error_type} cannot have retryable={retryable}")
        patience = retry_after_seconds
        if patience is not None and not (math.isfinite(patience) and patience >= 0):
            patience = None
        super().__init__(message.strip() or error_type, retryable=retryable, retry_after_seconds=patience)
        self.error_type: ErrorType = error_type
        self.passages = passages


class UnsearchableError(SourceError):
    """A query that a source is not asked, since it cannot be looked for: `invalid_query`, after no attempt."""

    def __init__(self, why: str) -> None:
        """`why` says what is wrong with the query, in one clause."""
        super().__init__("invalid_query", f"{why}; nothing was sent", retryable=False)


class Source(Protocol):
    """A place that can be asked. One instance serves one research; `page` is called concurrently."""

    @property
    def name(self) -> str:
        """The name the model uses: lower case, letters, digits and underscores."""

    @property
    def description(self) -> str:
        """One sentence for the model: what is in it, and how a query should look."""

    @property
    def place(self) -> str:
        """Where it looks: a base URL or a folder. Snapshots of one place are never served for another."""

    @property
    def accepts_dates(self) -> bool:
        """True where `date_from` and `date_to` restrict the answer."""

    @property
    def in_process(self) -> bool:
        """True where no HTTP transport is asked, so that an injected fault is applied at the call instead."""

    async def page(self, ask: Ask, cursor: str | None) -> Page:
        """Return the first page of answers (`cursor` None) or the one that `next_cursor` of another page names.

        Raises SourceError for every named failure. Any other exception counts as a bug and ends the run.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections and files."""
