"""The built-in sources, one file each, and how each is opened."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import httpx2

from caveat_tools.clock import Clock
from caveat_tools.faults import FaultPlan
from caveat_tools.folder_progress import spoken
from caveat_tools.http import user_agent
from caveat_tools.names import SOURCE_NAMES
from caveat_tools.network import NetworkError, NetworkTransport
from caveat_tools.source import Source
from caveat_tools.sources import arxiv, crossref, openalex, wikipedia
from caveat_tools.sources.local import LocalSource
from caveat_tools.transport import Answer, FaultTransport


class _Service(Protocol):
    def __call__(
        self, client: httpx2.AsyncClient, clock: Clock, *, base_url: str | None = None, contact: str = ""
    ) -> Source: ...


def _wikipedia(
    client: httpx2.AsyncClient, clock: Clock, *, base_url: str | None = None, contact: str = ""
) -> wikipedia.WikipediaSource:
    """Open Wikipedia, which wants the contact in the User-Agent and nowhere else."""
    del contact
    return wikipedia.WikipediaSource(client, clock, base_url=base_url)


_SERVICES: Final[Mapping[str, tuple[_Service, Answer]]] = {
    "wikipedia": (_wikipedia, wikipedia.empty_answer()),
    "openalex": (openalex.OpenAlexSource, openalex.empty_answer()),
    "arxiv": (arxiv.ArxivSource, arxiv.empty_answer()),
    "crossref": (crossref.CrossrefSource, crossref.empty_answer()),
}
"""Each source behind HTTP: how it is made, and its answer without a match."""


class SourcesError(ValueError):
    """A source that does not exist or cannot be opened; the message says what to do."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What opening a source may need to know.

    `docs` is the folder for `local`, and `index` the folder in which it keeps what it has read for later runs (None:
    nowhere); `contact` is the user's address, for the services that want one; `addresses` are base URLs by source,
    where they are not the public ones.
    """

    docs: Path | None = None
    index: Path | None = None
    contact: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def open_source(
    name: str,
    settings: SourceSettings,
    *,
    faults: FaultPlan,
    clock: Clock,
    on_progress: Callable[[str], None] = lambda _: None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Source]:
    """Open a built-in source by name, and close it afterwards.

    `on_progress` is told how far the reading of a folder is, now and then; `on_notice` what the user should know.
    Raises SourcesError, or LocalFolderError where the folder cannot be used.
    """
    if name == "local":
        if settings.docs is None:
            raise SourcesError("the source local needs a folder: name it with --docs")
        told = spoken(settings.docs, on_progress)
        source: Source = await LocalSource.open(
            settings.docs, index=settings.index, clock=clock, on_progress=told, on_notice=on_notice
        )
    else:
        source = await _service(name, settings, faults, clock)
    try:
        yield source
    finally:
        await source.aclose()


async def _service(name: str, settings: SourceSettings, faults: FaultPlan, clock: Clock) -> Source:
    if name in _SERVICES:
        return await _asked_over_http(name, settings, faults, clock)
    near = difflib.get_close_matches(name, SOURCE_NAMES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise SourcesError(f"there is no source {name!r}; {hint}there are: {', '.join(SOURCE_NAMES)}")


async def _asked_over_http(name: str, settings: SourceSettings, faults: FaultPlan, clock: Clock) -> Source:
    service, empty = _SERVICES[name]
    try:
        transport = FaultTransport(NetworkTransport(), faults, name, {"empty": empty})
    except NetworkError as error:
        raise SourcesError(str(error)) from error
    client = httpx2.AsyncClient(transport=transport, headers={"user-agent": user_agent(settings.contact)})
    try:
        return service(client, clock, base_url=settings.addresses.get(name), contact=settings.contact.strip())
    except ValueError as error:
        await client.aclose()
        raise SourcesError(f"{name}_url: {error}") from error
