"""`caveat runs`, `show`, `resume` and `rm`: what became of each run, in words and exit codes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caveat import research
from caveat.cli import main
from caveat.journal import FILE_NAME, Journal
from scripted import ScriptedSource, passage
from servers import FakeMediaWiki, LocalServer, Reply, json_reply, silence
from test_resume import DAMS, World, clean_environment

QUESTION = "When was the Kariba Dam finished?"
Caveat = Callable[..., Result]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, no key, and a small encyclopedia."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CAVEAT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with LocalServer(FakeMediaWiki(DAMS)) as wiki:
        monkeypatch.setenv("CAVEAT_WIKIPEDIA_URL", wiki.url)
        yield tmp_path / "home"


@pytest.fixture
def caveat() -> Caveat:
    """The command, in this process; anything but an exit is a failure of the test."""

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(main, arguments, prog_name="caveat")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result

    return run


def id_in(asked: Result) -> str:
    """The id that `ask` says at the start."""
    return str(re.findall(r"^run (\S+):", asked.stderr, re.MULTILINE)[0])


@pytest.fixture
def run_id(caveat: Caveat) -> str:
    """The id of a finished run."""
    return id_in(caveat("ask", QUESTION))


def test_runs_are_listed_with_what_became_of_them(caveat: Caveat, run_id: str, home: Path) -> None:
    """The newest first, damaged ones too; the same as JSON."""
    damaged = home / "runs" / "2020-01-01-damaged"
    damaged.mkdir()
    (damaged / FILE_NAME).write_text("no database")
    caveat("ask", "What is a unicorn?", "--inject", "wikipedia:403")
    rows = json.loads(caveat("runs", "--json").stdout)
    assert [(row["state"], row["question"]) for row in rows] == [
        ("finished", "What is a unicorn?"),
        ("finished", QUESTION),
        ("damaged", ""),
    ]
    assert [row["coverage"] for row in rows[:2]] == ["failed, with gaps", "covered"]
    listed = caveat("runs").stdout
    assert f"{run_id}  finished    covered\n    {QUESTION}\n" in listed
    assert "2020-01-01-damaged  damaged" in listed


def test_without_a_run_the_list_says_how_to_make_one(caveat: Caveat) -> None:
    """An empty list is a sentence, or an empty JSON list."""
    assert "There are no runs yet" in caveat("runs").stdout
    assert json.loads(caveat("runs", "--json").stdout) == []


def test_a_run_is_shown_in_three_ways(caveat: Caveat, run_id: str, home: Path) -> None:
    """Its report, what was said, and everything as JSON with the texts in their places."""
    assert caveat("show", run_id).stdout == (home / "runs" / run_id / "report.md").read_text()
    transcript = caveat("show", run_id, "--transcript").stdout
    assert "coordinator/turn 1/model" in transcript
    assert "calls search {" in transcript
    assert f"  {DAMS['Kariba Dam']}" in transcript
    shown = json.loads(caveat("show", run_id, "--json").stdout)
    assert shown["asked"]["question"] == QUESTION
    outcome = next(step["output"] for step in shown["steps"] if step["key"].endswith("outcome"))
    assert outcome["results"][0]["text"] == DAMS["Kariba Dam"]
    assert caveat("show", run_id, "--json", "--transcript").exit_code == 2


def test_the_beginning_of_an_id_will_do_where_it_is_the_only_one(caveat: Caveat, run_id: str) -> None:
    """What is not unique, or no run at all, is a usage error with what is near."""
    assert caveat("show", run_id[:-2]).exit_code == 0
    caveat("ask", QUESTION)
    many = caveat("show", run_id[:4])
    assert many.exit_code == 2
    assert "2 runs begin with" in many.stderr
    near = caveat("resume", f"x{run_id}")
    assert near.exit_code == 2
    assert f"did you mean {run_id}?" in near.stderr
    assert "`caveat runs` lists" in caveat("rm", "--yes", "../..").stderr


def test_a_finished_run_gives_its_report_again_and_asks_nothing(
    caveat: Caveat, run_id: str, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also into files, and with the report's exit code."""
    with LocalServer(Reply(500)) as wiki:
        monkeypatch.setenv("CAVEAT_WIKIPEDIA_URL", wiki.url)
        again = caveat("resume", run_id, "--out", str(tmp_path / "again.md"), "--json", str(tmp_path / "again.json"))
        assert wiki.requests == []
    assert again.exit_code == 0
    assert (tmp_path / "again.md").read_text() == (home / "runs" / run_id / "report.md").read_text()
    assert (tmp_path / "again.json").read_text() == (home / "runs" / run_id / "report.json").read_text()


