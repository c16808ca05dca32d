"""`caveat replay` and `caveat cassettes`: recorded sessions in the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner, Result

from caveat.cli import main
from caveat.settings import Settings
from caveat.testing.cassette import use_cassette
from caveat.testing.session import research_on
from servers import FakeMediaWiki, LocalServer, Reply

Caveat = Callable[..., Result]
WIKI = FakeMediaWiki({"Kariba Dam": "The Kariba Dam was finished in 1959. It is a dam between Zambia and Zimbabwe."})
QUESTION = "When was the Kariba Dam finished?"


@pytest.fixture
def caveat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Caveat:
    """Run the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, prog_name="caveat")

    return run


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session with the embedded stand-in, in which Wikipedia refuses once."""
    path = tmp_path / "cassettes" / "test_dam" / "test_finished.yaml"

    async def recorded() -> None:
        with LocalServer(Reply(503), WIKI) as wiki, use_cassette(path, "once") as cassette:
            settings = Settings(offline=True, wikipedia_url=f"{wiki.url}/w/api.php".replace("127.0.0.1", "localhost"))
            report = await research_on(cassette, QUESTION, settings=settings)
            assert report.exit_code == 0

    asyncio.run(recorded())
    return path


def foreign(path: Path) -> Path:
    """A cassette of somebody else's agent."""
    with LocalServer(Reply(200, {"content-type": "text/plain"}, b"tide tables")) as server, use_cassette(path, "once"):
        httpx2.get(server.url)
    return path


def test_a_session_is_played_with_progress_report_and_coverage(caveat: Caveat, session: Path) -> None:
    """What the run said then, it says again: the failed attempt, the answer, the exit code."""
    result = caveat("replay", str(session))
    assert "waiting" in result.stderr
    assert "1959" in result.stdout
    assert "## Coverage" in result.stdout
    assert result.exit_code == 0


def test_a_session_can_be_gone_through_request_by_request(caveat: Caveat, session: Path) -> None:
    """Each step says what the model was newly told, what it answered, and what the source gave."""
    steps = caveat("replay", str(session), "--step", "-q").stderr
    assert "[1/" in steps
    assert "tool_use plan_topics" in steps
    assert "came: status 503" in steps
    assert "sent: tool_result" in steps
    assert "stop_reason tool_use" in steps


@pytest.mark.parametrize("keys", [b"q\n", b"\n\x04"])
def test_who_goes_through_a_session_can_leave_at_any_step(session: Path, keys: bytes) -> None:
    """With q or the end of input: exit code 130, no traceback, and no outage of the model."""
    ours, theirs = pty.openpty()
    os.write(ours, keys)
    command = [sys.executable, "-m", "caveat", "replay", str(session), "--step", "-q"]
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "no report" not in done.stderr


def test_the_report_of_a_session_comes_as_json(caveat: Caveat, session: Path) -> None:
    """For scripts."""
    assert json.loads(caveat("replay", str(session), "--json", "-q").stdout)["question"] == QUESTION


def test_a_stale_session_ends_with_what_differs_and_an_exit_code_of_its_own(caveat: Caveat, session: Path) -> None:
    """It is no outage of the model: no report is made up."""
    session.write_text(session.read_text().replace("You never answer from memory", "You seldom answer from memory"))
    result = caveat("replay", str(session), "-q")
    assert result.exit_code == 4
    assert result.stdout == ""
    assert "You seldom answer from memory" in result.stderr
    assert "You never answer from memory" in result.stderr


def test_a_session_that_asks_for_less_than_was_recorded_says_so(caveat: Caveat, session: Path, tmp_path: Path) -> None:
    """The report is there; a line says that the cassette holds more."""
    lines = session.read_text()
    last = lines[lines.index("- request:") : lines.index("- request:", lines.index("- request:") + 1)]
    session.write_text(lines.removesuffix("...\n") + last.replace("plan_topics", "plan_tropics") + "...\n")
    result = caveat("replay", str(session), "-q")
    assert "recorded interactions" in result.stderr


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("", "no cassette"),
        ("just: a mapping\n", "no cassette"),
        ("caveat_cassette: 1\ninteractions: []\n...\n", "research session of caveat"),
        ("caveat_cassette: 1\nsession:\n  question: 5\ninteractions: []\n...\n", "damaged"),
        ("caveat_cassette: 1\nsession: 7\ninteractions: []\n...\n", "damaged"),
        (
            "caveat_cassette: 1\nsession: {question: q, sources: [], model: m, start: 1-1-1}\ninteractions: []\n...\n",
            "damaged",
        ),
    ],
)
def test_a_file_that_is_no_session_is_refused_in_a_sentence(
    content: str, hint: str, caveat: Caveat, tmp_path: Path
) -> None:
    """Exit code 2, no traceback, and the list calls it what it is."""
    (tmp_path / "file.yaml").write_text(content)
    result = caveat("replay", "file.yaml")
    assert result.exit_code == 2
    assert hint in result.stderr
    assert caveat("cassettes", ".").exit_code in {0, 1}


def test_the_list_says_how_each_was_recorded_and_whether_it_still_plays(
    caveat: Caveat, session: Path, tmp_path: Path
) -> None:
    """A session of caveat is played; one of another agent is named as such."""
    foreign(session.with_name("test_tides.yaml"))
    rows = {Path(row["path"]).name: row for row in json.loads(caveat("cassettes", "--json").stdout)}
    assert rows["test_finished.yaml"]["state"] == "plays"
    assert rows["test_finished.yaml"]["recorded"]["models"] == ["caveat-offline"]
    assert rows["test_tides.yaml"]["state"] == "foreign"
    shown = caveat("cassettes")
    assert shown.exit_code == 0
    assert "plays" in shown.stdout
    assert QUESTION in shown.stdout


def test_the_list_names_what_is_stale_and_what_holds_a_secret(caveat: Caveat, session: Path) -> None:
    """With what has changed, where the secret is, and an exit code for scripts."""
    stale = session.read_text().replace("You never answer from memory", "You seldom answer from memory")
    session.with_name("stale.yaml").write_text(stale)
    planted = session.read_text().replace("question:", "mail: somebody@gmail.com\n  question:", 1)
    session.with_name("planted.yaml").write_text(planted)
    result = caveat("cassettes")
    assert result.exit_code == 1
    assert "stale" in result.stdout
    assert "You seldom answer from memory" in result.stdout
    assert "e-mail" in result.stdout
    assert "somebody@gmail.com" not in result.stdout


def test_a_folder_without_cassettes_is_a_usage_error(caveat: Caveat, tmp_path: Path) -> None:
    """Also one that is not there."""
    (tmp_path / "empty").mkdir()
    assert caveat("cassettes", "empty").exit_code == 2
    assert caveat("cassettes").exit_code == 2
