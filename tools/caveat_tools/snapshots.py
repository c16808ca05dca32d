"""Snapshots: every Found is kept, in the run's own store and in a cache of the user, and can be served later."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from caveat_tools.outcome import Found

SCHEMA_VERSION: Final = 1
KEEP_DAYS: Final = 180

_TABLE = """CREATE TABLE IF NOT EXISTS snapshots (
    source TEXT, place TEXT, query TEXT, date_from TEXT, date_to TEXT, retrieved_at TEXT NOT NULL, found TEXT NOT NULL,
    PRIMARY KEY (source, place, query, date_from, date_to))"""


@dataclass(frozen=True, slots=True)
class SnapshotKey:
    """What was asked: source, its place (base URL or folder), normalised query and dates."""

    source: str
    place: str
    query: str
    date_from: str
    date_to: str

    def columns(self) -> tuple[str, str, str, str, str]:
        """Return the key as the table's first five columns."""
        return self.source, self.place, self.query, self.date_from, self.date_to


class SnapshotStore:
    """One SQLite file of snapshots, safe for several processes. Pass None to keep them in memory only."""

    def __init__(self, path: Path | None) -> None:
        """Open or create. Raises sqlite3.Error or OSError where the file cannot be used."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path or ":memory:", timeout=0.25, isolation_level=None)
        try:
            self._prepare(path)
        except sqlite3.Error:
            self._connection.close()
            raise

    def _prepare(self, path: Path | None) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in {0, SCHEMA_VERSION}:
            raise sqlite3.DatabaseError(f"{path} was written by another version of caveat")
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute(_TABLE)
        self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def keep(self, key: SnapshotKey, found: Found, now: datetime) -> None:
        """Store the newest answer for `key`."""
        row = (*key.columns(), now.isoformat(), found.model_dump_json())
        self._connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def get(self, key: SnapshotKey) -> tuple[Found, datetime] | None:
        """Return the stored answer and when it was retrieved; None where there is none that can be read."""
        rows = self._connection.execute(
            "SELECT found, retrieved_at FROM snapshots"
            " WHERE source=? AND place=? AND query=? AND date_from=? AND date_to=?",
            key.columns(),
        )
        with closing(rows):
            row = rows.fetchone()
        if row is None:
            return None
        try:
            return Found.model_validate_json(row[0]), datetime.fromisoformat(row[1])
        except (ValidationError, ValueError):
            return None

    def forget_before(self, day: datetime) -> None:
        """Delete what was retrieved before `day`."""
        self._connection.execute("DELETE FROM snapshots WHERE retrieved_at < ?", (day.isoformat(),))

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._connection.close()


class Snapshots:
    """Several stores as one: kept in all of them, looked up in order. A store that breaks is left out, aloud."""

    def __init__(self, stores: Sequence[SnapshotStore], on_warning: Callable[[str], None] = lambda _: None) -> None:
        self._stores = list(stores)
        self._on_warning = on_warning

    def keep(self, key: SnapshotKey, found: Found, now: datetime) -> None:
        """Store in every store that works."""
        for store in list(self._stores):
            try:
                store.keep(key, found, now)
            except sqlite3.Error as error:
                self._leave_out(store, error)

    def served(self, key: SnapshotKey, now: datetime) -> Found | None:
        """Return the stored answer, marked as a snapshot with its age; None where there is none."""
        for store in list(self._stores):
            try:
                hit = store.get(key)
            except sqlite3.Error as error:
                self._leave_out(store, error)
                continue
            if hit is not None:
                found, retrieved_at = hit
                age = max(0, int((now - retrieved_at).total_seconds()))
                return found.model_copy(update={"served_from": "snapshot", "snapshot_age_seconds": age, "attempts": 0})
        return None

    def _leave_out(self, store: SnapshotStore, error: sqlite3.Error) -> None:
        self._stores.remove(store)
        store.close()
        self._on_warning(f"snapshots are no longer kept in one of their stores: {error}")

    def close(self) -> None:
        """Close all stores."""
        for store in self._stores:
            store.close()


def open_user_cache(path: Path, now: datetime, on_warning: Callable[[str], None]) -> list[SnapshotStore]:
    """Open the cache at `path`, cleared of what is older than KEEP_DAYS; an unusable one is a warning, not an end."""
    store = None
    try:
        store = SnapshotStore(path)
        store.forget_before(now - timedelta(days=KEEP_DAYS))
    except (sqlite3.Error, OSError) as error:
        if store is not None:
            store.close()
        on_warning(f"answers are not kept for later runs: {path}: {error}")
        return []
    return [store]
