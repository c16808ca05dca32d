"""Where runs and snapshots are kept: one folder a run, one cache a user."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

import platformdirs

from caveat.errors import HomeError
from caveat.loop import AgentEnd
from caveat.report import Report
from caveat_tools.clock import Clock
from caveat_tools.snapshots import Snapshots, SnapshotStore, open_user_cache


def default_home() -> Path | None:
    """Return the folder that CAVEAT_HOME names, or None for the platform's own folders. Raises HomeError."""
    home = os.environ.get("CAVEAT_HOME")
    try:
        return Path(home).expanduser() if home else None
    except RuntimeError as error:
        raise HomeError(f"CAVEAT_HOME is {home}: {error}") from error


def folder_of(run_id: str, home: Path | None = None) -> Path:
    """Return the folder of a run."""
    home = home or default_home()
    return (home / "runs" if home else platformdirs.user_state_path("caveat") / "runs") / run_id


class RunStore:
    """One run's folder. A disk that cannot be written is a warning: the report still reaches the caller."""

    def __init__(self, home: Path | None, run_id: str, on_warning: Callable[[str], None]) -> None:
        home = home or default_home()
        self.folder = folder_of(run_id, home)
        cache = home / "cache" if home else platformdirs.user_cache_path("caveat")
        self._cache = cache / "snapshots.sqlite"
        self.indexes = cache / "indexes"
        """Where the source local keeps what it has read."""
        self._on_warning = on_warning
        self._is_kept = False

    def snapshots(self, clock: Clock) -> Snapshots:
        """Open the run's own store and the user's cache; a store that cannot be opened is left out, with a warning."""
        try:
            run = SnapshotStore(self.folder / "snapshots.sqlite")
            self._is_kept = True
        except (sqlite3.Error, OSError) as error:
            self._on_warning(f"this run is not kept on disk: {self.folder}: {error}")
            run = SnapshotStore(None)
        return Snapshots([run, *open_user_cache(self._cache, clock.now(), self._on_warning)], self._on_warning)

    def keep(self, report: Report, agents: Mapping[str, AgentEnd | None]) -> None:
        """Write the report and what every agent said into the run's folder."""
        if not self._is_kept:
            return
        transcript = {name: {"end": end.reason, "messages": end.messages} for name, end in agents.items() if end}
        files = {
            "report.md": report.markdown,
            "report.json": report.to_json(),
            "transcript.json": json.dumps(transcript, ensure_ascii=False, indent=1),
        }
        try:
            for name, text in files.items():
                (self.folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            self._on_warning(f"the report could not be kept in {self.folder}: {error}")
