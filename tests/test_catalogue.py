"""The recorded sessions of this repository, as files."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import test_sessions
from caveat.testing.cassette import Cassette
from caveat.testing.secrets import secrets_in
from examples import ABOUT, with_table
from sessions import SESSIONS

CASSETTES = Path(__file__).parent.parent / "cassettes"
FILES = sorted(path for path in CASSETTES.rglob("*") if path.is_file() and path.name != "README.md")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_cassette_holds_a_secret_or_the_address_of_a_machine(path: Path) -> None:
    """Every file under cassettes/, whatever it is called, is searched."""
    text = path.read_text(encoding="utf-8")
    assert secrets_in(text) == []
    assert "127.0.0.1" not in text
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_cassette_says_how_it_was_recorded(path: Path) -> None:
    """When, with which model, which packages, and in a sentence of whoever recorded it."""
    recorded = Cassette(path).header["recorded"]
    assert {"at", "servers", "models", "prompts", "packages", "python", "note"} <= recorded.keys()


def test_each_session_is_one_situation_one_file_one_test_and_one_sentence() -> None:
    """And there are at least twelve."""
    tests = {name.removeprefix("test_") for name in vars(test_sessions) if name.startswith("test_")}
    assert tests == SESSIONS.keys() == {path.stem.removeprefix("test_") for path in FILES}
    assert len(SESSIONS) >= 12
    for about in ABOUT.values():
        assert about
        assert "\n" not in about


def test_the_readme_of_the_cassettes_lists_them() -> None:
    """`make docs` writes the table."""
    page = (CASSETTES / "README.md").read_text()
    assert page == with_table(page)
