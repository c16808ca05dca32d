"""A research session of caveat on a cassette: recorded by a test, played by it and by `caveat replay`.

@pytest.mark.cassette
async def test_the_opening_is_found(cassette):
    report = await research_on(cassette, "When was the Kariba dam opened?")
    assert report.exit_code == 0
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from caveat.budget import Limits
from caveat.events import Event
from caveat.model import asks_a_server
from caveat.offline import MODEL_NAME
from caveat.report import Report
from caveat.session import research
from caveat.settings import Settings, read_settings
from caveat.testing.cassette import Cassette
from caveat.testing.cassette_file import CassetteFileError
from caveat.testing.matching import stored_url
from caveat_tools.clock import Clock, FakeClock, SystemClock

_NOWHERE: Final = "https://messages.invalid"
"""The address of the model in a replay: no request leaves, and the cassette does not look at it."""


class Session(BaseModel):
    """What makes a session: it stands in the cassette's header, so that it can be played again.

    `docs` is the folder of the source local, seen from the cassette; `addresses` are those of sources that are not the
    public ones; `limits` those that are not the default ones; `start` is the moment that the run took for now.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str
    sources: tuple[str, ...]
    model: str
    start: Annotated[AwareDatetime, Field(ge=datetime(2000, 1, 1, tzinfo=UTC))]
    docs: str | None = None
    inject: str = ""
    limits: dict[str, int | float | None] = Field(default_factory=dict)
    addresses: dict[str, str] = Field(default_factory=dict)
    offline: bool = False


def session_of(cassette: Cassette) -> Session:
    """Return the session on a cassette. Raises CassetteFileError where it holds none of caveat's."""
    described = cassette.header.get("session")
    if described is None:
        raise CassetteFileError(
            f"{cassette.path} was not recorded from a research session of caveat, so there is no report to play"
        )
    try:
        return Session.model_validate(described)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, ("session", *problem["loc"])))
        raise CassetteFileError(f"{cassette.path} is damaged: {where}: {problem['msg']}") from error


async def research_on(
    cassette: Cassette,
    question: str,
    *,
    sources: Sequence[str] = ("wikipedia",),
    docs: Path | None = None,
    inject: str = "",
    limits: Limits | None = None,
    settings: Settings | None = None,
) -> Report:
    """Research a question over a cassette in use, and return the report.

    While recording, model, key and addresses are those of `settings`, by default of the environment (without a key, the
    embedded stand-in is recorded), and the clock is the real one. In a replay model, addresses and the moment of the
    start are the recorded ones, and no time passes but what is slept, which is none. Raises what `caveat.research`
    raises, and CassetteError.
    """
    folder = Path(cassette.path).parent
    limits = limits or Limits()
    told: dict[str, Any] = {
        "question": question,
        "sources": tuple(sources),
        "docs": docs and _seen_from(folder, docs),
        "inject": inject,
        "limits": {name: value for name, value in asdict(limits).items() if value != asdict(Limits())[name]},
    }
    if not cassette.is_recording:
        return await play(cassette, session_of(cassette).model_copy(update=told))
    settings = settings or read_settings()[0]
    clock = SystemClock()
    offline = not asks_a_server(settings)
    addresses = settings.for_sources().addresses
    session = Session(
        **told,
        model=MODEL_NAME if offline else settings.model,
        start=clock.now().replace(microsecond=0),
        addresses={name: stored_url(address) for name, address in addresses.items() if name in sources},
        offline=offline,
    )
    cassette.header["session"] = session.model_dump(mode="json", exclude_defaults=True)
    return await _research(session, settings, clock, folder)


async def play(cassette: Cassette, session: Session, on_event: Callable[[Event], None] = lambda _: None) -> Report:
    """Play a session from its cassette, and return the report.

    Raises as `research_on` does, and CassetteFileError where the header says what no session can have.
    """
    addresses: dict[str, Any] = {f"{name}_url": address for name, address in session.addresses.items()}
    base_url = None if session.offline else _NOWHERE
    try:
        settings = Settings(model=session.model, base_url=base_url, offline=session.offline, **addresses)
        Limits(**session.limits)  # type: ignore[arg-type] # whole numbers stay whole in YAML
    except (TypeError, ValidationError) as error:
        raise CassetteFileError(f"{cassette.path} is damaged: the session in its header is none of caveat's") from error
    return await _research(session, settings, FakeClock(session.start), Path(cassette.path).parent, on_event)


async def _research(
    session: Session,
    settings: Settings,
    clock: Clock,
    folder: Path,
    on_event: Callable[[Event], None] = lambda _: None,
) -> Report:
    with tempfile.TemporaryDirectory(prefix="caveat-session-") as home:
        return await research(
            session.question,
            sources=session.sources,
            docs=session.docs and _documents(folder, session.docs),
            inject=session.inject,
            limits=Limits(**session.limits),  # type: ignore[arg-type] # whole numbers stay whole in YAML
            settings=settings,
            home=Path(home),
            clock=clock,
            new_id=lambda: "recorded",
            on_event=on_event,
        )


def _seen_from(folder: Path, docs: Path) -> str:
    return Path(os.path.relpath(docs, folder)).as_posix()


def _documents(folder: Path, docs: str) -> Path:
    return Path(os.path.normpath(folder / docs))  # the folder of a new cassette need not be there yet
