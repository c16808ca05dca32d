"""`make examples`: write docs/examples anew, from the cassettes and from live runs of the command.

The live runs ask the embedded model, a local server with a small encyclopedia, and the notes in tests/notes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import test_sessions
from caveat import Report
from caveat.testing.cassette import Cassette, use_cassette
from caveat.testing.session import play, session_of
from servers import FakeMediaWiki, LocalServer
from sessions import BRIDGE, NOTES, QUESTION, SESSIONS

FOLDER = Path(__file__).parent.parent / "docs" / "examples"
CASSETTES = Path(__file__).parent.parent / "cassettes" / "test_sessions"
ABOUT = {name: getattr(test_sessions, f"test_{name}").__doc__ for name in SESSIONS}
LIVE = {
    "timeout_then_changed_query": [QUESTION, "--sources", "wikipedia", "--inject", "wikipedia:timeout*3"],
    "valid_empty_result": ["What is the toll for the Halsund ferry?", "--docs", "NOTES", "--inject", "local:empty"],
    "local_retry_succeeds": [QUESTION, "--docs", "NOTES", "--inject", "wikipedia:503*2"],
    "alternative_source": [QUESTION, "--docs", "NOTES", "--inject", "wikipedia:refused"],
    "dead_source": [QUESTION, "--sources", "wikipedia", "--inject", "wikipedia:503"],
}


def table() -> str:
    """Return the list of the sessions, as it stands in cassettes/README.md."""
    rows = []
    for name, about in ABOUT.items():
        cassette = Cassette(CASSETTES / f"test_{name}.yaml")
        injected = f"`{session_of(cassette).inject}`" if session_of(cassette).inject else ""
        rows.append(f"| [{name}](test_sessions/test_{name}.yaml) | {about} | {len(cassette)} | {injected} |\n")
    return "| session | situation | interactions | injected |\n| --- | --- | --- | --- |\n" + "".join(rows)


def with_table(page: str) -> str:
    """Return a page with its table written anew."""
    lines = page.splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if line.startswith("|"))
    after = next(at for at, line in enumerate(lines[first:], first) if not line.startswith("|"))
    return "".join(lines[:first]) + table() + "".join(lines[after:])


async def replayed(path: Path) -> Report:
    """Play a cassette from its file alone."""
    with use_cassette(path) as cassette:
        return await play(cassette, session_of(cassette))


def recorded(name: str) -> str:
    """Replay a cassette and return its page."""
    path = CASSETTES / f"test_{name}.yaml"
    report = asyncio.run(replayed(path))
    queries = [
        f"{q.source} “{q.query}” → {q.error_type or q.status}" + (f", then {q.next}" if q.next else "")
        for topic in report.topics
        for q in topic.queries
    ]
    return (
        f"# Recorded: {ABOUT[name]}\n\nPlayed with `caveat replay cassettes/test_sessions/{path.name}`; how it was "
        "recorded is in [cassettes/README.md](../../cassettes/README.md).\n\nWhat was asked, and what was done after "
        "each failure:\n\n"
        + "".join(f"- {line}\n" for line in queries)
        + f"\nExit code {report.exit_code}. The report:\n\n---\n\n{report.markdown}"
    )


def live(name: str) -> str:
    """Run the command and return its page."""
    shown = ["tests/notes" if part == "NOTES" else part for part in LIVE[name]]
    arguments = [str(NOTES) if part == "NOTES" else part for part in LIVE[name]]
    with tempfile.TemporaryDirectory() as home, LocalServer(FakeMediaWiki(BRIDGE, host="wiki.example")) as wiki:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC_", "CAVEAT_"))}
        environment |= {"CAVEAT_HOME": home, "CAVEAT_WIKIPEDIA_URL": wiki.url}
        command = [sys.executable, "-m", "caveat", "ask", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    typed = " ".join(f"'{part}'" if " " in part or ":" in part else part for part in ("caveat", "ask", *shown))
    return (
        f"# Live, embedded model: {ABOUT[name]}\n\n`CAVEAT_WIKIPEDIA_URL` names a local server with two articles.\n\n"
        f"    $ {typed}\n\nProgress, on standard error:\n\n"
        + "".join(f"    {line.replace(str(NOTES), 'tests/notes')}\n" for line in done.stderr.splitlines())
        + f"\nExit code {done.returncode}. The report, on standard output:\n\n---\n\n{done.stdout}"
    )


def main() -> None:
    """Write all pages and their index, and the table in cassettes/README.md."""
    page = CASSETTES.parent / "README.md"
    page.write_text(with_table(page.read_text()))
    rows = []
    for name, about in ABOUT.items():
        (FOLDER / f"recorded_{name}.md").write_text(recorded(name))
        without = ""
        if name in LIVE:
            (FOLDER / f"live_{name}.md").write_text(live(name))
            without = f"[live](live_{name}.md)"
        rows.append(f"| {about} | [recorded](recorded_{name}.md) | {without} |\n")
    folder_rows = [f"- [{page.stem}]({page.name})\n" for page in sorted(FOLDER.glob("folder_*.md"))]
    (FOLDER / "README.md").write_text(
        "# Examples\n\nSituations, each as a recorded session with a capable model, some also as a live run of the\n"
        "command with the embedded model, which is no language model. `make examples` writes them anew, and starts\n"
        "the small encyclopedia that the live runs ask in place of Wikipedia; they cannot be typed without it.\n\n"
        "| situation | with a model | without |\n| --- | --- | --- |\n"
        + "".join(rows)
        + "\nOver a folder of documents that nobody wrote for this:\n\n"
        + "".join(folder_rows)
    )


if __name__ == "__main__":
    main()
