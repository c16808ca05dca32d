"""The commands beside ask: search, sources, config, doctor, completion. Their words and their exit codes."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caveat import diagnosis
from caveat.cli import main
from caveat.settings import Settings
from caveat_tools.network import NetworkError, environment_proxies
from scripted import message, sse, stream_of, text
from servers import FakeMediaWiki, LocalServer, Reply, Request, html_reply, json_reply, refused_url

Caveat = Callable[..., Result]
WIKI = FakeMediaWiki({"Kariba Dam": "The Kariba Dam is a dam between Zambia and Zimbabwe. Its water is deep."})


@pytest.fixture(autouse=True)
def wiki(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    """A small encyclopedia; nothing of the person who runs the tests."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for field in Settings.model_fields:
        monkeypatch.delenv(f"CAVEAT_{field.upper()}", raising=False)
    monkeypatch.setenv("CAVEAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    with LocalServer(WIKI) as server:
        for name in ("wikipedia", "openalex", "arxiv", "crossref"):
            monkeypatch.setenv(f"CAVEAT_{name.upper()}_URL", server.url)
        yield server


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder with one note."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "kariba.md").write_text("# Kariba\n\nThe Kariba Dam was finished in 1959.\n")
    return tmp_path / "notes"


@pytest.fixture
def caveat() -> Caveat:
    """Run the command."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, prog_name="caveat")

    return run


# ---- search


def test_a_search_by_hand_shows_what_was_found(caveat: Caveat, notes: Path) -> None:
    """Title, address and text, and exit code 0."""
    result = caveat("search", "local", "Kariba finished", "--docs", str(notes))
    assert result.exit_code == 0
    assert "The Kariba Dam was finished in 1959." in result.stdout
    assert "kariba.md:" in result.stdout
    assert "FOUND 1" in result.stderr


def test_no_match_is_exit_code_1_and_says_that_the_source_answered(caveat: Caveat) -> None:
    """A script can tell "nothing there" from "could not look"."""
    result = caveat("search", "wikipedia", "submarine")
    assert result.exit_code == 1
    assert "EMPTY wikipedia answered and holds no match" in result.stderr
    assert result.stdout == ""


def test_no_match_beside_files_that_could_not_be_read_is_no_plain_empty(caveat: Caveat, notes: Path) -> None:
    """What is in them is not known: exit code 3, and a sentence that names them; JSON stays what the model sees."""
    (notes / "old.doc").write_bytes(b"x")
    result = caveat("search", "local", "submarine", "--docs", str(notes), "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["status"] == "empty"
    assert "1 file could not be read, or not all of it: old.doc" in result.stderr
    assert caveat("search", "local", "Kariba", "--docs", str(notes)).exit_code == 0


def test_a_failure_is_exit_code_3_with_its_type(caveat: Caveat, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that refuses to talk is not an empty answer."""
    monkeypatch.setenv("CAVEAT_WIKIPEDIA_URL", refused_url())
    result = caveat("search", "wikipedia", "Kariba")
    assert result.exit_code == 3
    assert "FAILED unavailable: 127.0.0.1 refused the connection" in result.stderr


def test_json_is_exactly_what_the_model_would_see(caveat: Caveat) -> None:
    """With an injected fault: the structured failure, after its retries."""
    result = caveat("search", "wikipedia", "Kariba", "--inject", "wikipedia:timeout", "--json", "-q")
    assert result.exit_code == 3
    body = json.loads(result.stdout)
    assert (body["status"], body["errorType"], body["attempts"]) == ("failed", "timeout", 3)
    assert body["attemptedQuery"] == "Kariba"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["wikipeda", "x"], "did you mean wikipedia?"),
        (["local", "x"], "name it with --docs"),
        (["wikipedia", "  "], "QUERY is empty"),
        (["wikipedia", "x" * 301], "301 characters"),
        (["wikipedia", "x", "--from", "yesterday"], "--from"),
        (["wikipedia", "x", "--from", "2024-02-31"], "--from"),
        (["wikipedia", "x", "--from", "2024-02-02", "--to", "2024-01-01"], "--from is later than --to"),
        (["wikipedia", "x", "--limit", "9"], "--limit"),
        (["wikipedia", "x", "--inject", "local:timeout"], "unknown target 'local'"),
    ],
)
def test_a_search_that_cannot_be_sent_is_a_usage_error(arguments: list[str], words: str, caveat: Caveat) -> None:
    """Exit code 2, and nothing was asked."""
    result = caveat("search", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_dates_for_a_source_that_takes_none_are_a_failure_of_the_call(caveat: Caveat) -> None:
    """As the model would be told."""
    result = caveat("search", "wikipedia", "Kariba", "--from", "2024-01-01")
    assert result.exit_code == 3
    assert "invalid_arguments: wikipedia takes no dates" in result.stderr


# ---- sources and config


def test_sources_are_listed_with_what_is_in_them(caveat: Caveat, notes: Path, wiki: LocalServer) -> None:
    """Also as JSON; one that cannot be used says what to do; nothing is asked over the network."""
    rows = {row["name"]: row for row in json.loads(caveat("sources", "--json").stdout)}
    assert rows["local"] == {
        "name": "local",
        "usable": False,
        "description": "the source local needs a folder: name it with --docs",
    }
    assert rows["wikipedia"]["usable"]
    shown = caveat("sources", "--docs", str(notes)).stdout
    assert "one document" in shown
    assert "takes no dates" in shown
    assert wiki.requests == []


def test_config_shows_each_value_and_where_it_is_from(
    caveat: Caveat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of keys only that they are set."""
    (tmp_path / "caveat.toml").write_text("max_calls = 7\n")
    monkeypatch.setenv("CAVEAT_MAX_COST", "0.25")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    monkeypatch.setenv("CAVEAT_OPENALEX_URL", "https://me:secret@api.example.org/works?api_key=secret")
    result = caveat("config")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line}
    assert "7 " in lines["max_calls"]
    assert "caveat.toml" in lines["max_calls"]
    assert "environment CAVEAT_MAX_COST" in lines["max_cost"]
    assert "default" in lines["max_turns"]
    assert "ANTHROPIC_API_KEY is set (not shown)" in result.stdout
    assert "secret" not in result.stdout
    body = json.loads(caveat("config", "--json").stdout)
    assert set(body) == set(Settings.model_fields)
    assert body["max_cost"]["value"] == 0.25


def test_a_setting_that_does_not_exist_is_a_usage_error_of_every_command(caveat: Caveat, tmp_path: Path) -> None:
    """Whatever command reads it first."""
    (tmp_path / "caveat.toml").write_text("max_cots = 7\n")
    for arguments in (["config"], ["doctor"], ["sources"], ["ask", "q"], ["search", "wikipedia", "x"]):
        result = caveat(*arguments)
        assert result.exit_code == 2, arguments
        assert "did you mean max_cost?" in result.stderr


def test_a_question_uses_the_settings_of_the_folder(caveat: Caveat, notes: Path, tmp_path: Path) -> None:
    """Written down once, and typed no more."""
    (tmp_path / "caveat.toml").write_text('docs = "notes"\nsources = "local"\n')
    result = caveat("ask", "When was the Kariba Dam finished?", "-q")
    assert result.exit_code == 0
    assert notes.exists()
    assert "The Kariba Dam was finished in 1959" in result.stdout


# ---- doctor


def test_doctor_says_what_works_without_a_key(caveat: Caveat, notes: Path) -> None:
    """No key is no failure; the line says what to set for a model."""
    result = caveat("doctor", "--docs", str(notes), "--json")
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    assert checks["model"]["state"] == "note"
    assert "ANTHROPIC_API_KEY" in checks["model"]["todo"]
    assert checks["source local"]["state"] == "works"
    assert checks["source wikipedia"]["state"] == "works"
    assert checks["runs"]["state"] == checks["cache"]["state"] == "works"


def test_doctor_names_a_source_that_does_not_answer(caveat: Caveat, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its address, its error type and what to do, and exit code 3."""
    monkeypatch.setenv("CAVEAT_WIKIPEDIA_URL", refused_url())
    result = caveat("doctor")
    assert result.exit_code == 3
    assert "FAILS  source wikipedia: unavailable: 127.0.0.1 refused the connection" in result.stdout
    assert "→ check network and proxy" in result.stdout


def server_of_models(request: Request) -> Reply:
    """Know one model and one key, as the hosted API does."""
    if request.headers.get("authorization") != "Bearer good":
        return json_reply({"type": "error", "error": {"type": "authentication_error", "message": "no"}}, 401)
    if request.path == "/v1/models/claude-sonnet-5-5":
        return json_reply({"id": "claude-sonnet-5-5", "type": "model"})
    if request.path == "/v1/messages":
        return Reply(200, {"content-type": "text/event-stream"}, sse(*stream_of(message([text("ready")]))))
    return json_reply({"type": "error", "error": {"type": "not_found_error", "message": "no"}}, 404)


def test_doctor_asks_the_model_server_for_key_and_model(caveat: Caveat, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good key works, a bad one fails with what to set, a model is known or not; --turn asks for one."""
    with LocalServer(server_of_models) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "good")
        good = caveat("doctor", "--turn")
        assert f"works  model server {server.url}: answers and knows claude-sonnet-5-5" in good.stdout
        assert "works  model turn: ready after" in good.stdout
        assert "works  price: claude-sonnet-5-5" in good.stdout
        monkeypatch.setenv("CAVEAT_MODEL", "gemma")
        unknown = caveat("doctor")
        assert "cannot say whether it knows gemma" in unknown.stdout
        assert "note   price: gemma is not in the price list" in unknown.stdout
        monkeypatch.setenv("ANTHROPIC_API_KEY", "bad")
        bad = caveat("doctor")
        assert bad.exit_code == 3
        assert "refused the key (status 401)" in bad.stdout
        assert "set ANTHROPIC_API_KEY to a valid key" in bad.stdout
    monkeypatch.setenv("ANTHROPIC_BASE_URL", refused_url())
    gone = caveat("doctor", "--turn")
    assert gone.exit_code == 3
    assert "FAILS  model server" in gone.stdout
    assert "FAILS  model turn" in gone.stdout


def test_doctor_names_a_server_that_is_no_messages_api(caveat: Caveat, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web page is not a model; the turn says so."""
    with LocalServer(html_reply()) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        result = caveat("doctor", "--turn")
    assert result.exit_code == 3
    assert "check that ANTHROPIC_BASE_URL names a Messages API" in result.stdout


def test_a_store_that_cannot_be_written_is_named(
    caveat: Caveat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With where it is and what to set."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAVEAT_HOME", str(tmp_path / "file"))
    result = caveat("doctor")
    assert result.exit_code == 3
    assert "FAILS  runs: " in result.stdout
    assert "set home (CAVEAT_HOME)" in result.stdout


def test_the_bundle_for_a_bug_tracker_holds_no_secret(
    caveat: Caveat, tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys, passwords in addresses, addresses of people, folders: one of each is planted, and none comes out."""
    planted = {
        "ANTHROPIC_API_KEY": "sk-ant-api03-PLANTED1",
        "ANTHROPIC_AUTH_TOKEN": "PLANTED2-token",
        "HTTPS_PROXY": "http://user3:PLANTED3@127.0.0.1:1",
        "ANTHROPIC_BASE_URL": "http://user4:PLANTED4@127.0.0.1:1/v?api_key=PLANTED5",
        "CAVEAT_CONTACT": "PLANTED6@example.org",
        "SOME_SECRET": "PLANTED7",
        "CAVEAT_MODEL": "Bearer PLANTED8",
        "HTTP_PROXY": "http://proxy-PLANTED10.corp.example:3128",
        "NO_PROXY": "intranet-PLANTED11.corp.example",
        "CAVEAT_OPENALEX_URL": 'http://127.0.0.1:1/path-PLANTED12/works?x=PLANTED13"PLANTED14',
        "CAVEAT_ARXIV_URL": "http://me:PLANTED15/x@y@127.0.0.1:1/api",
        "CAVEAT_CROSSREF_URL": "http://127.0.0.1:1/works#PLANTED16",
        "DB_PASS": "PLANTED17",
        "MY_PWD": "PLANTED18",
        "URL_SIG": "PLANTED19",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    private = tmp_path / "PLANTED9"
    notes.rename(private)
    result = caveat("doctor", "--docs", str(private), "--bundle", "bundle.json")
    assert "wrote bundle.json" in result.stderr
    bundle = (tmp_path / "bundle.json").read_text()
    assert "PLANTED" not in bundle
    assert str(tmp_path) not in bundle
    body = json.loads(bundle)
    assert body["packages"]["anthropic"]
    assert body["settings"]["max_calls"] == {"value": 48, "from": "default"}
    assert body["settings"]["docs"]["value"] == "(docs)"
    assert body["settings"]["openalex_url"]["value"] == "http://127.0.0.1:1/…"
    assert body["settings"]["arxiv_url"]["value"] == "http://127.0.0.1:1/…"
    assert "ANTHROPIC_API_KEY" in body["environment"]


def test_a_proxy_that_is_none_is_not_in_the_bundle_either(
    caveat: Caveat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks that it breaks name it, and the bundle does not."""
    monkeypatch.setenv("HTTPS_PROXY", "socks5://PLANTED.corp.example:1080")
    assert "PLANTED.corp.example" in caveat("doctor", "--bundle", "bundle.json").stdout
    assert "PLANTED" not in (tmp_path / "bundle.json").read_text()


def test_a_proxy_for_all_that_nothing_asks_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Desktops set a SOCKS proxy in ALL_PROXY beside those for http and https, which are used."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(NetworkError, match="ALL_PROXY"):
        environment_proxies()
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:2")
    assert environment_proxies() == {"http": "http://127.0.0.1:1", "https": "http://127.0.0.1:2", "no": ""}


def test_a_source_that_is_left_out_may_fail(caveat: Caveat, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 where all that the settings name works; the rest is a note."""
    monkeypatch.setenv("CAVEAT_WIKIPEDIA_URL", refused_url())
    monkeypatch.setenv("CAVEAT_SOURCES", "local")
    result = caveat("doctor", "--docs", str(notes))
    assert result.exit_code == 0
    assert "note   source wikipedia: unavailable: 127.0.0.1 refused the connection" in result.stdout
    assert "the settings leave it out" in result.stdout


def test_a_base_url_that_cannot_be_one_is_a_sentence_of_doctor(caveat: Caveat, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ask` says it."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:99999")
    result = caveat("doctor")
    assert result.exit_code == 3
    assert "FAILS  model server http://127.0.0.1:99999: this is no address" in result.stdout


@contextlib.contextmanager
def trickling(*beginning: bytes) -> Iterator[str]:
    """A server that says its beginning, and then one sign after the other without end. Yields its address."""
    over = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(b"".join(beginning))
            while not over.wait(0.05):
                connection.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        over.set()
        thread.join()
        listening.close()


async def test_doctor_reads_only_the_status_of_a_model_server() -> None:
    """A body without end costs nothing."""
    with trickling(b"HTTP/1.1 404 Not Found\r\ncontent-length: 100000000\r\n\r\n") as url:
        check = await diagnosis._server(Settings(base_url=url))
    assert check.state == "note"
    assert "status 404" in check.what


async def test_doctor_does_not_wait_for_headers_without_end() -> None:
    """A server that goes on and on is one that does not answer."""
    with trickling(b"HTTP/1.1 200 OK\r\nx: ") as url:
        check = await diagnosis._server(Settings(base_url=url), seconds=0.3)
    assert (check.state, check.what) == ("fails", "did not answer within 0 s")


# ---- completion and help


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_completion(shell: str, caveat: Caveat) -> None:
    """The script names the command and the variable that asks it."""
    result = caveat("completion", shell)
    assert result.exit_code == 0
    assert "_CAVEAT_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("caveat se", "search"),
        ("caveat ask q --sources local,wi", "local,wikipedia"),
        ("caveat search wiki", "wikipedia"),
        ("caveat ask q --inject wikipedia:time", "wikipedia:timeout"),
        ("caveat ask q --inject model:bad_", "model:bad_args"),
        ("caveat ask q --max-c", "--max-cost"),
    ],
)
def test_completion_knows_commands_options_sources_and_faults(words: str, expected: str) -> None:
    """What is typed is asked of the command itself."""
    import os  # noqa: PLC0415

    count = len(words.split()) - 1
    environment = {**os.environ, "_CAVEAT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    done = subprocess.run(
        [sys.executable, "-c", "from caveat.cli import main; main(prog_name='caveat')"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert expected in [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("arguments", [["--help"], ["ask", "--help"], ["--version"], ["completion", "bash"]])
def test_help_imports_neither_the_sdk_nor_a_source_nor_the_store(arguments: list[str]) -> None:
    """So that it is there at once."""
    program = (
        "import sys\nfrom caveat.cli import main\n"
        f"try: main({arguments!r}, prog_name='caveat')\nexcept SystemExit: pass\n"
        "heavy = {'anthropic', 'httpx2', 'sqlite3', 'pydantic', 'asyncio', 'caveat.session', 'caveat_tools.sources'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
