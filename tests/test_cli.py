"""The command line: clear words and the right exit code for every kind of input."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caveat.cli import main
from caveat.cli.terminal import report_bug
from caveat.settings import DEFAULT_MODEL
from scripted import message, text
from servers import FakeMediaWiki, LocalServer, html_reply, json_reply, refused_url

NOTES = {
    "dams/kariba.md": "# Kariba\n\nThe Kariba Dam was finished in 1959. The lake behind it was full in 1963.\n",
    "dams/itaipu.md": "# Itaipu\n\nThe Itaipu Dam has twenty generating units of 700 megawatts each.\n",
    "food.txt": "Bread is made of flour, water, salt and time. It keeps for three days.\n",
}
MODEL_VARIABLES = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_PROFILE",
    "ANTHROPIC_BASE_URL",
    "CAVEAT_MODEL",
)

Caveat = Callable[..., Result]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A small folder of notes."""
    for name, words in NOTES.items():
        path = tmp_path / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words)
    return tmp_path / "notes"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key, no address, no cache of the person who runs the tests; and a small encyclopedia for Wikipedia."""
    for name in MODEL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CAVEAT_HOME", str(tmp_path / "home"))
    with LocalServer(FakeMediaWiki({"Kariba Dam": "The Kariba Dam is a dam between Zambia and Zimbabwe."})) as wiki:
        monkeypatch.setenv("CAVEAT_WIKIPEDIA_URL", wiki.url)
        yield


@pytest.fixture
def caveat() -> Caveat:
    """The command, in this process; anything but an exit is a failure of the test."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(main, arguments, input=stdin, prog_name="caveat")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert "Traceback" not in result.output
        return result

    return run


def test_a_question_is_answered_on_standard_output_with_progress_on_standard_error(caveat: Caveat, docs: Path) -> None:
    """The report can be piped; what went on can be watched."""
    result = caveat("ask", "When was the Kariba Dam finished?", "--docs", str(docs), "--sources", "local")
    assert result.exit_code == 0
    assert "The Kariba Dam was finished in 1959." in result.stdout
    assert result.stdout.startswith("# When was the Kariba Dam finished?")
    assert "local: “Kariba Dam finished” FOUND" in result.stderr
    assert "\x1b" not in result.stderr


def test_every_report_of_the_embedded_model_says_on_top_that_no_language_model_was_used(
    caveat: Caveat, docs: Path
) -> None:
    """Nobody takes copied sentences for a model's answer, and everybody learns how to get one."""
    top = caveat("ask", "Kariba Dam finished?", "--docs", str(docs), "--sources", "local").stdout[:600]
    assert "No language model was used" in top
    assert "ANTHROPIC_API_KEY" in top
    assert "ANTHROPIC_BASE_URL" in top


def test_json_goes_to_standard_output_alone(caveat: Caveat, docs: Path) -> None:
    """`--json - | jq` works."""
    result = caveat("ask", "Kariba Dam finished?", "--docs", str(docs), "--sources", "local", "--json", "-")
    assert json.loads(result.stdout)["topics"][0]["state"] == "covered"


def test_files_are_written_where_they_were_asked_for(caveat: Caveat, docs: Path, tmp_path: Path) -> None:
    """--out gets Markdown, --json FILE gets JSON, standard output stays free."""
    out, as_json = tmp_path / "report.md", tmp_path / "report.json"
    result = caveat(
        "ask",
        "Kariba Dam finished?",
        "--docs",
        str(docs),
        "--sources",
        "local",
        "--out",
        str(out),
        "--json",
        str(as_json),
    )
    assert result.stdout == ""
    assert out.read_text() == json.loads(as_json.read_text())["answer"]


