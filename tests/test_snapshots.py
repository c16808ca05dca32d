"""Snapshots: what is kept, and that a broken store costs nothing but itself."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from caveat_tools.outcome import Found, Result
from caveat_tools.snapshots import KEEP_DAYS, SnapshotKey, Snapshots, SnapshotStore, open_user_cache
from scripted import memory_store

NOW = datetime(2026, 1, 2, tzinfo=UTC)
KEY = SnapshotKey("wikipedia", "https://en.wikipedia.org", "kariba dam", "", "")


def found(text: str = "text") -> Found:
    return Found(source="wikipedia", query="kariba dam", results=(Result(title="t", url="u", text=text),))


def test_an_answer_survives_the_process(tmp_path: Path) -> None:
    """What one run was given, the next one can be served, with its age."""
    first = SnapshotStore(tmp_path / "deep" / "cache.sqlite")
    first.keep(KEY, found(), NOW)
    first.close()
    again = Snapshots([SnapshotStore(tmp_path / "deep" / "cache.sqlite")])
    served = again.served(KEY, NOW + timedelta(hours=1))
    assert served is not None
    assert (served.served_from, served.snapshot_age_seconds) == ("snapshot", 3600)
    again.close()


def test_the_newest_answer_takes_the_place_of_an_older_one() -> None:
    """A key has one answer."""
    store = memory_store()
    store.keep(KEY, found("old"), NOW)
    store.keep(KEY, found("new"), NOW + timedelta(days=1))
    served = Snapshots([store]).served(KEY, NOW + timedelta(days=2))
    assert served is not None
    assert (served.results[0].text, served.snapshot_age_seconds) == ("new", 86_400)


def test_a_clock_that_went_back_never_gives_a_negative_age() -> None:
    """An answer from the future is brand new."""
    store = memory_store()
    store.keep(KEY, found(), NOW)
    served = Snapshots([store]).served(KEY, NOW - timedelta(days=1))
    assert served is not None
    assert served.snapshot_age_seconds == 0


def test_a_damaged_row_is_no_snapshot() -> None:
    """An answer that cannot be read is not offered."""
    store = memory_store()
    store.keep(KEY, found(), NOW)
    store._connection.execute("UPDATE snapshots SET found = '{'")
    assert store.get(KEY) is None


def test_a_store_that_breaks_is_left_out_aloud_and_the_others_go_on() -> None:
    """A full disk under the cache costs the cache, not the search."""
    warnings: list[str] = []
    broken, whole = memory_store(), memory_store()
    snapshots = Snapshots([broken, whole], warnings.append)
    broken.close()
    snapshots.keep(KEY, found(), NOW)
    assert snapshots.served(KEY, NOW) is not None
    assert len(warnings) == 1


def test_a_file_of_another_version_is_refused_and_left_untouched(tmp_path: Path) -> None:
    """A newer caveat's cache is neither read nor overwritten."""
    path = tmp_path / "cache.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(sqlite3.DatabaseError, match="another version"):
        SnapshotStore(path)
    assert path.read_bytes() == before


def test_an_unusable_cache_is_a_warning_and_not_an_end(tmp_path: Path) -> None:
    """A cache that is no database, or a folder that cannot be made, leaves a run without a cache."""
    warnings: list[str] = []
    (tmp_path / "cache.sqlite").write_text("this is not a database, and long enough to be looked at" * 20)
    assert open_user_cache(tmp_path / "cache.sqlite", NOW, warnings.append) == []
    assert open_user_cache(tmp_path / "cache.sqlite" / "under" / "a.sqlite", NOW, warnings.append) == []
    assert len(warnings) == 2


def test_old_answers_leave_the_users_cache(tmp_path: Path) -> None:
    """The cache does not grow for ever."""
    path = tmp_path / "cache.sqlite"
    store = SnapshotStore(path)
    store.keep(KEY, found(), NOW)
    store.close()
    (cache,) = open_user_cache(path, NOW + timedelta(days=KEEP_DAYS + 1), lambda _: None)
    assert cache.get(KEY) is None
    cache.close()
