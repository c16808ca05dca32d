"""The built-in sources, one file each, and how each is opened."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2

from caveat_tools.clock import Clock
from caveat_tools.faults import FaultPlan
from caveat_tools.http import user_agent
from caveat_tools.plain_text import one_line
from caveat_tools.source import Source
from caveat_tools.sources.local import LocalSource, Progress
from caveat_tools.sources.wikipedia import WikipediaSource, empty_answer
from caveat_tools.transport import stacked

NAMES: Final = ("local", "wikipedia")
PROGRESS_SECONDS: Final = 3.0
"""How long a reading goes on between two lines about it."""
_GUESS_SECONDS: Final = 2.0  # after which a rate says something


class SourcesError(ValueError):
    """A source that does not exist or cannot be opened; the message says what to do."""


@asynccontextmanager
async def open_source(
    name: str,
    *,
    docs: Path | None,
    faults: FaultPlan,
    clock: Clock,
    index: Path | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Source]:
    """Open a built-in source by name, and close it afterwards. `docs` is the folder for `local`.

    `index` is the folder in which `local` keeps its index for later runs; None keeps none. `on_progress` is told how
    far the reading is, now and then; `on_notice` what the user should know.
    Raises SourcesError, or LocalFolderError where the folder cannot be used.
    """
    if name == "local":
        if docs is None:
            raise SourcesError("the source local needs a folder: name it with --docs")
        source: Source = await LocalSource.open(
            docs, index=index, clock=clock, on_progress=spoken(docs, on_progress), on_notice=on_notice
        )
    else:
        source = await _remote(name, faults, clock)
    try:
        yield source
    finally:
        await source.aclose()


async def _remote(name: str, faults: FaultPlan, clock: Clock) -> Source:
    if name == "wikipedia":
        answers = {"empty": ("application/json; charset=utf-8", empty_answer())}
        transport = stacked(httpx2.AsyncHTTPTransport(), faults, name, answers)
        client = httpx2.AsyncClient(transport=transport, headers={"user-agent": user_agent()})
        try:
            return WikipediaSource(client, clock)
        except ValueError as error:
            await client.aclose()
            raise SourcesError(str(error)) from error
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise SourcesError(f"there is no source {name!r}; {hint}there are: {', '.join(NAMES)}")


def spoken(folder: Path, on_progress: Callable[[str], None]) -> Callable[[Progress], None]:
    """Return a listener that says what will be read, and every few seconds how far it is."""
    told = 0.0

    def progress(now: Progress) -> None:
        nonlocal told
        name = one_line(folder.name or str(folder), 60)
        if now.files == 0:
            on_progress(f"reading {name}: {_number(now.of_files)} {_files(now.of_files)}, {_size(now.of_bytes)}")
        elif now.seconds - told >= PROGRESS_SECONDS and now.files < now.of_files:
            told = now.seconds
            on_progress(f"reading {name}: {_number(now.files)} of {_number(now.of_files)} files{_pace(now)}")

    return progress


def _pace(now: Progress) -> str:
    """Return the rate and the time that is left, once there is something to tell them from."""
    if now.seconds < _GUESS_SECONDS or not now.bytes:
        return ""
    rate = now.bytes / now.seconds
    left = (now.of_bytes - now.bytes) / rate
    minutes = round(left / 60)
    about = f"{minutes} min" if left >= 90 else f"{max(1, round(left))} s"
    return f", {_size(rate)}/s, about {about} left"


def _size(count: float) -> str:
    if count < 1e6:
        return f"{max(1, round(count / 1e3))} kB"
    return f"{count / 1e6:.1f} MB" if count < 1e7 else f"{_number(round(count / 1e6))} MB"


def _number(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _files(count: int) -> str:
    return "file" if count == 1 else "files"