def test_failed_searches_can_be_asked_again(caveat: Caveat) -> None:
    """A source that was down when the run began is up now: the gap is closed in the same run."""
    asked = caveat("ask", QUESTION, "--inject", "wikipedia:403*1")
    assert asked.exit_code == 3
    run_id = id_in(asked)
    again = caveat("resume", run_id, "--retry-failed")
    assert again.exit_code == 0
    assert "coordinator: turn 1 is in the journal" in again.stderr
    assert DAMS["Kariba Dam"] in again.stdout
    assert json.loads(caveat("runs", "--json").stdout)[0]["coverage"] == "covered"


def test_a_run_without_a_report_names_the_line_to_type(caveat: Caveat, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is wrong ends a run before anything is spent; with a right one, the same run goes on."""
    refusal = json_reply({"type": "error", "error": {"type": "authentication_error", "message": "no"}}, 401)
    with LocalServer(refusal) as model:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong")
        asked = caveat("ask", QUESTION)
        assert asked.exit_code == 4
        run_id = id_in(asked)
        assert f"`caveat resume {run_id}` goes on where it ended." in asked.stderr
        shown = caveat("show", run_id)
        assert shown.exit_code == 4
        assert "has no report yet (0 steps kept)" in shown.stderr
        assert json.loads(caveat("runs", "--json").stdout)[0]["state"] == "unfinished"
        assert caveat("resume", run_id).exit_code == 4
    monkeypatch.delenv("ANTHROPIC_BASE_URL")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    keyless = caveat("resume", run_id)
    assert keyless.exit_code == 2
    assert "set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL" in keyless.stderr


def test_a_finished_run_names_no_line_to_type(caveat: Caveat) -> None:
    """There is nothing to go on with."""
    assert "caveat resume" not in caveat("ask", QUESTION).stderr


def test_the_stand_in_goes_on_with_its_runs_where_a_key_is_set_meanwhile(
    caveat: Caveat, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run stays with the model that it began with."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    assert caveat("resume", run_id, "--retry-failed").exit_code == 0


def test_a_run_that_is_damaged_locked_or_diverged_is_exit_code_4(caveat: Caveat, home: Path, tmp_path: Path) -> None:
    """One sentence each, and nothing is asked."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "kariba.md").write_text("The Kariba Dam was finished in 1959.\n")
    asked = caveat("ask", QUESTION, "--docs", str(notes), "--sources", "local")
    run_id = id_in(asked)
    folder = home / "runs" / run_id
    with closing(Journal.open(folder)):
        locked = caveat("resume", run_id, "--retry-failed")
        assert caveat("rm", run_id, "--yes").exit_code == 4
    assert locked.exit_code == 4
    assert "is being worked on by process" in locked.stderr
    (notes / "itaipu.md").write_text("The Itaipu Dam was finished in 1984.\n")
    diverged = caveat("resume", run_id, "--retry-failed")
    assert diverged.exit_code == 4
    assert f"the run {run_id} has diverged: the sources or what they say of themselves changed" in diverged.stderr
    assert "Nothing was spent" in diverged.stderr
    (folder / FILE_NAME).write_bytes(b"no database")
    damaged = caveat("resume", run_id)
    assert damaged.exit_code == 4
    assert "is damaged; it was left as it is" in damaged.stderr
    assert caveat("rm", run_id, "--yes").exit_code == 0
    assert not folder.exists()


def test_nothing_is_deleted_without_a_yes(caveat: Caveat, run_id: str, home: Path) -> None:
    """Where nobody can be asked, --yes is needed; one unknown id, and none is deleted."""
    refused = caveat("rm", run_id)
    assert refused.exit_code == 2
    assert f"whether to delete {run_id}; say --yes" in refused.stderr
    assert caveat("rm", "--yes", run_id, "unknown").exit_code == 2
    assert (home / "runs" / run_id).exists()
    assert caveat("rm", "--yes", run_id, run_id).exit_code == 0
    assert not (home / "runs" / run_id).exists()


def test_ctrl_c_leaves_a_run_that_goes_on(caveat: Caveat, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of what there is names the line to type; the resumed run asks what was cut short, and finishes."""
    with LocalServer(silence()) as wiki:
        process = subprocess.Popen(
            [sys.executable, "-m", "caveat", "ask", QUESTION, "--verbose"],
            env={**clean_environment(), "CAVEAT_HOME": str(home), "CAVEAT_WIKIPEDIA_URL": wiki.url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr
        read = [""]
        while "asking “" not in read[-1]:
            read.append(process.stderr.readline())
            assert read[-1], read
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode == 3
    assert "Ctrl-C again leaves at once. `caveat resume 2" in stderr
    run_id = re.findall(r"^caveat: `caveat resume (\S+)` goes on where it ended", stderr, re.MULTILINE)[0]
    assert f"{run_id}  stopped" in caveat("runs").stdout
    done = caveat("resume", run_id)
    assert done.exit_code == 0
    assert DAMS["Kariba Dam"] in done.stdout
    assert f"{run_id}  finished" in caveat("runs").stdout


def test_the_prose_is_written_anew_in_a_run_of_its_own(caveat: Caveat, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another model, from what was found; nothing is searched again, and both runs say which came from which."""
    with World() as world:
        for name, value in world.environment.items():
            monkeypatch.setenv(name, value)
        asked = caveat("ask", QUESTION, "--model", "small")
        parent, report = id_in(asked), asked.stdout
        world.asked.clear()
        again = caveat("resume", parent, "--from", "synthesis", "--model", "large")
        child = id_in(again)
        assert world.asked == {"synthesis/turn 1/model": 1}
        assert f"a new run, from the retrieval and analysis of {parent}" in again.stderr
        assert again.exit_code == asked.exit_code == 3
        assert caveat("resume", child).stdout == again.stdout
        assert world.asked.total() == 1
    assert child != parent
    assert caveat("show", parent).stdout == report
    shown = caveat("show", child)
    assert (shown.stdout, shown.stderr) == (
        again.stdout,
        f"caveat: this run is from the retrieval and analysis of {parent}\n",
    )
    kept = json.loads(caveat("show", child, "--json").stdout)
    assert (kept["asked"]["model"], kept["asked"]["parent"], kept["asked"]["from"]) == ("large", parent, "synthesis")
    assert kept["reached"] == ["retrieval", "analysis"]
    assert f"from the retrieval and analysis of {parent}" in caveat("show", child, "--transcript").stdout
    rows = {row["id"]: row for row in json.loads(caveat("runs", "--json").stdout)}
    assert (rows[child]["parent"], rows[child]["begins_at"]) == (parent, "synthesis")
    assert rows[parent]["parent"] is None
    assert f"; from the retrieval and analysis of {parent}\n" in caveat("runs").stdout
    refused = caveat("resume", child, "--retry-failed")
    assert refused.exit_code == 2
    assert f"`caveat resume {parent} --retry-failed` asks them again" in refused.stderr


@pytest.mark.parametrize("stage", ["analysis", "synthesis"])
def test_the_stand_in_begins_with_another_run_too(caveat: Caveat, run_id: str, stage: str) -> None:
    """Without a key, and with the same report."""
    again = caveat("resume", run_id, "--from", stage)
    assert again.exit_code == 0
    assert id_in(again) != run_id
    assert DAMS["Kariba Dam"] in again.stdout


def test_a_run_that_has_not_found_all_yet_is_gone_on_with_first(
    caveat: Caveat, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is spent and no run is made; the sentence has the line to type."""
    with World() as world:
        for name, value in world.environment.items():
            monkeypatch.setenv(name, value)
        broken = caveat("ask", QUESTION, "--inject", "model:400@3")
        run_id = id_in(broken)
        world.asked.clear()
        refused = caveat("resume", run_id, "--from", "synthesis")
        assert refused.exit_code == 4
        assert f"`caveat resume {run_id}` goes on with it" in refused.stderr
        assert world.asked.total() == 0
    assert [folder.name for folder in (home / "runs").iterdir()] == [run_id]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "synthesis", "--retry-failed"], "exclude each other"),
        (["--model", "large"], "--model goes with --from"),
        (["--from", "retrieval"], "'retrieval' is not one of 'analysis', 'synthesis'"),
        (["--from", "synthesis", "--model", "large"], "to ask large: set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL"),
    ],
)
def test_what_no_run_can_begin_with_is_a_usage_error(
    caveat: Caveat, run_id: str, arguments: list[str], words: str
) -> None:
    """Before anything is spent."""
    refused = caveat("resume", run_id, *arguments)
    assert refused.exit_code == 2
    assert words in refused.stderr


def test_a_program_begins_its_own_runs(caveat: Caveat, home: Path) -> None:
    """No command can bring along what it brought."""
    asyncio.run(research(QUESTION, sources=[ScriptedSource([[passage(DAMS["Kariba Dam"])]])], offline=True, home=home))
    refused = caveat("resume", json.loads(caveat("runs", "--json").stdout)[0]["id"], "--from", "synthesis")
    assert refused.exit_code == 2
    assert "a program of your own brought parts of this run (wiki)" in refused.stderr
