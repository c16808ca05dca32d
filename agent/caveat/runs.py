"""Where runs and snapshots are kept: one folder a run, one cache a user."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from caveat.journal import Journal
from caveat.loop import AgentEnd
from caveat.places import cache_folder, run_folder
from caveat.report import Report
from caveat_tools.clock import Clock
from caveat_tools.snapshots import Snapshots, SnapshotStore, open_user_cache


def unused_id(run_id: str, home: Path | None) -> str:
    """Return the id, or one with a number behind it where a run has that id already."""
    ids = itertools.chain([run_id], (f"{run_id}-{number}" for number in itertools.count(2)))
    return next(each for each in ids if not os.path.lexists(run_folder(each, home)))


class RunStore:
    """One run's folder. A disk that cannot be written is a warning: the report still reaches the caller."""

    def __init__(self, home: Path | None, run_id: str, on_warning: Callable[[str], None]) -> None:
        self.run_id = run_id
        self.folder = run_folder(run_id, home)
        self._cache = cache_folder(home) / "snapshots.sqlite"
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

    def journal(self) -> Journal:
        """Return the journal of a new run; of a run that is not kept on disk, one that keeps nothing."""
        return Journal(self.run_id, self.folder if self._is_kept else None)

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
