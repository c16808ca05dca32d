"""The built-in sources, one file each, and how each is opened."""

from __future__ import annotations

import difflib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import httpx2

from caveat_tools.clock import Clock
from caveat_tools.faults import FaultPlan
from caveat_tools.http import CONTACT_VARIABLE, user_agent
from caveat_tools.source import Source
from caveat_tools.sources import arxiv, crossref, openalex, wikipedia
from caveat_tools.sources.local import LocalSource
from caveat_tools.transport import Answer, stacked

LARGE_FOLDER: Final = 200


class _Scholarly(Protocol):
    def __call__(
        self, client: httpx2.AsyncClient, clock: Clock, *, base_url: str | None = None, contact: str = ""
    ) -> Source: ...


_SCHOLARLY: Final[Mapping[str, tuple[_Scholarly, str, Answer]]] = {
    "openalex": (openalex.OpenAlexSource, openalex.URL_VARIABLE, openalex.empty_answer()),
    "arxiv": (arxiv.ArxivSource, arxiv.URL_VARIABLE, arxiv.empty_answer()),
    "crossref": (crossref.CrossrefSource, crossref.URL_VARIABLE, crossref.empty_answer()),
}
"""Each source's class, the variable that names another address for it, and its answer without a match."""
NAMES: Final = ("local", "wikipedia", *_SCHOLARLY)


class SourcesError(ValueError):
    """A source that does not exist or cannot be opened; the message says what to do."""


@asynccontextmanager
async def open_source(
    name: str,
    *,
    docs: Path | None,
    faults: FaultPlan,
    clock: Clock,
    on_progress: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Source]:
    """Open a built-in source by name, and close it afterwards. `docs` is the folder for `local`.

    Raises SourcesError, or LocalFolderError where the folder cannot be used.
    """
    source = await _opened(name, docs, faults, clock, on_progress)
    try:
        yield source
    finally:
        await source.aclose()


async def _opened(
    name: str, docs: Path | None, faults: FaultPlan, clock: Clock, on_progress: Callable[[str], None]
) -> Source:
    if name == "local":
        if docs is None:
            raise SourcesError("the source local needs a folder: name it with --docs")
        return await LocalSource.open(docs, on_progress=_in_tenths(docs, on_progress))
    if name == "wikipedia":
        client = _client(name, faults, wikipedia.empty_answer())
        try:
            return wikipedia.WikipediaSource(client, clock)
        except ValueError as error:
            await client.aclose()
            raise SourcesError(str(error)) from error
    if name in _SCHOLARLY:
        scholarly, variable, empty = _SCHOLARLY[name]
        client = _client(name, faults, empty)
        contact = os.environ.get(CONTACT_VARIABLE, "").strip()
        try:
            return scholarly(client, clock, base_url=os.environ.get(variable), contact=contact)
        except ValueError as error:
            await client.aclose()
            raise SourcesError(f"{variable}: {error}") from error
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise SourcesError(f"there is no source {name!r}; {hint}there are: {', '.join(NAMES)}")


def _client(name: str, faults: FaultPlan, empty: Answer) -> httpx2.AsyncClient:
    """Return the client of a source: `empty` is what the service answers where it holds no match."""
    transport = stacked(httpx2.AsyncHTTPTransport(), faults, name, {"empty": empty})
    return httpx2.AsyncClient(transport=transport, headers={"user-agent": user_agent()})


def _in_tenths(folder: Path, on_progress: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return a listener that tells of a large folder in ten steps and of a small one once."""

    def progress(done: int, total: int) -> None:
        step = max(1, total // 10) if total >= LARGE_FOLDER else total
        if done % step == 0 or done == total:
            on_progress(f"reading {folder}: {done} of {total} documents")

    return progress
