"""How far the reading of a folder is, as numbers and in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from caveat_tools.plain_text import one_line

PROGRESS_SECONDS: Final = 3.0
"""How long a reading goes on between two lines about it."""
_GUESS_SECONDS: Final = 2.0  # after which a rate says something


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the reading is: files and bytes done, in all, and the seconds since it began."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int
    seconds: float


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
