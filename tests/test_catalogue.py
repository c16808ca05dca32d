"""The recorded sessions of this repository, as files."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import test_sessions
from caveat.testing.cassette import Cassette
from caveat.testing.catalogue import describe
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


HEADER = 'session: {"question": "q", "sources": ["wikipedia"], "model": "m", "start": "2026-01-01T00:00:00Z"%s}'


@pytest.mark.parametrize(
    "more", ['"limits": {"nonsense": 1}', '"addresses": {"wikipedia": "file:///etc"}', '"model": ""']
)
def test_a_header_that_no_session_can_have_is_damage_and_no_bug(tmp_path: Path, more: str) -> None:
    """Somebody has edited the file."""
    path = tmp_path / "edited.yaml"
    header = HEADER.replace('"model": "m", ', "") if "model" in more else HEADER
    path.write_text(f"caveat_cassette: 1\n{header % (', ' + more)}\ninteractions: []\n...\n")
    described = describe(path)
    assert described.state == "damaged"
    assert "none of caveat's" in described.why


@pytest.mark.parametrize(
    "raises",
    [
        '{"error": 5}',
        '{"error": "Cancelled"}',
        '{"error": "ReadTimeout", "cause": "x"}',
        '{"error": "ReadTimeout", "cause": {"error": "ConnectionRefusedError", "errno": "x"}}',
    ],
)
def test_an_error_that_cannot_be_raised_is_damage(tmp_path: Path, raises: str) -> None:
    """In mid-session it would be an exception of another kind, which an agent takes for an outage."""
    path = tmp_path / "edited.yaml"
    asked = "request: {method: GET, uri: http://localhost/}".replace("http://localhost/", '"http://localhost/"')
    path.write_text(f"caveat_cassette: 1\ninteractions:\n- {asked}\n  response: {{raises: {raises}}}\n...\n")
    assert describe(path).state == "damaged"


def test_what_a_file_says_of_itself_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    """A cassette can be anybody's."""
    path = tmp_path / "hostile.yaml"
    path.write_text(
        'caveat_cassette: 1\nrecorded: {"at": "\\e]0;x\\a", "note": "\\e[2Jnew\\u202e"}\ninteractions: []\n...\n'
    )
    assert not set("\x1b\x07\u202e") & set("".join(describe(path).in_words()))


def test_a_link_to_nowhere_is_damage(tmp_path: Path) -> None:
    """And no bug in caveat."""
    path = tmp_path / "link.yaml"
    path.symlink_to(tmp_path / "nowhere")
    assert describe(path).why.startswith("the file cannot be read")
