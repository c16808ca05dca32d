"""What can be said of a cassette: how it was recorded, whether it still plays, and whether a secret is on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from caveat.errors import USAGE_ERRORS, NoReportError
from caveat.testing.cassette import Cassette, use_cassette
from caveat.testing.cassette_file import CassetteFileError
from caveat.testing.miss import CassetteError
from caveat.testing.secrets import Secret, secrets_in
from caveat.testing.session import play, session_of
from caveat_tools.plain_text import plain

State: TypeAlias = Literal["plays", "stale", "foreign", "damaged"]


@dataclass(frozen=True)
class Described:
    """A cassette in words. `why` says what is wrong with one that does not play; `size` is in bytes."""

    path: Path
    state: State
    size: int
    why: str = ""
    interactions: int = 0
    question: str = ""
    recorded: dict[str, Any] = field(default_factory=dict)
    secrets: tuple[Secret, ...] = ()

    @property
    def is_unfit(self) -> bool:
        """Say whether something is to be done about it."""
        return self.state in {"stale", "damaged"} or bool(self.secrets)

    def in_words(self) -> list[str]:
        """Return what is worth saying, one sentence a line."""
        recorded = self.recorded
        lines = [self.question] if self.question else []
        if recorded:
            models = ", ".join(map(str, recorded.get("models") or ["no model"]))
            lines.append(f"recorded {recorded.get('at', 'at an unknown time')} with {models}")
        if recorded.get("note"):
            lines.append(str(recorded["note"]))
        lines.append(f"{self.interactions} interactions, {self.size / 1000:.0f} kB")
        lines += [f"line {secret.where} holds {secret.kind}: {secret.shown}" for secret in self.secrets]
        lines += self.why.splitlines()[:_MAX_WHY_LINES]
        return [plain(line) for line in lines]  # the file can be anybody's

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {
            "path": self.path.as_posix(),
            "state": self.state,
            "why": self.why,
            "question": self.question,
            "interactions": self.interactions,
            "bytes": self.size,
            "recorded": self.recorded,
            "secrets": [{"kind": s.kind, "line": s.where, "shown": s.shown} for s in self.secrets],
        }


_MAX_WHY_LINES = 30


def describe(path: Path) -> Described:
    """Read a cassette, play it if it holds a session of caveat, and return what there is to say of it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return Described(path, "damaged", 0, f"the file cannot be read: {error.strerror}")
    size = len(content)
    secrets = tuple(secrets_in(content.decode("utf-8", "replace")))
    try:
        cassette = Cassette(path)
        session = session_of(cassette) if "session" in cassette.header else None
        state, why = asyncio.run(_played(path)) if session else ("foreign", "")
    except CassetteFileError as error:
        return Described(path, "damaged", size, str(error), secrets=secrets)
    return Described(
        path,
        state,
        size,
        why,
        interactions=len(cassette),
        question=session.question if session else "",
        recorded=cassette.header.get("recorded", {}),
        secrets=secrets,
    )


async def _played(path: Path) -> tuple[State, str]:
    try:
        with use_cassette(path) as cassette:
            await play(cassette, session_of(cassette))
    except (CassetteError, NoReportError, *USAGE_ERRORS) as error:
        return "stale", str(error)
    return ("stale", cassette.partly_played()) if cassette.not_played else ("plays", "")