def test_a_dead_source_is_exit_code_3_and_a_report(caveat: Caveat, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network the folder is still searched, and Wikipedia is an honest gap."""
    monkeypatch.setenv("CAVEAT_WIKIPEDIA_URL", refused_url())
    result = caveat("ask", "When was the Kariba Dam finished?", "--docs", str(docs), "--inject", "wikipedia:refused")
    assert result.exit_code == 3
    assert "The Kariba Dam was finished in 1959." in result.stdout
    assert "wikipedia could not be searched" in result.stdout
    assert "the report has gaps" in result.stderr


def test_a_failure_that_retries_mend_is_exit_code_0(caveat: Caveat, docs: Path) -> None:
    """Two injected time-outs are recovered, shown in the progress, and leave no gap."""
    result = caveat("ask", "Where is the Kariba Dam?", "--docs", str(docs), "--inject", "wikipedia:timeout*2")
    assert result.exit_code == 0
    assert "attempt 2 of 3" in result.stderr


def test_nothing_found_is_exit_code_0_and_says_that_this_proves_nothing(caveat: Caveat, docs: Path) -> None:
    """An empty answer is an answer."""
    result = caveat("ask", "What is the melting point of tungsten?", "--docs", str(docs), "--sources", "local")
    assert result.exit_code == 0
    assert "does not show that there is nothing elsewhere" in result.stdout


def test_the_question_can_come_from_standard_input(caveat: Caveat, docs: Path) -> None:
    """`-` reads it."""
    result = caveat("ask", "-", "--docs", str(docs), "--sources", "local", stdin="When was the Kariba Dam finished?\n")
    assert result.stdout.startswith("# When was the Kariba Dam finished?")


@pytest.mark.parametrize(
    ("arguments", "stdin", "hint"),
    [
        (["ask", ""], None, "the question is empty"),
        (["ask", " \t "], None, "the question is empty"),
        (["ask", "-"], "", "the question is empty"),
        (["ask", "-"], b"\xff\xfe\xff", "not UTF-8"),
        (["ask", "x" * 100_000], None, "100,000 characters"),
        (["ask"], None, "Missing argument"),
        (["ask", "q", "--docs", "{tmp}/nowhere"], None, "nowhere"),
        (["ask", "q", "--docs", "{tmp}/file"], None, "file"),
        (["ask", "q", "--docs", "{tmp}/empty"], None, "empty"),
        (["ask", "q", "--docs", "{tmp}/notes", "--sources", "wikipedia"], None, "leaves out local"),
        (["ask", "q", "--sources", "local"], None, "--docs"),
        (["ask", "q", "--sources", "wikipdia"], None, "did you mean wikipedia"),
        (["ask", "q", "--sources", ","], None, "names no source"),
        (["ask", "q", "--out", "{tmp}/nowhere/report.md"], None, "cannot write"),
        (["ask", "q", "--out", "{tmp}"], None, "directory"),
        (["ask", "q", "--json", "{tmp}/nowhere/report.json"], None, "cannot write"),
        (["ask", "q", "--json", "{tmp}"], None, "cannot write"),
        (["ask", "q", "--out", "{tmp}/same", "--json", "{tmp}/same"], None, "the same file"),
        (["ask", "q", "--out", "{tmp}/" + "x" * 300], None, "cannot write"),
        (["ask", "q", "--json", "{tmp}/" + "x" * 300], None, "cannot write"),
        (["ask", "q", "--docs", "~no-such-user/notes"], None, "--docs"),
        (["ask", "q", "--out", "{tmp}/loop"], None, "cannot write"),
        (["ask", "q", "--inject", "wikipedia"], None, "TARGET:FAULT"),
        (["ask", "q", "--inject", "wikipdia:timeout"], None, "did you mean 'wikipedia'"),
        (["ask", "q", "--max-turns", "0"], None, "--max-turns"),
        (["ask", "q", "-q", "-v"], None, "exclude each other"),
        (["ask", "???"], None, "holds no word"),
        (["ask", "q", "--nonsense"], None, "No such option"),
        (["aks", "q"], None, "No such command"),
    ],
)
def test_bad_input_is_exit_code_2_with_a_clear_sentence(
    caveat: Caveat, docs: Path, tmp_path: Path, arguments: list[str], stdin: Any, hint: str
) -> None:
    """Each kind of wrong input is named before anything is spent."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    result = caveat(*[argument.format(tmp=tmp_path) for argument in arguments], stdin=stdin)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert not (tmp_path / "home").exists()


def test_a_report_file_that_exists_survives_a_run_that_is_refused(caveat: Caveat, tmp_path: Path) -> None:
    """Checking that a file can be written neither empties nor creates it."""
    old, new = tmp_path / "old.md", tmp_path / "new.md"
    old.write_text("precious")
    assert caveat("ask", "", "--out", str(old)).exit_code == 2
    assert caveat("ask", "", "--out", str(new)).exit_code == 2
    assert old.read_text() == "precious"
    assert not new.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes everything")
def test_folders_and_files_without_permission_are_named(caveat: Caveat, docs: Path, tmp_path: Path) -> None:
    """An unreadable folder, a read-only report file."""
    docs.chmod(0)
    assert "notes" in caveat("ask", "q", "--docs", str(docs)).stderr
    (tmp_path / "r.md").touch(mode=0o400)
    assert "cannot write" in caveat("ask", "q", "--out", str(tmp_path / "r.md")).stderr


def error_reply(status: int, kind: str) -> Any:
    return json_reply({"type": "error", "error": {"type": kind, "message": "no"}}, status=status)


@pytest.mark.parametrize(
    ("reply", "hint"),
    [
        (error_reply(401, "authentication_error"), "ANTHROPIC_API_KEY"),
        (error_reply(404, "not_found_error"), "--model"),
        (html_reply(), "ANTHROPIC_BASE_URL"),
        (json_reply({}), "ANTHROPIC_BASE_URL"),
    ],
)
def test_a_model_that_cannot_be_used_is_exit_code_4_with_what_to_set(
    caveat: Caveat, monkeypatch: pytest.MonkeyPatch, reply: Any, hint: str
) -> None:
    """A wrong key, an unknown model, an address that is no Messages API: one sentence, and no report."""
    monkeypatch.setattr("asyncio.sleep", _no_sleep)
    with LocalServer(reply) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong")
        result = caveat("ask", "q")
    assert result.exit_code == 4
    assert hint in result.stderr
    assert result.stdout == ""


def test_nothing_listening_is_exit_code_4(caveat: Caveat, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base URL where nobody answers names the address and the variable."""
    monkeypatch.setattr("asyncio.sleep", _no_sleep)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", refused_url())
    result = caveat("ask", "q")
    assert result.exit_code == 4
    assert "nothing answers at http://127.0.0.1" in result.stderr


def test_a_local_model_that_never_calls_a_tool_ends_in_a_report(
    caveat: Caveat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model that only talks is exit code 3 and a report that says what happened."""
    with LocalServer(json_reply(message([text("I think it was 1959.")]))) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        result = caveat("ask", "When was the Kariba Dam finished?", "--model", "tiny")
    assert result.exit_code == 3
    assert "the model never called" in result.stdout
    assert "1959" not in result.stdout


async def _no_sleep(_seconds: float) -> None:
    """Waits are the retry layer's own tests; here they would only take time."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "caveat", *arguments]


def test_the_help_names_the_default_model(caveat: Caveat) -> None:
    """The name stands in the help without importing the SDK, and is the one that is used."""
    assert DEFAULT_MODEL in caveat("ask", "--help").stdout


def test_the_version_is_told(caveat: Caveat) -> None:
    """For bug reports."""
    assert "caveat, version" in caveat("--version").stdout


def start(docs: Path, tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in MODEL_VARIABLES}
    environment |= {"CAVEAT_HOME": str(tmp_path / "home")}
    arguments = command("ask", "When was the Kariba Dam finished?", "--docs", str(docs), *more)
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=_hear_interrupts,  # noqa: PLW1509 - no thread of ours holds a lock here
    )


def _hear_interrupts() -> None:
    """Let Ctrl-C be heard, also where the tests run in the background of a shell, which has it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    deadline = time.monotonic() + 120
    for line in process.stderr:
        if words in line:
            return
        assert time.monotonic() < deadline
    raise AssertionError(f"{words!r} never came")


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_once_gives_a_report_of_what_there_is(docs: Path, tmp_path: Path, signal_number: int) -> None:
    """Interrupted while Wikipedia is waited for: exit code 3, and what the folder gave is in the report."""
    process = start(docs, tmp_path, "--inject", "wikipedia:429")
    wait_for(process, "waiting")
    process.send_signal(signal_number)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "stopped by request" in stdout
    assert "Traceback" not in stderr


def test_a_reader_that_goes_away_is_no_traceback(docs: Path, tmp_path: Path) -> None:
    """`caveat ask … | head -1` ends quietly."""
    process = start(docs, tmp_path, "--sources", "local", "--quiet")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=120) == 0
    process.stderr.close()


@pytest.mark.parametrize(
    ("redirection", "code", "hint"),
    [
        ("2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        (">/dev/full", 4, "could not be written to standard output"),
        ("  >&-", 4, "it is closed"),
        (">&-", 0, ""),
    ],
)
def test_closed_and_full_standard_streams_cost_only_themselves(
    docs: Path, tmp_path: Path, redirection: str, code: int, hint: str
) -> None:
    """Without standard error the report still comes; a report that cannot be printed is named where it is kept."""
    out = tmp_path / "report.md"
    shell = '"$0" -m caveat ask "Kariba Dam finished?" --docs "$1" --sources local '
    to_file = f'--json "{out}" ' if redirection.startswith(">&") else ""
    done = subprocess.run(
        ["/bin/sh", "-c", f"{shell}{to_file}{redirection}", sys.executable, str(docs)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert hint in done.stderr
    if redirection.startswith("2>"):
        assert "The Kariba Dam was finished in 1959." in done.stdout
    if code == 4:
        kept = Path(done.stderr.rsplit("it is kept in ", 1)[1].strip())
        assert "The Kariba Dam was finished in 1959." in kept.read_text()


def test_a_closed_standard_input_is_named() -> None:
    """`caveat ask - <&-` is a usage error."""
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m caveat ask - <&-', sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "standard input, which is closed" in done.stderr


def test_a_pipe_as_report_file_is_not_opened_before_there_is_a_report(
    caveat: Caveat, docs: Path, tmp_path: Path
) -> None:
    """A FIFO does not hang the check that comes before the work."""
    os.mkfifo(tmp_path / "pipe")
    result = caveat("ask", "", "--docs", str(docs), "--out", str(tmp_path / "pipe"))
    assert "the question is empty" in result.stderr


def test_a_home_of_an_unknown_user_is_a_usage_error(caveat: Caveat, monkeypatch: pytest.MonkeyPatch) -> None:
    """CAVEAT_HOME is checked like every other input."""
    monkeypatch.setenv("CAVEAT_HOME", "~no-such-user/x")
    result = caveat("ask", "q", "--offline")
    assert result.exit_code == 2
    assert "CAVEAT_HOME" in result.stderr


def test_ctrl_c_twice_leaves_at_once(docs: Path, tmp_path: Path) -> None:
    """The second one does not wait for the report: exit code 130, no traceback."""
    big = tmp_path / "big"
    big.mkdir()
    for number in range(400):
        (big / f"{number}.md").write_text("The Kariba Dam was finished in 1959. " * 400)
    process = start(big, tmp_path, "--inject", "local:timeout")
    wait_for(process, "reading big: 400 files, 5.9 MB")
    process.send_signal(signal.SIGINT)
    wait_for(process, "stopping")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in stderr


@pytest.mark.parametrize("encoding", ["cp1251", "ascii"])
@pytest.mark.parametrize("form", [[], ["--json", "-"]])
def test_an_old_code_page_costs_no_sign_of_the_report(
    docs: Path, tmp_path: Path, encoding: str, form: list[str]
) -> None:
    """In a pipe, Markdown and JSON are UTF-8 whatever the locale: a quote is what stands in the source."""
    (docs / "röste.md").write_text("# Röste\n\nThe Röste at Kariba cost 5 € → “cheap”.\n", encoding="utf-8")
    arguments = command("ask", "What did the Röste cost?", "--docs", str(docs), "--sources", "local", *form)
    environment = {k: v for k, v in os.environ.items() if k not in MODEL_VARIABLES} | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(arguments, capture_output=True, env=environment, check=False)
    assert b"Traceback" not in done.stderr
    assert "The Röste at Kariba cost 5 € → “cheap”." in done.stdout.decode("utf-8")


def test_ctrl_c_while_the_program_is_loaded_is_exit_code_130() -> None:
    """Never 1, which is "empty" to who called search, and no traceback: from the first import of a library on."""
    program = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from caveat.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_installed_command_begins_where_interrupts_are_taken_care_of() -> None:
    """`caveat` and `python -m caveat` are one entry."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="caveat")
    assert entry.value == "caveat.__main__:main"


def test_ctrl_c_while_the_folder_is_read_says_that_nothing_was_searched(docs: Path, tmp_path: Path) -> None:
    """Exit code 130 and one sentence; no report is promised that cannot come."""
    for number in range(400):
        (docs / f"{number}.md").write_text("The Kariba Dam was finished in 1959. " * 400)
    process = start(docs, tmp_path)
    wait_for(process, "reading notes: 40")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert (process.returncode, stdout) == (130, "")
    assert "stopping. Ctrl-C again leaves at once." in stderr
    assert "stopped before anything was searched; what was read of the folder is kept" in stderr
    assert "report" not in stderr


PRINTING = [
    ["--help"],
    ["--version"],
    ["ask", "--help"],
    ["config"],
    ["config", "--json"],
    ["sources"],
    ["sources", "--json"],
    ["completion", "bash"],
    ["search", "local", "Kariba", "--docs", "notes"],
    ["search", "local", "Kariba", "--docs", "notes", "--json"],
    ["ask", "Kariba Dam finished?", "--docs", "notes", "--sources", "local", "--json", "-"],
]


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_full_standard_output_is_a_sentence_of_every_command(
    docs: Path, tmp_path: Path, arguments: list[str]
) -> None:
    """Exit code 4, and no bug to report."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(*arguments), stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False
        )
    assert done.returncode == 4, done.stderr
    assert "could not be written to standard output (No space left on device)" in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_reader_that_goes_away_is_exit_code_0_of_every_command(
    docs: Path, tmp_path: Path, arguments: list[str]
) -> None:
    """`caveat search … | head -1` is no failure, and above all not "empty"."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command(*arguments), stdout=writing, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False
    )
    os.close(writing)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_question_without_end_is_not_read_to_the_end() -> None:
    """`caveat ask - </dev/zero` is a usage error."""
    with Path("/dev/zero").open("rb") as endless:
        done = subprocess.run(command("ask", "-"), stdin=endless, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "more than the 10,000 characters of a question" in done.stderr


@pytest.mark.parametrize("more", [[], ["--json", "-"]])
def test_a_report_that_no_file_takes_is_exit_code_4_and_not_lost(
    caveat: Caveat, docs: Path, tmp_path: Path, more: list[str]
) -> None:
    """It goes to standard output where that is free; else its kept copy is named. A pipe that nobody reads ends."""
    os.mkfifo(tmp_path / "pipe")
    asked = ["ask", "Kariba Dam finished?", "--docs", str(docs), "--sources", "local", "--out", str(tmp_path / "pipe")]
    result = caveat(*asked, *more)
    assert result.exit_code == 4
    assert "(nobody reads it)" in result.stderr
    if more:
        assert json.loads(result.stdout)["topics"]
        kept = Path(result.stderr.split("it is kept in ")[1].splitlines()[0])
        assert "1959" in kept.read_text()
    else:
        assert "here it is instead" in result.stderr
        assert result.stdout.startswith("# Kariba Dam finished?")


def test_quiet_leaves_only_errors_on_standard_error(caveat: Caveat, docs: Path) -> None:
    """The exit code tells found from empty."""
    for query, code in (("Kariba", 0), ("submarine", 1)):
        result = caveat("search", "local", query, "--docs", str(docs), "-q")
        assert (result.exit_code, result.stderr) == (code, "")


def test_a_bug_is_called_one_and_leaves_a_file_to_send(capsys: pytest.CaptureFixture[str]) -> None:
    """An exception that nobody named is no traceback in the user's face, and nothing of it is lost."""
    try:
        dict[str, int]()["surprise"]
    except KeyError as error:
        report_bug(KeyError, error, error.__traceback__)
    told = capsys.readouterr().err
    assert "this is a bug in caveat: KeyError" in told
    file = Path(told.rsplit("with ", 1)[1].strip())
    assert "Traceback" in file.read_text()
    file.unlink()
