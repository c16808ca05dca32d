"""Where caveat keeps what it keeps: runs, stored answers, indexes of folders, the user's own settings.

`home` is the folder that the setting of that name gives, or None for the platform's own folders.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs


def runs_folder(home: Path | None) -> Path:
    """Return the folder that holds a folder for each run."""
    return home / "runs" if home else platformdirs.user_state_path("caveat") / "runs"


def run_folder(run_id: str, home: Path | None) -> Path:
    """Return the folder of a run."""
    return runs_folder(home) / run_id


def cache_folder(home: Path | None) -> Path:
    """Return the folder of what can be had again: stored answers and indexes."""
    return home / "cache" if home else platformdirs.user_cache_path("caveat")


def index_folder(home: Path | None) -> Path:
    """Return the folder of what the source local has read, one index for each folder of documents."""
    return cache_folder(home) / "indexes"


def user_file() -> Path:
    """Return where the user's own settings are, whether the file exists or not."""
    return platformdirs.user_config_path("caveat") / "config.toml"
