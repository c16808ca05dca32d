"""Recorded answers of real services, kept beside the repository with a README.md, and read where they lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import pytest
from _pytest.mark import ParameterSet

Row: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "recordings"


def needs(file: str) -> pytest.MarkDecorator:
    """Return the mark of a test that is skipped where there are no recordings."""
    return pytest.mark.skipif(
        not (FOLDER / file).exists(), reason=f"no ../shared/recordings/{file} beside the repository"
    )


def rows(file: str) -> list[Row]:
    """Return the rows of a file, or none where it is absent."""
    path = FOLDER / file
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def recorded(file: str, wanted: Callable[[Row], bool]) -> list[ParameterSet]:
    """Return the wanted rows of a file as parameters, or one that is skipped where there are no recordings."""
    if not (FOLDER / file).exists():
        return [pytest.param(None, marks=needs(file))]
    return [pytest.param(row, id=row["id"]) for row in rows(file) if wanted(row)]


def response(row: Row) -> httpx2.Response:
    """Return the answer as it was recorded."""
    return httpx2.Response(row["status"], headers=row["headers"], content=row["body"].encode())
